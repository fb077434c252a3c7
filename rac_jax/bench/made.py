"""Synthetic memories of any size, whose keys have near neighbours."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pyarrow as pa

from rac_jax.memory import columns, edit, store
from rac_jax.retrieval import callback, tokenizers
from rac_jax.retrieval.encoder import Encoder
from rac_jax.retrieval.lookup import Lookup
from rac_jax.retrieval.retriever import Retriever
from rac_jax.retrieval.snippets import Snippets

TEXTS = 365


def snippets() -> Snippets:
    """365 names of one to three words."""
    names = ["art gallery", "bedroom", "airport terminal", "church indoor", "field wild", "bamboo forest", "kitchen"]
    return Snippets.tokenise([names[i % len(names)] for i in range(TEXTS)], tokenizers.clip())


def memory(folder: Path, keys: np.ndarray, kind: str) -> store.Memory:
    """A memory of these keys, with one of 365 texts each."""
    spec = {"kind": kind, "metric": "cosine"} | ({"m": 32, "ef_construction": 40} if kind == "hnsw" else {})
    edit.create(folder, {"keys": "float32", "index": spec}, width=keys.shape[1])
    texts = [str(i % TEXTS) for i in range(len(keys))]
    with edit.editing(folder) as editor:
        editor.start("made", rows=len(keys), fingerprint="made", origin="bench")
        editor.append(keys)
        editor.finish(columns.make(pa.array(texts), [str(i) for i in range(len(keys))]))
    return store.read(folder)


def retriever(lookup: Lookup, mesh: Any) -> Retriever:
    """A retriever around a lookup, with the identity in place of E."""
    nothing: Any = None
    return Retriever(
        encoder=Encoder(same, {}, nothing, 0),
        lookup=lookup,
        program=callback.through_host(same, lookup, mesh),
        keys_program=callback.keys_only(same, mesh),
        recipe={},
        cache=Path(),
        train_fingerprint="",
        knowledge=nothing,
    )


def same(_: Any, queries: jax.Array) -> jax.Array:
    """The identity in place of E."""
    return queries
