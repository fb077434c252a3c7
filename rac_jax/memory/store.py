"""A memory is a folder. Opening it maps its files instead of loading them.

manifest.json   the recipe, the sources, the class table, the names and checksums of the files
keys-N.bin      [rows, width] float32 or float16, the keys of all sources, one row after another; it only grows
rows-N.arrow    for each source, its rows' texts, labels and image references
classes-N.arrow for each source, how many rows each class has and the sum of their keys
index-N.faiss   finds rows by key
thumbnails-N.arrow  for each source that has them, a small JPEG of each row
tokens/         the texts as tokens, kept by retrieval/texts.py; may be deleted
"""

import bisect
import dataclasses
import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rac_jax.memory import classes, columns, index, manifest, thumbnails
from rac_jax.memory.classes import ClassSums
from rac_jax.memory.columns import Strings
from rac_jax.memory.index.milvus import MilvusFailed
from rac_jax.memory.index.tail import WithTail
from rac_jax.memory.manifest import BadMemory, Manifest, Recipe, Source
from rac_jax.memory.thumbnails import Thumbnails

TOKENS = "tokens"  # a folder
GLANCE = 4096  # bytes at either end of a source's keys, compared on opening; `check` reads all
VERIFIED_UP_TO = 2**26  # bytes: smaller files are compared with their checksums on opening; `check` does it for all
CHUNK = 2**24  # bytes that are read at once


@dataclasses.dataclass(frozen=True)
class Memory:
    """An open memory: a snapshot, which later changes of the folder do not touch."""

    folder: Path
    manifest: Manifest
    keys: np.ndarray  # [N, D] float32 or float16, mapped; of unit length if the metric is cosine
    texts: Strings  # the distinct texts of each source
    text_of: np.ndarray  # [N] int32: which of them a row has
    label_of: np.ndarray  # [N] int32: its class, a number in `class_names`; −1 for none
    sums_of: tuple[ClassSums, ...]  # for each finished source: the counts and sums of keys of its classes
    images: Strings  # [N] references
    index: Any
    thumbnails_of: tuple[Thumbnails | None, ...]  # for each finished source
    kept: np.ndarray | None = None  # [N] bool: the rows that this run uses; None for all enabled rows

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def recipe(self) -> Recipe:
        return self.manifest.recipe

    @property
    def class_names(self) -> tuple[str, ...]:
        """The class table. A class may have no rows, if the sources that contain it are hidden or removed."""
        return self.manifest.class_names

    def class_counts(self) -> np.ndarray:
        """How many of the rows that a search may return are of each class: [C] int64."""
        return self._class_totals[0]

    def class_sums(self) -> np.ndarray:
        """The sums of the stored keys of those rows: [C, D] float64."""
        return self._class_totals[1]

    @functools.cached_property
    def _class_totals(self) -> tuple[np.ndarray, np.ndarray]:
        if self.kept is not None:
            rows = np.flatnonzero(self.kept)
            parts = [classes.of_rows(self.label_of[rows], self.keys[rows])]
        else:
            states = [source.state for source, _ in self.manifest.slices()]
            parts = [sums for sums, state in zip(self.sums_of, states, strict=True) if state == manifest.ENABLED]
        return classes.total(parts, len(self.class_names), self.manifest.width)

    @property
    def version(self) -> int:
        """Goes up with every change of the folder."""
        return self.manifest.version

    @property
    def fingerprint(self) -> str:
        """What can be retrieved: the recipe and the enabled sources."""
        return self.manifest.fingerprint

    @functools.cached_property
    def enabled(self) -> int:
        """How many rows a search may return."""
        allowed = self.allowed()
        return len(self) if allowed is None else int(allowed.sum())

    def allowed(self) -> np.ndarray | None:
        """The rows that a search may return, [N] bool; None for all of them. The same array at each call."""
        return self.kept if self.kept is not None else self._of_enabled_sources

    @functools.cached_property
    def _of_enabled_sources(self) -> np.ndarray | None:
        sources = [source for source, _ in self.manifest.slices()]
        if all(source.state == manifest.ENABLED and not source.removed for source in sources):
            return None
        allowed = np.zeros(len(self), bool)
        for source, rows in self.manifest.slices():
            allowed[rows] = source.state == manifest.ENABLED
            allowed[rows.start + np.array(source.removed, np.int64)] = False
        return allowed

    def holds(self, row: int) -> bool:
        """Whether there is such a row that was not removed."""
        if not 0 <= row < len(self):
            return False
        source, position = self.source_of(row)
        return source.state != manifest.REMOVED and position not in source.removed

    def row_of(self, data_fingerprint: str, ids: np.ndarray) -> np.ndarray:
        """Rows of a split's images by their ids, int32; −1 for all when the split is not inside."""
        rows = self.rows_of(data_fingerprint)
        return np.full_like(ids, -1) if rows is None else np.asarray(ids, np.int32) + np.int32(rows.start)

    def rows_of(self, data_fingerprint: str) -> slice | None:
        """All rows of a split, if it is inside."""
        inside = [(source, rows) for source, rows in self.manifest.slices() if source.fingerprint == data_fingerprint]
        return next((rows for source, rows in inside if source.state != manifest.REMOVED), None)

    def source_of(self, row: int) -> tuple[Source, int]:
        """The source that a row is of, and the row's number in it."""
        source, rows = self._slices[self._place_of(row)]
        return source, row - rows.start

    @functools.cached_property
    def _slices(self) -> list[tuple[Source, slice]]:
        return list(self.manifest.slices())

    def _place_of(self, row: int) -> int:
        """The place of a row's source among the finished ones."""
        if not 0 <= row < len(self):
            raise IndexError(f"there is no row {row}; the memory has {len(self)}")
        return bisect.bisect_right(self._slices, row, key=lambda part: part[1].stop)

    def source_names(self, rows: np.ndarray) -> list[str]:
        """The name of the source of each row [M]."""
        stops = [part.stop for _, part in self._slices]
        return [self._slices[place][0].name for place in np.searchsorted(stops, rows, side="right")]

    def thumbnail(self, row: int) -> bytes | None:
        """A small JPEG of a row's image, if its source has them."""
        place = self._place_of(row)
        kept = self.thumbnails_of[place]
        return None if kept is None else kept[row - self._slices[place][1].start]

    def file_of(self, row: int) -> Path | None:
        """The file of a row's image, if it is one and still there."""
        root = self.source_of(row)[0].root
        path = self.folder / root / self.images[row]  # an exported memory names folders beside itself
        return path if root and path.is_file() else None


