"""Single rows: add one to a source, remove one. The cost does not depend on the size of the memory.

A row that is added goes to the end of the keys, and is not indexed before there are many (index/tail.py). A row that is
removed stays in its place and is never returned. A source whose last row is not the memory's last gets another part: a
further entry of the manifest with the same name.
"""

import dataclasses
import hashlib
import itertools
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from rac_jax.memory import classes, columns, manifest, store, thumbnails
from rac_jax.memory.classes import NO_LABEL, ClassSums
from rac_jax.memory.edit import Editor
from rac_jax.memory.index.tail import longest
from rac_jax.memory.manifest import BY_ROW, DISABLED, ENABLED, REMOVED, BadMemory, Manifest, Source

FEW = 256  # removed rows that a source keeps in any case


@dataclasses.dataclass(frozen=True)
class Row:
    """An image as a row. It need not be a file: its thumbnail is kept."""

    key: np.ndarray  # [D], as E gives it
    text: str
    label: str | None
    image: str  # a name for it
    jpeg: bytes


@dataclasses.dataclass(frozen=True)
class Part:
    """The part of a source that grows by a row, as it is before."""

    start: int
    table: pa.Table
    jpegs: list[bytes]
    sums: ClassSums
    keys: np.ndarray  # [M, D]: those that have to be copied
    replaces: tuple[Source, ...] = ()  # parts whose rows it takes over
    grows: Source | None = None  # what it is now, if its rows stay where they are


def add(editor: Editor, name: str, row: Row) -> int:
    """Add a row to a source that consists of such rows; the first one begins it. Returns the row's number."""
    found = editor.manifest
    editor.require_finished()
    manifest.check_name(name)
    parts = [source for source in found.sources if source.name == name and source.state != REMOVED]
    key, known = editor.stored(row.key[None]), found.class_names
    if row.label is not None:
        known = tuple(dict.fromkeys((*known, row.label)))
    label = NO_LABEL if row.label is None else known.index(row.label)
    _refuse(editor, name, parts, row, label)
    part = _growing(editor, parts)
    table = columns.appended(part.table, row.text, row.image, label)
    editor.append_keys(np.concatenate([part.keys, key]))
    digest = hashlib.sha256(key.tobytes() + "\0".join((row.image, row.text, str(row.label))).encode())
    digest.update("".join(source.content for source in (part.grows, *part.replaces) if source).encode())
    begun = Source(name, ENABLED, 0, 0, BY_ROW, "", datetime.now(UTC).isoformat(timespec="seconds"), "")
    grown = dataclasses.replace(
        part.grows or begun, rows=len(table), encoded=len(table), fingerprint=digest.hexdigest()
    )
    others = _with_gaps([s for s in found.sources if s is not part.grows], part.replaces)
    keys = store.map_keys(editor.folder, dataclasses.replace(found, sources=(*others, grown)))
    grown = dataclasses.replace(
        grown,
        columns=editor.write("rows", table, columns.write),
        classes=editor.write("classes", classes.changed(part.sums, label, key[0], 1), classes.write),
        thumbnails=editor.write("thumbnails", [*part.jpegs, row.jpeg], thumbnails.write),
        keys_sha256=store.sha256(keys[part.start :]),
        keys_glance=store.glance(keys[part.start :]),
    )
    tail: dict[str, Any] = {"tail": len(keys) - found.indexed}
    if found.index is None or tail["tail"] > longest(found.indexed):
        tail = {"tail": 0, "index": editor.indexed(keys)}
    editor.commit(sources=(*others, grown), class_names=known, **tail)
    return len(keys) - 1


def remove(editor: Editor, number: int) -> None:
    """Remove a row."""
    found = editor.manifest
    editor.require_finished()
    source, position = _of(found, number)
    if sum(s.present for s in found.sources if s.state == ENABLED) == 1 and source.state == ENABLED:
        raise BadMemory(f"row {number} is the only one that is enabled; without it nothing can be answered")
    table = _table(editor, source)
    key = store.map_keys(editor.folder, found)[number]
    sums = classes.changed(
        store.read_sums(editor.folder, found, source), int(columns.labels_of(table)[position]), key, -1
    )
    changed = dataclasses.replace(
        source,
        removed=tuple(sorted((*source.removed, position))),
        classes=editor.write("classes", sums, classes.write),
    )
    editor.commit(sources=tuple(changed if s is source else s for s in found.sources))


