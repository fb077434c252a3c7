"""manifest.json: what a memory's folder holds. It is replaced atomically, so a change is complete or absent."""

import contextlib
import dataclasses
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rac_jax.config import difference
from rac_jax.runtime import files

FORMAT = 3
NAME = "manifest.json"
RESERVE = "reserve"  # a file that is deleted when the disk is full, so that a new manifest can be written
FILE_NAMES = {
    "keys": r"keys-\d+\.bin",
    "rows": r"rows-\d+\.arrow",
    "classes": r"classes-\d+\.arrow",
    "index": r"index-\d+\.faiss",
    "thumbnails": r"thumbnails-\d+\.arrow",
}

ENABLED, DISABLED = "enabled", "disabled"
REMOVED = "removed"  # its rows stay in the files, and hidden, until the memory is compacted
ENCODING = "encoding"  # not all of its keys are written; it is not part of the memory yet
BY_ROW = "added one by one"  # the origin of a source that single rows are added to: see rows.py

Recipe = dict[str, Any]


class BadMemory(ValueError):
    """A memory that cannot be used; the message says why and what would work."""


class Locked(BadMemory):
    """Another process is changing the memory."""


@dataclasses.dataclass(frozen=True)
class File:
    """A file beside the manifest, as it was written."""

    name: str
    bytes: int
    sha256: str


@dataclasses.dataclass(frozen=True)
class Source:
    """A data set in the memory. The id of its image number i is the row `start + i`."""

    name: str
    state: str
    rows: int
    encoded: int  # rows whose keys are written: all, unless it is still being encoded
    origin: str  # where it came from, for people
    root: str  # the folder that the images' references are relative to; "" = they are no files
    added: str  # when
    fingerprint: str  # of the images and their texts
    columns: File | None = None  # texts, references and labels; None while it is being encoded
    classes: File | None = None  # counts and sums of keys for each class; None while it is being encoded
    keys_sha256: str = ""
    keys_glance: str = ""  # digest of the first and last bytes, which opening compares
    thumbnails: File | None = None  # a small JPEG of each row; without a checksum while it is being encoded
    removed: tuple[int, ...] = ()  # rows, counted from its first, that were removed one by one; ascending

    @property
    def finished(self) -> bool:
        return self.state != ENCODING

    @property
    def is_gap(self) -> bool:
        """Keys that nothing refers to any more: rows that were copied elsewhere, one by one (see rows.py)."""
        return self.state == REMOVED and self.columns is None

    @property
    def content(self) -> str:
        """The fingerprint of the rows that are left. It stays the same when the removed ones are deleted."""
        return _digest([self.fingerprint, *self.removed]) if self.removed else self.fingerprint

    @property
    def present(self) -> int:
        """How many rows it has, without those that were removed."""
        return self.rows - len(self.removed)

    def present_rows(self) -> np.ndarray:
        """These rows, counted from its first."""
        return np.setdiff1d(np.arange(self.rows), np.array(self.removed, np.int64))


