"""E, the memory and the program that looks images up in it, put together from a config."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import logging
from jax.sharding import Mesh
from ml_collections import ConfigDict

from rac_jax import sharding
from rac_jax.data.dataset import Dataset
from rac_jax.data.pipeline import Batch
from rac_jax.memory import build, index
from rac_jax.memory.store import Memory
from rac_jax.retrieval import callback, duplicates, encoder
from rac_jax.retrieval.encoder import Encoder
from rac_jax.retrieval.lookup import KEEP_ALL, Lookup
from rac_jax.retrieval.snippets import Snippets
from rac_jax.retrieval.tokenizers import Tokenizer


@dataclasses.dataclass(frozen=True)
class Retriever:
    """Finds the neighbours of images."""

    encoder: Encoder
    lookup: Lookup
    program: Callable[..., callback.Retrieved]  # (E's parameters, images, own rows) -> neighbours
    keys_program: Callable[..., jax.Array]  # the first half of `program`: (E's parameters, images) -> keys
    recipe: dict[str, Any]  # everything that decides which neighbours an image has
    cache: Path  # the folder for lookup=cached
    mean_fitting: float  # how many of the k texts fit into T's window, on average
    train_fingerprint: str  # of the training split
    row_class: jax.Array  # [N] int32: the class that a row's text names, or −1; on every device

    @property
    def memory(self) -> Memory:
        return self.lookup.memory

    def __call__(self, images: jax.Array, own: jax.Array) -> callback.Retrieved:
        """Tokens, rows and similarities for images [B, S, S, 3] and their own rows [B], both placed."""
        return self.program(self.encoder.parameters, images, own)

    def keys(self, images: jax.Array) -> jax.Array:
        """E's keys of placed images [B, S, S, 3]: [B, D]."""
        return self.keys_program(self.encoder.parameters, images)

    def search(self, keys: jax.Array, own: np.ndarray) -> dict[str, np.ndarray]:
        """The neighbours of keys, looked up by this thread of the host. Waits for the keys."""
        return callback.search_on_host(self.lookup, keys, own)

    def own_rows(self, batch: Batch, *, training: bool) -> np.ndarray:
        """The memory's rows of a batch's own images, which training leaves out: [b] int32."""
        if not training:
            return np.full_like(batch["id"], KEEP_ALL)
        return self.memory.row_of(self.train_fingerprint, batch["id"])


def open_or_build(
    config: ConfigDict,
    dataset: Dataset,
    tokenizer: Tokenizer,
    *,
    folder: Path,
    cache: Path,
    mesh: Mesh,
    may_build: bool = True,
) -> Retriever:
    """The retriever over the memory in `folder`. If there is none it is built, or an error unless `may_build`."""
    e = encoder.load(config, mesh)
    if may_build:
        memory = build.open_or_build(config, dataset, e, folder=folder, mesh=mesh)
    else:
        memory = build.open_existing(config, dataset, e, folder=folder)
    snippets = Snippets.tokenise(memory.texts, tokenizer, config.memory.cut)
    ef_search, same_image = index.ef_search(config), None
    if config.memory.exclude == "id":
        same_image = duplicates.groups(memory, dataset.fingerprint("train"), config.memory.duplicates, ef_search)
    lookup = Lookup(memory, snippets, config.memory.k, ef_search, config.memory.exclude, same_image)
    mean_fitting = lookup.mean_fitting()
    logging.info("T's window holds %.1f of %d snippets, on average", mean_fitting, lookup.k)
    if config.memory.index == "device":
        program = callback.on_device(e.encode, lookup, mesh, config.memory.device_dtype)
    else:
        program = callback.through_host(e.encode, lookup, mesh)
    return Retriever(
        encoder=e,
        lookup=lookup,
        program=program,
        keys_program=callback.keys_only(e.encode, mesh),
        recipe=_recipe(config, memory),
        cache=cache,
        mean_fitting=mean_fitting,
        train_fingerprint=dataset.fingerprint("train"),
        row_class=sharding.put_replicated(mesh, _row_classes(memory, dataset)),
    )


def _recipe(config: ConfigDict, memory: Memory) -> dict[str, Any]:
    asked = {name: config.memory[name] for name in ("k", "exclude", "duplicates", "ef_search", "index", "device_dtype")}
    asked |= {"keep": dict(config.memory.keep), "seed": config.data.seed if memory.kept is not None else 0}
    rows = [[source.fingerprint, source.state, place.start] for source, place in memory.manifest.slices()]
    return {"memory": memory.fingerprint, "rows": rows, "asked": asked}


def _row_classes(memory: Memory, dataset: Dataset) -> np.ndarray:
    """[N] int32: the first class whose text is a row's text, or −1."""
    class_of = {text: label for label, text in reversed(list(enumerate(dataset.class_texts)))}
    return np.array([class_of.get(text, -1) for text in memory.texts], np.int32)[memory.text_of]