def _of(found: Manifest, number: int) -> tuple[Source, int]:
    """The source of a row, and the row's place in it."""
    for source, rows in found.slices():
        if rows.start <= number < rows.stop and source.state != REMOVED and number - rows.start not in source.removed:
            return source, number - rows.start
    raise BadMemory(f"there is no row {number}")


def _with_gaps(sources: list[Source], replaced: tuple[Source, ...]) -> list[Source]:
    """The sources, with gaps in place of parts that were replaced or removed. Gaps that meet are one."""
    result: list[Source] = []
    for source in sources:
        if source in replaced or (source.state == REMOVED and source.origin == BY_ROW):
            before = result.pop().rows if result and result[-1].is_gap else 0
            rows = before + source.rows
            source = Source("", REMOVED, rows, rows, BY_ROW, "", source.added, "")
        result.append(source)
    return result


def _start(found: Manifest, source: Source) -> int:
    return next(rows.start for s, rows in found.slices() if s is source)


def free_name(found: Manifest, name: str) -> str:
    """A source that takes rows: of this name or, if that was added as a whole, of this name with a number."""
    whole = {source.name for source in found.sources if source.state != REMOVED and source.origin != BY_ROW}
    numbered = (f"{name} {number}" for number in itertools.count(2))
    return next(free for free in itertools.chain([name], numbered) if free not in whole)


def _refuse(editor: Editor, name: str, parts: list[Source], row: Row, label: int) -> None:
    """Refuse a source that takes no rows, and a row that it has."""
    for part in parts:
        if part.origin != BY_ROW:
            raise BadMemory(f"source {name!r} was added as a whole ({part.origin}); add rows to another source")
        if part.state == DISABLED:
            raise BadMemory(f"source {name!r} is disabled; enable it, then add to it")
        table, first = _table(editor, part), _start(editor.manifest, part)
        same = (columns.labels_of(table) == label) & (table["image"].to_numpy() == row.image)
        if row.label is None:  # then the texts tell rows apart
            same &= table["text"].cast(pa.large_string()).to_numpy() == row.text
        if len(there := np.setdiff1d(np.flatnonzero(same), part.removed)):
            which = "label" if row.label is not None else "text"
            raise BadMemory(f"this image is in source {name!r} already, with this {which}, as row {first + there[0]}")


def _growing(editor: Editor, parts: list[Source]) -> Part:
    """The part that a row is added to: the last one, if it is at the end of the memory, or a new one.

    A new one takes over the last parts that are small, so that a source has few parts and a row is seldom copied.
    """
    found, folder = editor.manifest, editor.folder
    nothing = np.zeros((0, found.width), found.recipe["keys"])
    last = parts[-1] if parts else None
    if last and _start(found, last) + last.rows == found.rows and len(last.removed) <= max(last.present, FEW):
        sums = store.read_sums(folder, found, last)
        return Part(_start(found, last), _table(editor, last), _jpegs(editor, last), sums, nothing, grows=last)
    taken: list[Source] = []
    while len(taken) < len(parts) and parts[-1 - len(taken)].present <= 2 * (1 + sum(s.present for s in taken)):
        taken.insert(0, parts[-1 - len(taken)])
    keys = store.map_keys(folder, found) if taken else nothing
    tables = [_table(editor, s).take(pa.array(s.present_rows())) for s in taken]
    texts, images, labels = [], [], [np.zeros(0, np.int32)]
    for table in tables:
        texts += table["text"].cast(pa.large_string()).to_pylist()
        images += table["image"].to_pylist()
        labels.append(columns.labels_of(table))
    moved = np.concatenate([nothing, *(keys[_start(found, s) + s.present_rows()] for s in taken)])
    joined = columns.make(pa.array(texts, pa.large_string()), images, np.concatenate(labels))
    small = [jpegs[row] for s in taken for jpegs in [_jpegs(editor, s)] for row in s.present_rows()]
    sums = classes.of_rows(columns.labels_of(joined), moved)
    return Part(found.rows, joined, small, sums, moved, replaces=tuple(taken))


def _table(editor: Editor, source: Source) -> pa.Table:
    assert source.columns is not None
    path = editor.folder / source.columns.name
    return columns.read(path, source.rows, len(editor.manifest.class_names))


def _jpegs(editor: Editor, source: Source) -> list[bytes]:
    assert source.thumbnails is not None
    kept = thumbnails.read(editor.folder / source.thumbnails.name, source.rows)
    return [kept[row] for row in range(source.rows)]
