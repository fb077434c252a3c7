"""E's keys of plain images, kept by image: runs that need the same ones compute them once.

config.memory.kept_keys is the folder. Below it, a folder for each encoder and preprocessing holds files of keys and the
digests of their images. A process that needs keys which another one is computing waits for them.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging

from rac_jax.data import content
from rac_jax.data.dataset import Images, Split
from rac_jax.data.files import FileImages
from rac_jax.runtime import files

DAMAGED = (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile)
SHARD = 4096  # images whose keys are kept at once: an interrupted command loses no more


def folder_of(root: Path, recipe: dict[str, Any]) -> Path:
    """The folder of the keys of an encoder and a preprocessing."""
    made_of = json.dumps([recipe["encoder"], recipe["preprocessing"]], sort_keys=True)
    return root / f"by_image-{hashlib.sha256(made_of.encode()).hexdigest()[:16]}"


def keys(folder: Path, split: Split, encode: Callable[[Split], Iterator[np.ndarray]]) -> Iterator[np.ndarray]:
    """The keys of a split's images in order, a shard at a time: [n, D] float32. Those that are not kept are encoded."""
    digests = digests_of(split.images)
    store = Store(folder)
    for start in range(0, len(split), SHARD):
        some = digests[start : start + SHARD]
        with store.locked():
            missing = store.missing(some)
            if missing:
                chosen = np.array(sorted(missing.values()), np.int64)
                started = time.perf_counter()
                made = np.concatenate(list(encode(split.select(start + chosen))))
                store.add([some[position] for position in chosen], made, time.perf_counter() - started)
        yield store.take(some)


@dataclasses.dataclass(frozen=True)
class Spent:
    """How long it took to compute keys."""

    images: int = 0
    seconds: float = 0.0

    @property
    def each(self) -> float:
        """Seconds per image."""
        return self.seconds / max(self.images, 1)


def spent(root: Path) -> Spent:
    """Over all keys in the folder that config.memory.kept_keys names."""
    total = Spent()
    for path in root.glob("by_image-*/keys-*.npz"):
        with contextlib.suppress(*DAMAGED), path.open("rb") as file, np.load(file, allow_pickle=False) as found:
            total = Spent(total.images + len(found["digests"]), total.seconds + float(found["seconds"]))
    return total


def digests_of(images: Images) -> list[bytes]:
    """A digest of each image's content, as hexadecimal digits."""
    if isinstance(images, FileImages):
        return content.samples(images.root, images.paths.tolist())
    encoded = getattr(images, "encoded", None)
    read = encoded if encoded is not None else lambda position: images[position].tobytes()
    return [content.sample(read(position)) for position in range(len(images))]


class Store:
    """The files of one folder, as far as they were read."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._read: set[str] = set()
        self._parts: list[np.ndarray] = []
        self._place: dict[bytes, tuple[int, int]] = {}  # of an image: the number of a part, and a row of it

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Wait until no other process adds keys, and read what it has added."""
        with files.writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            file = (self.folder / ".lock").open("a")
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self._refresh()
            yield

    def missing(self, digests: list[bytes]) -> dict[bytes, int]:
        """The images that are not kept, and the first position of each."""
        return {
            digest: position for position, digest in reversed(list(enumerate(digests))) if digest not in self._place
        }

    def add(self, digests: list[bytes], keys: np.ndarray, seconds: float = 0.0) -> None:
        """Keep keys [n, D] of images, and how long it took to compute them."""
        name = hashlib.sha256(b"".join(digests)).hexdigest()[:16]
        path = self.folder / f"keys-{name}.npz"
        with files.atomic(path) as temporary, temporary.open("wb") as file:
            np.savez(file, digests=np.array(digests), keys=keys, seconds=seconds)
        self._include(path.name, np.array(digests), keys)

    def take(self, digests: list[bytes]) -> np.ndarray:
        """The keys of images that are kept, [n, D] float32."""
        places = [self._place[digest] for digest in digests]
        return np.stack([self._parts[part][row] for part, row in places])

    def _refresh(self) -> None:
        for path in sorted(self.folder.glob("keys-*.npz")):
            if path.name not in self._read:
                try:
                    with path.open("rb") as file, np.load(file, allow_pickle=False) as found:
                        self._include(path.name, found["digests"], found["keys"])
                except DAMAGED as error:
                    logging.warning("%s is damaged (%s); its keys are computed again", path, error)
                    path.unlink(missing_ok=True)

    def _include(self, name: str, digests: np.ndarray, keys: np.ndarray) -> None:
        if keys.ndim != 2 or len(keys) != len(digests):
            raise ValueError(f"{len(digests)} images and keys {list(keys.shape)}")
        self._read.add(name)
        self._parts.append(keys)
        self._place |= {digest: (len(self._parts) - 1, row) for row, digest in enumerate(digests.tolist())}
