"""manifest.json: what a memory's folder holds. It is replaced as a whole, so a change is made or it is not."""

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rac_jax.config import difference
from rac_jax.runtime import files

FORMAT = 3
NAME = "manifest.json"

ENABLED, DISABLED = "enabled", "disabled"
REMOVED = "removed"  # its rows stay in the files, and hidden, until the memory is compacted
ENCODING = "encoding"  # not all of its keys are written; it is not part of the memory yet

Recipe = dict[str, Any]


class BadMemory(ValueError):
    """A memory that cannot be used; the message says why and what would work."""


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

    @property
    def finished(self) -> bool:
        return self.state != ENCODING


@dataclasses.dataclass(frozen=True)
class Manifest:
    """All that is known of a memory without opening its files. Sources stand in the order of their rows."""

    version: int  # goes up with every change
    recipe: Recipe  # what keys and index are made by: encoder, preprocessing, keys, index
    weights: str  # where E's weights came from: config.model.encoder_weights
    width: int  # numbers in a key
    keys: str  # the file with all keys, one row after another
    index: File | None = None  # None before the first source is finished
    sources: tuple[Source, ...] = ()
    class_names: tuple[str, ...] = ()  # the class table: a label is a place in it. It only grows

    @property
    def fingerprint(self) -> str:
        """What can be retrieved, as one string: the recipe and the enabled sources."""
        inside = sorted(source.fingerprint for source in self.sources if source.state == ENABLED)
        return _digest({"recipe": self.recipe, "sources": inside})

    @property
    def rows(self) -> int:
        """Rows of all finished sources, whether they may be returned or not."""
        return sum(source.rows for source in self.sources if source.finished)

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

    def unfinished(self) -> Source | None:
        """The source that is being encoded, or was when its build was interrupted."""
        return next((source for source in self.sources if not source.finished), None)

    def with_source(self, changed: Source) -> "Manifest":
        """With the source of the same name (the one that is not removed) replaced."""
        now = self.source(changed.name)
        return dataclasses.replace(self, sources=tuple(changed if s is now else s for s in self.sources))


def exists(folder: Path) -> bool:
    """Is there a memory? A folder of something else is refused."""
    if (folder / NAME).exists():
        return True
    if folder.exists() and any(path.name != "lock" for path in folder.iterdir()):
        raise BadMemory(f"{folder} is not a memory (no {NAME}) and is not empty")
    return False


def read(folder: Path) -> Manifest:
    """The manifest; a missing, damaged or foreign one is an error that names it."""
    path = folder / NAME
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise BadMemory(
                f"{path} has format {content['format']}; this code reads {FORMAT}. Delete {folder} to build it anew"
            )
        if content["sha256"] != _digest(content["memory"]):
            raise BadMemory(f"{path} was edited or damaged: its checksum is not that of its content")
        memory = content["memory"]
        sources = tuple(_source(entry) for entry in memory.pop("sources"))
        class_names = tuple(memory["class_names"])
        return Manifest(**{**memory, "index": _file(memory["index"]), "sources": sources, "class_names": class_names})
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(f"there is no memory in {folder} (no {NAME})") from None
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError) as error:
        raise BadMemory(f"{path} is not a memory's manifest ({error!r})") from error


def write(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest: from here on the memory is what it says."""
    content = dataclasses.asdict(manifest)
    files.write_json(folder / NAME, {"format": FORMAT, "sha256": _digest(content), "memory": content})


def require_recipe(folder: Path, found: Recipe, wanted: Recipe) -> None:
    """Refuse a memory whose keys or index were made by another recipe, and say in what it differs."""
    differences = difference(found, json.loads(json.dumps(wanted)))
    if differences:
        lines = "\n".join(f"  {name}: {old!r} there, {new!r} wanted" for name, (old, new) in differences.items())
        raise BadMemory(
            f"the memory in {folder} was built by another recipe:\n{lines}\n"
            "Name another folder (--config.memory.dir or --workdir), or delete this one to build it anew."
        )


def _source(entry: dict[str, Any]) -> Source:
    return Source(**{**entry, "columns": _file(entry["columns"]), "classes": _file(entry["classes"])})


def _file(entry: dict[str, Any] | None) -> File | None:
    return None if entry is None else File(**entry)


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
