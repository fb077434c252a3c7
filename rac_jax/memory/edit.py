"""Changing a memory: sources are added, hidden, removed; compacting deletes what was removed.

Files are written first and the manifest last. A process that is killed in between leaves the memory as it was, and
files that the manifest does not name; the next change deletes these.
"""

import contextlib
import dataclasses
import fcntl
import itertools
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from absl import logging
from tqdm import tqdm

from rac_jax.memory import classes, columns, index, manifest, store, thumbnails
from rac_jax.memory.classes import NO_LABEL
from rac_jax.memory.manifest import (
    BY_ROW,
    ENABLED,
    ENCODING,
    REMOVED,
    BadMemory,
    File,
    Locked,
    Manifest,
    Recipe,
    Source,
)
from rac_jax.runtime.files import atomic, write_bytes, writing

OURS = ("keys-*.bin", "rows-*.arrow", "classes-*.arrow", "index-*.faiss", "thumbnails-*.arrow", "*.writing-*")


@dataclasses.dataclass
class Editor:
    """The one writer of a memory."""

    folder: Path
    manifest: Manifest

    def start(
        self, name: str, *, rows: int, fingerprint: str, origin: str, root: str = "", thumbnails: bool = False
    ) -> int:
        """Begin a source, or continue it. Returns how many of its rows are encoded: all, if it was added before.

        A source that is new has thumbnails, one for each key that is appended, if `thumbnails` says so.
        """
        unfinished = self.manifest.unfinished()
        if unfinished and (unfinished.name, unfinished.fingerprint) != (name, fingerprint):
            self.require_finished()
        manifest.check_name(name)
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
            if thumbnails:
                unfinished = dataclasses.replace(unfinished, thumbnails=self._no_thumbnails())
            self.commit(sources=(*self.manifest.sources, unfinished))
        return self._cut(unfinished)

    def append(self, keys: np.ndarray, jpegs: Sequence[bytes] = ()) -> None:
        """Write further keys [M, D] of the source that was begun, and their thumbnails if it was begun with them.

        They are on the disk when this returns.
        """
        source = self.manifest.unfinished()
        assert source is not None
        if keys.shape[1] != self.manifest.width:
            raise BadMemory(f"keys of {keys.shape[1]} numbers; this memory's have {self.manifest.width}")
        if len(jpegs) != (len(keys) if source.thumbnails else 0):
            raise ValueError(f"{len(jpegs)} thumbnails for {len(keys)} keys of {source.name}")
        stored = self.stored(keys)
        if source.thumbnails:
            size = _append(self.folder / source.thumbnails.name, thumbnails.message(jpegs))
            source = dataclasses.replace(source, thumbnails=dataclasses.replace(source.thumbnails, bytes=size))
        _append(self._keys(), stored.tobytes())
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
        done = dataclasses.replace(source, state=ENABLED, columns=self.write("rows", table, columns.write))
        keys = store.map_keys(self.folder, self.manifest.with_source(done))
        sums = classes.of_rows(columns.labels_of(table), keys[before:])
        done = dataclasses.replace(
            done,
            classes=self.write("classes", sums, classes.write),
            keys_sha256=store.sha256(keys[before:]),
            keys_glance=store.glance(keys[before:]),
            thumbnails=source.thumbnails and store.described(self.folder / source.thumbnails.name),
        )
        sources = self.manifest.with_source(done).sources
        self.commit(index=self.indexed(keys), tail=0, sources=sources, class_names=known)

    def indexed(self, keys: np.ndarray) -> File:
        """An index of keys [N, D]: the memory's own, with those that it does not hold yet."""
        if self.manifest.index is None:
            return self._write_index(index.build(keys, self.manifest.recipe["index"]))
        built = store.read_index(self.folder, self.manifest, keys[: self.manifest.indexed], writable=True)
        return self._write_index(index.add(built, keys))

    def set_state(self, name: str, state: str) -> None:
        """Enable, disable or remove a source. Removing an unfinished source deletes it immediately."""
        source = self.manifest.source(name)
        if not source.finished and state != REMOVED:
            raise BadMemory(f"source {name!r} is not finished: {source.encoded} of {source.rows} images are encoded")
        if not source.finished:
            self.forget(source)
        elif source.state != state:
            parts = {id(s) for s in self.manifest.sources if s.name == name and s.state != REMOVED}  # see rows.py
            changed = (dataclasses.replace(s, state=state) if id(s) in parts else s for s in self.manifest.sources)
            self.commit(sources=tuple(changed))

    def rename(self, name: str, to: str) -> None:
        """Give a source another name, which no other source has."""
        self.require_finished()
        present = [source for source in self.manifest.sources if source.state != REMOVED]
        manifest.check_name(to)
        if any(source.name == to for source in present):
            raise BadMemory(f"there is a source {to!r} already; choose another name")
        mine = {id(source) for source in present if source.name == self.manifest.source(name).name}
        changed = (dataclasses.replace(s, name=to) if id(s) in mine else s for s in self.manifest.sources)
        self.commit(sources=tuple(changed))

    def forget(self, source: Source) -> None:
        """Drop a source that is not finished. Its keys are cut off first, which frees space on a full disk."""
        if self._keys().exists():
            with contextlib.suppress(OSError):
                os.truncate(self._keys(), self._bytes(self.manifest.rows))
        self.commit(sources=tuple(s for s in self.manifest.sources if s is not source))

    def compact(self) -> int:
        """Delete the rows of removed sources and rebuild the index. Returns how many were deleted."""
        self.require_finished()
        kept = [(source, rows) for source, rows in self.manifest.slices() if source.state != REMOVED]
        compacted = [self._without_removed(source) for source, _ in kept]
        keys = store.map_keys(self.folder, self.manifest)
        removed = self.manifest.rows - sum(source.rows for source in compacted)
        if not removed:
            return 0
        name = f"keys-{self.manifest.version + 1}.bin"
        with atomic(self.folder / name) as path, path.open("wb") as file:
            for (source, rows), after in zip(kept, compacted, strict=True):
                mine = keys[rows] if after is source else keys[rows][source.present_rows()]
                for part in tqdm(list(store.in_parts(mine)), desc=f"compact: {source.name}", leave=False):
                    file.write(part.tobytes())
        new = dataclasses.replace(self.manifest, keys=name, sources=tuple(compacted))
        self.manifest = dataclasses.replace(self.manifest, index=None)
        file_ = self.indexed(store.map_keys(self.folder, new))
        self.commit(keys=name, sources=new.sources, index=file_, tail=0)
        shutil.rmtree(self.folder / store.TOKENS, ignore_errors=True)  # those of remaining texts are made again
        return removed

    def _without_removed(self, source: Source) -> Source:
        """The same source after its removed rows are gone. Only one that was made row by row: others' rows have ids."""
        if not source.removed or source.origin != BY_ROW:
            return source
        assert source.columns is not None and source.thumbnails is not None
        present = source.present_rows()
        table = columns.read(self.folder / source.columns.name, source.rows, len(self.manifest.class_names))
        small = thumbnails.read(self.folder / source.thumbnails.name, source.rows)
        start = next(rows.start for other, rows in self.manifest.slices() if other is source)
        keys = store.map_keys(self.folder, self.manifest)[start + present]
        return dataclasses.replace(
            source,
            rows=len(present),
            encoded=len(present),
            removed=(),
            fingerprint=source.content,
            columns=self.write("rows", table.take(pa.array(present)), columns.write),
            thumbnails=self.write("thumbnails", [small[row] for row in present], thumbnails.write),
            keys_sha256=store.sha256(keys),
            keys_glance=store.glance(keys),
        )

    def stored(self, keys: np.ndarray) -> np.ndarray:
        """Keys as the file holds them; one that is not finite is refused."""
        if self.manifest.recipe["index"]["metric"] == "cosine":
            keys = index.unit(keys)
        stored = np.asarray(keys, self.manifest.recipe["keys"])
        if not np.isfinite(stored).all():
            row = int(np.flatnonzero(~np.isfinite(stored).all(axis=1))[0])
            raise NotFinite(row)
        return stored

    def write(self, name: str, content: Any, write: Callable[[Path, Any], None]) -> File:
        """A file of a source, under a name that is not taken. It counts when a manifest names it."""
        paths = (self.folder / f"{name}-{number}.arrow" for number in itertools.count(self.manifest.version + 1))
        path = next(path for path in paths if not path.exists())
        with atomic(path) as temporary:
            write(temporary, content)
        return store.described(path)

    def _write_index(self, built: Any) -> File:
        path = self.folder / f"index-{self.manifest.version + 1}.faiss"
        with atomic(path) as temporary:
            built.write(temporary)
        return store.described(path)

    def append_keys(self, keys: np.ndarray) -> None:
        """Write keys [M, D] in stored form after those of the memory's rows, in place of what is there."""
        if self._keys().exists():
            os.truncate(self._keys(), self._bytes(self.manifest.rows))  # left over from a change that was interrupted
        _append(self._keys(), keys.tobytes())

    def _replace(self, source: Source) -> None:
        self.commit(sources=self.manifest.with_source(source).sources)

    def commit(self, **changes: Any) -> None:
        """Make the change by replacing the manifest, then delete files that it no longer names.

        A manifest that could not be read again is refused.
        """
        changed = dataclasses.replace(self.manifest, version=self.manifest.version + 1, **changes)
        self.manifest = manifest.checked(self.folder / manifest.NAME, changed)
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

    def _no_thumbnails(self) -> File:
        """A file for the thumbnails of a source that begins."""
        path = self.folder / f"thumbnails-{self.manifest.version + 1}.arrow"
        write_bytes(path, thumbnails.START)
        return File(path.name, len(thumbnails.START), "")

    def _cut(self, source: Source) -> int:
        """Cut off keys and thumbnails of the unfinished source that were not committed. Returns how many it has.

        They may be fewer than the manifest says, if `forget` was interrupted: one with thumbnails then begins again.
        """
        before = self.manifest.rows
        there = self._keys().stat().st_size if self._keys().exists() else 0
        if there < self._bytes(before):
            raise BadMemory(
                f"{self._keys()} was cut short: {there} bytes of {self._bytes(before)}. "
                f"Delete {self.folder} to rebuild it"
            )
        encoded = min(source.encoded, there // self._bytes(1) - before)
        if small := source.thumbnails:
            path = self.folder / small.name
            if encoded < source.encoded or not path.exists() or path.stat().st_size < small.bytes:
                encoded, small = 0, self._no_thumbnails()
            else:
                os.truncate(path, small.bytes)
        if there > self._bytes(before + encoded):
            os.truncate(self._keys(), self._bytes(before + encoded))
        if encoded < source.encoded:
            self._replace(dataclasses.replace(source, encoded=encoded, thumbnails=small))
        return encoded

    def require_finished(self) -> None:
        """Refuse a change while a source is begun and not finished."""
        if source := self.manifest.unfinished():
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
                raise Locked(f"another process is changing the memory in {folder}; try again later") from None
            logging.warning("waiting for another process that is changing the memory in %s", folder)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _append(path: Path, content: bytes) -> int:
    """Write to the end of a file, and to the disk. Returns the file's size."""
    with writing(path), path.open("ab") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


def _grown(known: tuple[str, ...], table: pa.Table, class_names: Sequence[str]) -> tuple[str, ...]:
    """The class table and the names that rows of a source bring to it."""
    labels = np.unique(columns.labels_of(table))
    if not all(-1 <= label < len(class_names) for label in labels):
        raise ValueError(f"labels go from {labels[0]} to {labels[-1]}, but {len(class_names)} classes have names")
    used = (class_names[label] for label in labels if label != NO_LABEL)
    return tuple(dict.fromkeys((*known, *used)))