@dataclasses.dataclass(frozen=True)
class Manifest:
    """Everything about a memory that can be known without opening its files. Sources are in the order of their rows."""

    version: int  # goes up with every change
    recipe: Recipe  # how keys and index are made: encoder, preprocessing, keys, index
    weights: str  # where E's weights came from: config.model.encoder.weights
    width: int  # numbers in a key
    keys: str  # the file with all keys, one row after another
    index: File | None = None  # None before the first source is finished
    sources: tuple[Source, ...] = ()
    class_names: tuple[str, ...] = ()  # the class table: a label is a place in it. It only grows
    tail: int = 0  # rows at the end that the index does not hold: see index/tail.py

    @property
    def fingerprint(self) -> str:
        """What can be retrieved, as one string: the recipe and the enabled sources."""
        inside = sorted(source.content for source in self.sources if source.state == ENABLED)
        return _digest({"recipe": self.recipe, "sources": inside})

    @property
    def rows(self) -> int:
        """Rows of all finished sources, whether they may be returned or not."""
        return sum(source.rows for source in self.sources if source.finished)

    @property
    def indexed(self) -> int:
        """How many of them the index holds."""
        return self.rows - self.tail

    def slices(self) -> Iterator[tuple[Source, slice]]:
        """The finished sources and where their rows are."""
        start = 0
        for source in self.sources:
            if source.finished:
                yield source, slice(start, start + source.rows)
                start += source.rows

    def source(self, name: str) -> Source:
        """The source of that name; one that was removed is not found."""
        known = [source for source in self.sources if source.state != REMOVED]
        for source in known:
            if source.name == name:
                return source
        raise BadMemory(f"there is no source {name!r}; there are: {', '.join(s.name for s in known) or 'none'}")

    def rows_by_source(self, *states: str) -> dict[str, int]:
        """How many rows the sources in these states have, without removed ones; by name, which parts share."""
        total: dict[str, int] = {}
        for source in self.sources:
            if source.state in states:
                total[source.name] = total.get(source.name, 0) + source.present
        return total

    def unfinished(self) -> Source | None:
        """The source that is being encoded, or was when its build was interrupted."""
        return next((source for source in self.sources if not source.finished), None)

    def with_source(self, changed: Source) -> "Manifest":
        """With the source of the same name (the one that is not removed) replaced."""
        now = self.source(changed.name)
        return dataclasses.replace(self, sources=tuple(changed if s is now else s for s in self.sources))


def files_of(manifest: Manifest) -> list[str]:
    """The names of the files that a memory consists of, beside the manifest."""
    of_sources = [(source.columns, source.classes, source.thumbnails) for source in manifest.sources]
    named = [manifest.index, *(file for files_ in of_sources for file in files_)]
    return [manifest.keys, *(file.name for file in named if file)]


def checksums(manifest: Manifest) -> Iterator[str]:
    """The checksums of the files, and of the keys of each source."""
    for source in manifest.sources:
        yield source.keys_sha256
        yield from (file.sha256 for file in (source.columns, source.classes, source.thumbnails) if file)
    if manifest.index:
        yield manifest.index.sha256


def exists(folder: Path) -> bool:
    """Is there a memory? A folder of something else is refused."""
    if folder.exists() and not folder.is_dir():
        raise BadMemory(f"{folder} is a file; a memory is a folder")
    if (folder / NAME).exists():
        return True
    if folder.exists() and any(path.name not in ("lock", RESERVE) for path in folder.iterdir()):
        raise BadMemory(f"{folder} is not a memory (no {NAME}) and is not empty")
    return False


def read(folder: Path) -> Manifest:
    """The manifest; a missing, damaged or foreign one is an error that names it."""
    path = folder / NAME
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise BadMemory(
                f"{path} has format {content['format']}; this code reads {FORMAT}. Delete {folder} to rebuild it"
            )
        if content["sha256"] != _digest(content["memory"]):
            raise BadMemory(f"{path} was edited or damaged: its checksum is not that of its content")
        memory = content["memory"]
        sources = tuple(_source(entry) for entry in memory.pop("sources"))
        parts = {"index": _file(memory["index"]), "sources": sources, "class_names": tuple(memory["class_names"])}
        return checked(path, Manifest(**{**memory, **parts}))
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(f"there is no memory in {folder} (no {NAME})") from None
    except OSError as error:
        raise BadMemory(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, BadMemory):
            raise
        raise BadMemory(f"{path} is not a memory's manifest ({error!r})") from error