def read(folder: Path, before: Memory | None = None) -> Memory:
    """Open a memory; a missing, damaged or foreign file is an error that names it.

    Files that `before`, an earlier state of it, consists of too are not compared with their checksums again.
    """
    found = manifest.read(folder)
    verified = frozenset(manifest.checksums(before.manifest)) if before is not None else frozenset()
    try:
        return _open(folder, found, verified)
    except FileNotFoundError:
        if manifest.read(folder).version == found.version:
            raise
        return read(folder, before)  # it was changed at this moment


def _open(folder: Path, found: Manifest, verified: frozenset[str]) -> Memory:
    if found.index is None:
        encoding = found.unfinished()
        done = f": {encoding.encoded} of {encoding.rows} images of {encoding.name} are encoded" if encoding else ""
        raise BadMemory(f"the memory in {folder} is not finished{done}. The command that builds it goes on with it")
    keys = map_keys(folder, found)
    for source, rows in found.slices():
        if source.is_gap or source.keys_sha256 in verified:
            continue
        damaged = glance(keys[rows]) != source.keys_glance
        if not damaged and keys[rows].nbytes <= VERIFIED_UP_TO:
            damaged = sha256(keys[rows]) != source.keys_sha256
        if damaged:
            raise BadMemory(
                f"{folder / found.keys} is damaged: its keys are not those of {source.name}. {_anew(folder)}"
            )
    tables, sums, small = [], [], []
    for source, _ in found.slices():
        if source.columns is None:
            tables.append(columns.blank(source.rows))
        else:
            path = _whole(folder, source.columns, verified)
            tables.append(columns.read(path, source.rows, len(found.class_names)))
        sums.append(read_sums(folder, found, source, verified))
        kept = source.thumbnails
        small.append(None if kept is None else thumbnails.read(_whole(folder, kept, verified), source.rows))
    texts, text_of, images = columns.split(tables)
    label_of = np.concatenate([np.zeros(0, np.int32), *map(columns.labels_of, tables)])
    opened = read_index(folder, found, keys[: found.indexed], verified=verified)
    if found.tail:
        opened = WithTail(opened, keys[found.indexed :])
    return Memory(folder, found, keys, texts, text_of, label_of, tuple(sums), images, opened, tuple(small))


