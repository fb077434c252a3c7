"""A memory is a folder: keys, texts, image references, the index, and a manifest that says of what.

manifest.json   the recipe (encoder, preprocessing, data, index), its fingerprint, checksums
keys.npy        [N, D] float32, one row an image; the row's number is its id
rows.arrow      for each row the text and the image's reference, memory-mapped
index.faiss     finds rows by key
"""

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow as pa

from rac_jax.config import difference
from rac_jax.memory import index

VERSION = 1
FILES = ("keys.npy", "rows.arrow", "index.faiss")

Recipe = dict[str, Any]


class BadMemory(ValueError):
    """A memory that cannot be used; the message says why and what would work."""


@dataclasses.dataclass(frozen=True)
class Memory:
    """An open memory: a snapshot, which later changes of the folder do not touch."""

    folder: Path
    recipe: Recipe
    fingerprint: str
    keys: np.ndarray  # [N, D] float32, memory-mapped
    texts: tuple[str, ...]  # the distinct texts
    text_of: np.ndarray  # [N] int32: which of them a row has
    images: pa.ChunkedArray  # [N] strings: references
    index: faiss.Index

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def version(self) -> int:
        """Goes up with every change of the folder."""
        return VERSION

    @property
    def enabled(self) -> int:
        """How many rows a search may return."""
        allowed = self.allowed()
        return len(self) if allowed is None else int(allowed.sum())

    def allowed(self) -> np.ndarray | None:
        """The rows that a search may return, [N] bool; None for all of them."""
        return None

    def row_of(self, data_fingerprint: str, ids: np.ndarray) -> np.ndarray:
        """Rows of a split's images by their ids, int32; −1 for all when the split is not inside."""
        if self.recipe["data"]["fingerprint"] != data_fingerprint:
            return np.full_like(ids, -1)
        return np.asarray(ids, np.int32)


def fingerprint(recipe: Recipe) -> str:
    """What a memory is made of, as one short string."""
    return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()


def write(
    folder: Path,
    recipe: Recipe,
    keys: np.ndarray,
    texts: Sequence[str],
    text_of: np.ndarray,
    images: Sequence[str],
    built: faiss.Index,
) -> None:
    """Write the folder under a temporary name and rename it: it is there whole or not at all."""
    temporary = folder.with_name(f"{folder.name}.writing-{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    np.save(temporary / "keys.npy", np.asarray(keys, np.float32), allow_pickle=False)
    text = pa.DictionaryArray.from_arrays(pa.array(text_of, pa.int32()), pa.array(texts, pa.string()))
    table = pa.table({"text": text, "image": pa.array(images, pa.string())})
    with pa.OSFile(str(temporary / "rows.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    index.write(built, temporary / "index.faiss")
    manifest = {
        "version": VERSION,
        "fingerprint": fingerprint(recipe),
        "rows": len(keys),
        "width": int(keys.shape[1]),
        "recipe": recipe,
        "sha256": {name: _sha256(temporary / name) for name in FILES},
    }
    (temporary / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
    temporary.rename(folder)


def matches(folder: Path, recipe: Recipe) -> bool:
    """Is there a memory made by this recipe? One made by another is refused, with the difference."""
    if not (folder / "manifest.json").exists():
        if folder.exists() and any(folder.iterdir()):
            raise BadMemory(f"{folder} is not a memory (no manifest.json) and is not empty")
        return False
    found = _manifest(folder)["recipe"]
    if found == recipe:
        return True
    lines = "\n".join(
        f"  {name}: {old!r} there, {new!r} wanted" for name, (old, new) in difference(found, recipe).items()
    )
    raise BadMemory(
        f"the memory in {folder} was built by another recipe:\n{lines}\n"
        "Name another folder (--config.memory.dir or --workdir), or delete this one to build it anew."
    )


def read(folder: Path) -> Memory:
    """Open a memory; a missing, damaged or foreign file is an error that names it."""
    manifest = _manifest(folder)
    for name, expected in manifest["sha256"].items():
        if not (folder / name).exists():
            raise FileNotFoundError(f"{folder / name} is missing; delete {folder} to build it anew")
        if _sha256(folder / name) != expected:
            raise BadMemory(f"{folder / name} is damaged (checksum); delete {folder} to build it anew")
    rows = pa.ipc.open_file(pa.memory_map(str(folder / "rows.arrow"))).read_all()
    text = rows["text"].combine_chunks()
    keys = np.load(folder / "keys.npy", mmap_mode="r", allow_pickle=False)
    return Memory(
        folder=folder,
        recipe=manifest["recipe"],
        fingerprint=manifest["fingerprint"],
        keys=keys,
        texts=tuple(text.dictionary.to_pylist()),
        text_of=text.indices.to_numpy(),
        images=rows["image"],
        index=index.read(folder / "index.faiss", keys, manifest["recipe"].get("index", {})),
    )


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / "manifest.json"
    try:
        manifest = json.loads(path.read_text())
        if manifest["version"] != VERSION:
            raise BadMemory(f"{path} has version {manifest['version']}; this code reads {VERSION}")
        if manifest["fingerprint"] != fingerprint(manifest["recipe"]):
            raise BadMemory(f"{path} was edited: its fingerprint is not that of its recipe")
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no memory in {folder} (no manifest.json)") from None
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise BadMemory(f"{path} is not a memory's manifest ({error!r})") from error
    return manifest


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