def checked(path: Path, manifest: Manifest) -> Manifest:
    """Refuse values that are impossible, and file names that point outside the folder."""
    files_ = {"keys": manifest.keys, "index": manifest.index and manifest.index.name}
    for source in manifest.sources:
        files_ |= {f"rows of {source.name}": source.columns and source.columns.name}
        files_ |= {f"classes of {source.name}": source.classes and source.classes.name}
        files_ |= {f"thumbnails of {source.name}": source.thumbnails and source.thumbnails.name}
    for use, name in files_.items():
        kind = use.partition(" ")[0]
        if name is not None and not re.fullmatch(FILE_NAMES[kind], str(name)):
            raise BadMemory(f"{path} names {name!r} for {use}: it must be a file in this folder, as {kind}-1")
    recipe = manifest.recipe
    holds = [
        _is_count(manifest.version) and _is_count(manifest.width) and manifest.width > 0,
        _is_count(manifest.tail) and manifest.tail <= manifest.rows,
        isinstance(manifest.weights, str),
        recipe["keys"] in ("float32", "float16"),
        recipe["index"]["metric"] in ("cosine", "l2"),
        recipe["index"]["kind"] in ("auto", "flat", "hnsw", "hnsw_sq", "ivf_sq", "ivf_rabitq", "milvus"),
        all(_is_count(recipe["index"].get(name, 2)) for name in ("m", "ef_construction")),
        all(isinstance(name, str) for name in manifest.class_names),
        len(set(manifest.class_names)) == len(manifest.class_names),
        all(map(_plausible, manifest.sources)),
        sum(not source.finished for source in manifest.sources) <= 1,
        (manifest.index is not None) == any(map(_has_rows, manifest.sources)) or not manifest.rows,
    ]
    if not all(holds):
        raise BadMemory(f"{path} is not a memory's manifest: its values do not fit together")
    return manifest


def check_name(source: str) -> None:
    """Refuse a name that is empty or that addresses (/api/sources/<name>) cannot have."""
    if source in ("", ".", ".."):
        raise BadMemory(f"a source cannot be named {source!r}; choose another name")


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**40


def _has_rows(source: Source) -> bool:
    return source.finished and source.rows > 0


def _plausible(source: Source) -> bool:
    """Could a source have these values?"""
    texts = (source.name, source.origin, source.root, source.added, source.fingerprint)
    return (
        source.state in (ENABLED, DISABLED, REMOVED, ENCODING)
        and all(isinstance(text, str) for text in (*texts, source.keys_sha256, source.keys_glance))
        and _is_count(source.rows)
        and _is_count(source.encoded)
        and source.encoded <= source.rows
        and all(_is_count(row) and row < source.rows for row in source.removed)
        and list(source.removed) == sorted(set(source.removed))
        and (not source.finished or source.is_gap or (source.columns is not None and source.classes is not None))
    )


def write(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest, which makes the change take effect."""
    content = dataclasses.asdict(manifest)
    document = {"format": FORMAT, "sha256": _digest(content), "memory": content}
    reserve = folder / RESERVE
    try:
        files.write_json(folder / NAME, document)
    except OSError:
        if not reserve.exists():
            raise
        reserve.unlink()
        files.write_json(folder / NAME, document)
    with contextlib.suppress(OSError):  # a full disk: there will be one after the next change
        _keep_reserve(reserve, 2 * (folder / NAME).stat().st_size)


def _keep_reserve(path: Path, size: int) -> None:
    """A file of zeros with at least this many bytes."""
    if not path.exists() or path.stat().st_size < size:
        with files.atomic(path) as temporary:
            temporary.write_bytes(bytes(2 * size))


def require_recipe(folder: Path, found: Recipe, wanted: Recipe) -> None:
    """Refuse a memory whose keys or index were made by another recipe, and list the differences."""
    differences = difference(found, json.loads(json.dumps(wanted)))
    if differences:
        lines = "\n".join(f"  {name}: {old!r} there, {new!r} wanted" for name, (old, new) in differences.items())
        raise BadMemory(
            f"the memory in {folder} was built by another recipe:\n{lines}\n"
            "Name another folder (--config.memory.dir or --workdir), or delete this one to rebuild it."
        )


def _source(entry: dict[str, Any]) -> Source:
    files_ = {name: _file(entry[name]) for name in ("columns", "classes")}
    removed = tuple(entry.get("removed", ()))
    return Source(**{**entry, **files_, "thumbnails": _file(entry.get("thumbnails")), "removed": removed})


def _file(entry: dict[str, Any] | None) -> File | None:
    texts = ("name", "sha256")
    if entry is not None and not (_is_count(entry["bytes"]) and all(isinstance(entry[name], str) for name in texts)):
        raise TypeError(f"a file is not described by {entry}")
    return None if entry is None else File(**entry)


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