def read_sums(folder: Path, found: Manifest, source: Source, verified: frozenset[str] = frozenset()) -> ClassSums:
    """The counts and sums of a finished source's classes."""
    if source.classes is None:
        return classes.none(found.width)
    path = _whole(folder, source.classes, verified)
    return classes.read(path, classes=len(found.class_names), width=found.width)


def map_keys(folder: Path, found: Manifest) -> np.ndarray:
    """The keys of all finished sources, [rows, width]."""
    dtype, path = np.dtype(found.recipe["keys"]), folder / found.keys
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing. {_anew(folder)}")
    needed = found.rows * found.width * dtype.itemsize
    if path.stat().st_size < needed:
        raise BadMemory(f"{path} was cut short: {path.stat().st_size} bytes of {needed}. {_anew(folder)}")
    if not needed:
        return np.zeros((0, found.width), dtype)
    return np.memmap(path, dtype, "r", shape=(found.rows, found.width))


def read_index(
    folder: Path, found: Manifest, keys: np.ndarray, *, writable: bool = False, verified: frozenset[str] = frozenset()
) -> Any:
    """The index, which must be of these keys."""
    assert found.index is not None
    path = _whole(folder, found.index, verified)
    try:
        opened = index.read(path, keys, found.recipe["index"], writable=writable)
    except MilvusFailed:
        raise
    except (RuntimeError, MemoryError, ValueError, KeyError, TypeError) as error:  # FAISS's own, or no JSON for Milvus
        reason = next(iter(str(error).splitlines()), repr(error))
        raise BadMemory(f"{path} cannot be read ({reason}). {_anew(folder)}") from error
    if len(opened) != len(keys) or opened.width != found.width:
        raise BadMemory(
            f"{path} holds {len(opened)} × {opened.width} numbers, "
            f"but the memory's keys are {len(keys)} × {found.width}. {_anew(folder)}"
        )
    return opened


def glance(keys: np.ndarray) -> str:
    """A digest of the first and last bytes of some keys: quick to read, and enough to detect another file."""
    flat = keys.reshape(-1)
    some = GLANCE // keys.itemsize
    return hashlib.sha256(flat[:some].tobytes() + flat[-some:].tobytes()).hexdigest()


def _whole(folder: Path, file: manifest.File, verified: frozenset[str] = frozenset()) -> Path:
    """The path of a file, after checking that it exists and has its original size and, unless verified, content."""
    path = folder / file.name
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing. {_anew(folder)}")
    if path.stat().st_size != file.bytes:
        raise BadMemory(
            f"{path} is damaged: {path.stat().st_size} bytes, and {file.bytes} were written. {_anew(folder)}"
        )
    if file.sha256 not in verified and file.bytes <= VERIFIED_UP_TO and described(path) != file:
        raise BadMemory(f"{path} is damaged (checksum). {_anew(folder)}")
    return path


def described(path: Path) -> manifest.File:
    """A file as it is on the disk."""
    with path.open("rb") as file:
        return manifest.File(path.name, path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


def in_parts(keys: np.ndarray) -> Iterator[np.ndarray]:
    """Keys [N, D] a few megabytes at a time."""
    step = max(1, CHUNK // (keys.shape[1] * keys.itemsize))
    for start in range(0, len(keys), step):
        yield keys[start : start + step]


def sha256(keys: np.ndarray) -> str:
    """The checksum of keys [N, D]."""
    digest = hashlib.sha256()
    for part in in_parts(keys):
        digest.update(part.tobytes())
    return digest.hexdigest()


def _anew(folder: Path) -> str:
    return f"Delete {folder} to rebuild it"
