"""Changing a memory: sources are added, hidden, removed; compacting deletes what was removed.

Files are written first and the manifest last. A process that is killed in between leaves the memory as it was, and
files that the manifest does not name; the next change deletes these.
"""

import contextlib
import dataclasses
import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from absl import logging
from tqdm import tqdm

from rac_jax.memory import classes, columns, index, manifest, store
from rac_jax.memory.classes import NO_LABEL
from rac_jax.memory.manifest import ENABLED, ENCODING, REMOVED, BadMemory, File, Manifest, Recipe, Source
from rac_jax.runtime.files import atomic, writing

OURS = ("keys-*.bin", "rows-*.arrow", "classes-*.arrow", "index-*.faiss", "*.writing-*")


@dataclasses.dataclass
class Editor:
    """The one writer of a memory."""

    folder: Path
    manifest: Manifest

    def start(self, name: str, *, rows: int, fingerprint: str, origin: str, root: str = "") -> int:
        """Begin a source, or continue it. Returns how many of its rows are encoded: all, if it was added before."""
        unfinished = self.manifest.unfinished()
        if unfinished and (unfinished.name, unfinished.fingerprint) != (name, fingerprint):
            self._refuse_unfinished(unfinished)
        if not rows:
            raise BadMemory(f"source {name!r} has no images")
        for source in self.manifest.sources:
            if source.state == REMOVED or not source.finished:
                continue
            if (source.name, source.fingerprint) == (name, fingerprint):
                return source.rows
            if source.name == name:
                raise BadMemory(f"there is a source {name!r} already; choose another name, or remove it first")
            if source.fingerprint == fingerprint:
                raise BadMemory(f"these images are in the memory already, as source {source.name!r}")
        if not unfinished:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            unfinished = Source(name, ENCODING, rows, 0, origin, root, now, fingerprint)
            self._commit(sources=(*self.manifest.sources, unfinished))
        return self._cut_keys(unfinished)

    def append(self, keys: np.ndarray) -> None:
        """Write further keys [M, D] of the source that was begun. They are on the disk when this returns."""
        source = self.manifest.unfinished()
        assert source is not None
        if keys.shape[1] != self.manifest.width:
            raise BadMemory(f"keys of {keys.shape[1]} numbers; this memory's have {self.manifest.width}")
        stored = self._stored(keys)
        with writing(self._keys()), self._keys().open("ab") as file:
            file.write(stored.tobytes())
            file.flush()
            os.fsync(file.fileno())
        self._replace(dataclasses.replace(source, encoded=source.encoded + len(keys)))

    def finish(self, table: pa.Table, class_names: Sequence[str] = ()) -> None:
        """All keys are there: add their columns, index them, and make the source part of the memory.

        Labels in the table are numbers in `class_names`; the memory's own class table grows by the names that are new.
        """
        source = self.manifest.unfinished()
        assert source is not None
        if not source.encoded == source.rows == len(table):
            raise ValueError(f"{source.encoded} keys and {len(table)} texts for {source.rows} rows of {source.name}")
        before, known = self.manifest.rows, _grown(self.manifest.class_names, table, class_names)
        place = {name: number for number, name in enumerate(known)}
        table = columns.relabelled(table, np.array([place.get(name, NO_LABEL) for name in class_names], np.int32))
        done = dataclasses.replace(source, state=ENABLED, columns=self._write("rows", table, columns.write))
        keys = store.map_keys(self.folder, self.manifest.with_source(done))
        sums = classes.of_rows(columns.labels_of(table), keys[before:])
        done = dataclasses.replace(
            done,
            classes=self._write("classes", sums, classes.write),
            keys_sha256=store.sha256(keys[before:]),
            keys_glance=store.glance(keys[before:]),
        )
        if before:
            built = store.read_index(self.folder, self.manifest, keys[:before], writable=True)
            built = index.add(built, keys[before:])
        else:
            built = index.build(keys, self.manifest.recipe["index"])
        sources = self.manifest.with_source(done).sources
        self._commit(index=self._write_index(built), sources=sources, class_names=known)

    def set_state(self, name: str, state: str) -> None:
        """Enable, disable or remove a source. Removing an unfinished source deletes it immediately."""
        source = self.manifest.source(name)
        if not source.finished and state != REMOVED:
            raise BadMemory(f"source {name!r} is not finished: {source.encoded} of {source.rows} images are encoded")
        if not source.finished:
            self.forget(source)
        elif source.state != state:
            self._replace(dataclasses.replace(source, state=state))

    def forget(self, source: Source) -> None:
        """Drop a source that is not finished. Its keys are cut off first, which frees space on a full disk."""
        if self._keys().exists():
            with contextlib.suppress(OSError):
                os.truncate(self._keys(), self._bytes(self.manifest.rows))
        self._commit(sources=tuple(s for s in self.manifest.sources if s is not source))

    def compact(self) -> int:
        """Delete the rows of removed sources and rebuild the index. Returns how many were deleted."""
        if unfinished := self.manifest.unfinished():
            self._refuse_unfinished(unfinished)
        removed = sum(source.rows for source in self.manifest.sources if source.state == REMOVED)
        if not removed:
            return 0
        number = self.manifest.version + 1
        keys = store.map_keys(self.folder, self.manifest)
        with atomic(self.folder / f"keys-{number}.bin") as path, path.open("wb") as file:
            for source, rows in self.manifest.slices():
                if source.state != REMOVED:
                    for part in tqdm(list(store.in_parts(keys[rows])), desc=f"compact: {source.name}", leave=False):
                        file.write(part.tobytes())
        sources = tuple(source for source in self.manifest.sources if source.state != REMOVED)
        compacted = dataclasses.replace(self.manifest, keys=f"keys-{number}.bin", sources=sources)
        built = index.build(store.map_keys(self.folder, compacted), self.manifest.recipe["index"])
        self._commit(keys=compacted.keys, sources=sources, index=self._write_index(built))
        return removed

    def _stored(self, keys: np.ndarray) -> np.ndarray:
        """Keys as the file holds them; one that is not finite is refused."""
        if self.manifest.recipe["index"]["metric"] == "cosine":
            keys = index.unit(keys)
        stored = np.asarray(keys, self.manifest.recipe["keys"])
        if not np.isfinite(stored).all():
            row = int(np.flatnonzero(~np.isfinite(stored).all(axis=1))[0])
            raise NotFinite(row)
        return stored

    def _write(self, name: str, content: Any, write: Callable[[Path, Any], None]) -> File:
        """A file of the source that is being finished."""
        path = self.folder / f"{name}-{self.manifest.version + 1}.arrow"
        with atomic(path) as temporary:
            write(temporary, content)
        return store.described(path)

    def _write_index(self, built: Any) -> File:
        path = self.folder / f"index-{self.manifest.version + 1}.faiss"
        with atomic(path) as temporary:
            built.write(temporary)
        return store.described(path)

    def _replace(self, source: Source) -> None:
        self._commit(sources=self.manifest.with_source(source).sources)

    def _commit(self, **changes: Any) -> None:
        """Make the change by replacing the manifest, then delete files that it no longer names."""
        self.manifest = dataclasses.replace(self.manifest, version=self.manifest.version + 1, **changes)
        manifest.write(self.folder, self.manifest)
        self.sweep()

    def delete_empty(self) -> None:
        """Delete a memory that has no sources, as if it had not been created."""
        if not self.manifest.sources:
            for name in (self.manifest.keys, manifest.RESERVE, manifest.NAME):
                (self.folder / name).unlink(missing_ok=True)

    def sweep(self) -> None:
        """Delete files that the manifest does not name: old ones, and those of an interrupted change."""
        named = manifest.files_of(self.manifest)
        for pattern in OURS:
            for path in self.folder.glob(pattern):
                if path.name not in named:
                    path.unlink()

    def _keys(self) -> Path:
        return self.folder / self.manifest.keys

    def _bytes(self, rows: int) -> int:
        """The size of so many keys in the file."""
        return rows * self.manifest.width * np.dtype(self.manifest.recipe["keys"]).itemsize

    def _cut_keys(self, source: Source) -> int:
        """Cut off keys of the unfinished source that were not committed. Returns how many it has.

        They may be fewer than the manifest says, if `forget` was interrupted.
        """
        before = self.manifest.rows
        there = self._keys().stat().st_size if self._keys().exists() else 0
        if there < self._bytes(before):
            raise BadMemory(
                f"{self._keys()} was cut short: {there} bytes of {self._bytes(before)}. "
                f"Delete {self.folder} to rebuild it"
            )
        encoded = min(source.encoded, there // self._bytes(1) - before)
        if there > self._bytes(before + encoded):
            os.truncate(self._keys(), self._bytes(before + encoded))
        if encoded < source.encoded:
            self._replace(dataclasses.replace(source, encoded=encoded))
        return encoded

    def _refuse_unfinished(self, source: Source) -> None:
        raise BadMemory(
            f"source {source.name!r} is not finished: {source.encoded} of {source.rows} images are encoded. "
            "Finish it with the command that began it, or remove it"
        )


class NotFinite(ValueError):
    """A key that is not a finite number; `row` is its place among those that were appended."""

    def __init__(self, row: int):
        super().__init__(f"key {row} is not finite")
        self.row = row


def create(folder: Path, recipe: Recipe, *, width: int, weights: str = "", wait: bool = False) -> None:
    """An empty memory, unless there is one."""
    manifest.exists(folder)  # a folder of something else is refused before anything is written
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder, wait):
        if not manifest.exists(folder):
            manifest.write(folder, Manifest(0, recipe, weights, width, "keys-0.bin"))


@contextlib.contextmanager
def editing(folder: Path, *, wait: bool = False) -> Iterator[Editor]:
    """The memory's only writer at a time. Readers are not affected."""
    manifest.read(folder)
    with _locked(folder, wait):
        editor = Editor(folder, manifest.read(folder))
        editor.sweep()
        yield editor


@contextlib.contextmanager
def _locked(folder: Path, wait: bool) -> Iterator[None]:
    """Hold the folder's lock, which the system releases when the process ends, even if it is killed."""
    with writing(folder):
        file = (folder / "lock").open("w")
    with file as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                raise BadMemory(f"another process is changing the memory in {folder}; try again later") from None
            logging.warning("waiting for another process that is changing the memory in %s", folder)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _grown(known: tuple[str, ...], table: pa.Table, class_names: Sequence[str]) -> tuple[str, ...]:
    """The class table and the names that rows of a source bring to it."""
    labels = np.unique(columns.labels_of(table))
    if not all(-1 <= label < len(class_names) for label in labels):
        raise ValueError(f"labels go from {labels[0]} to {labels[-1]}, but {len(class_names)} classes have names")
    used = (class_names[label] for label in labels if label != NO_LABEL)
    return tuple(dict.fromkeys((*known, *used)))
