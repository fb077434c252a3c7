"""Labels, class counts and sums of keys, and rows of the same image, under any sequence of edits."""

import dataclasses
import os

import numpy as np
import pytest

from rac_jax.memory import classes, edit, index, manifest, store
from tests.memory.conftest import RECIPE, add, votes

NAMES = ("ant", "bee", "cow", "dog", "elk")
WIDTH = 6
EDITS = 250


@dataclasses.dataclass(frozen=True)
class Part:
    """A source as it was added: keys, labels (−1 for none) and the order of class names that it used."""

    name: str
    keys: np.ndarray
    labels: np.ndarray
    class_names: tuple[str, ...]
    enabled: bool = True


def made(random, number):
    rows = int(random.integers(1, 12))
    names = tuple(map(str, random.permutation(NAMES)[: random.integers(1, 5)]))  # each source numbers them anew
    labels = random.integers(-1, len(names), rows).astype(np.int32)
    keys = random.normal(size=(rows, WIDTH)).astype(np.float32)
    return Part(f"source{number}_", keys, labels, names)


def put(folder, part):
    add(folder, part.name, part.keys, classes=part.class_names, labels=part.labels)


def answers(folder, queries, k=5):
    """What a memory says, by names, for row numbers and the order of its class table depend on its history."""
    memory = store.read(folder)
    rows, similarities = index.search(memory.index, queries, k, 64, memory.allowed())
    named = (*memory.class_names, None)
    counts, sums = memory.class_counts(), memory.class_sums()
    assert counts.dtype == np.int64 and sums.dtype == np.float64 and sums.shape == (len(counts), WIDTH)
    return {
        "found": [[(memory.images[row], named[memory.label_of[row]]) for row in mine if row >= 0] for mine in rows],
        "similarities": np.where(rows < 0, 0, similarities).tolist(),
        "counts": {name: int(count) for name, count in zip(memory.class_names, counts, strict=True) if count},
        "sums": {name: sums[i].tolist() for i, name in enumerate(memory.class_names) if counts[i]},
        "votes": {name: np.round(shares, 5).tolist() for name, shares in votes(memory, rows, similarities).items()},
    }


def from_scratch(folder, parts, recipe):
    """A memory of the enabled sources alone."""
    edit.create(folder, recipe, width=WIDTH)
    for part in parts:
        if part.enabled:
            put(folder, part)
    return folder


def test_after_any_edits_counts_sums_and_answers_are_those_of_a_memory_built_from_scratch(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)  # thousands of them, and nothing is switched off here
    recipe = {**RECIPE, "keys": "float16", "index": {"kind": "flat", "metric": "cosine"}}
    random = np.random.default_rng(7)
    folder, parts, removed = tmp_path / "m", [made(random, 0)], set()
    edit.create(folder, recipe, width=WIDTH)
    put(folder, parts[0])
    queries = random.normal(size=(3, WIDTH)).astype(np.float32)
    for number in range(1, EDITS):
        choice = str(random.choice(["add", "remove", "disable", "enable", "compact"], p=[0.3, 0.25, 0.2, 0.2, 0.05]))
        if choice == "add" or not parts:
            parts.append(made(random, number))
            put(folder, parts[-1])
        else:
            place = int(random.integers(len(parts)))
            name = parts[place].name
            with edit.editing(folder) as editor:
                if choice == "compact":
                    editor.compact()
                elif choice == "remove":
                    editor.set_state(name, manifest.REMOVED)
                    removed.add(parts.pop(place).name)
                else:
                    editor.set_state(name, {"disable": manifest.DISABLED, "enable": manifest.ENABLED}[choice])
                    parts[place] = dataclasses.replace(parts[place], enabled=choice == "enable")
        if number % 10 == 0 and any(part.enabled for part in parts):
            now = answers(folder, queries, k=60)
            assert now == answers(from_scratch(tmp_path / f"scratch{number}", parts, recipe), queries, k=60)
            assert not {image.partition("_")[0] + "_" for mine in now["found"] for image, _ in mine} & removed
    assert len(removed) > 20


def test_counts_and_sums_of_the_rows_that_are_kept(memory, keys):
    labels = np.arange(40, dtype=np.int32) % 3 - 1  # a third has none
    add(memory.folder, "more", keys[::-1], classes=("x", "y"), labels=labels)
    memory = store.read(memory.folder)
    assert memory.class_names == ("x", "y")
    assert memory.label_of.tolist() == [-1] * 40 + labels.tolist()
    assert memory.class_counts().tolist() == [13, 13]
    stored = np.asarray(memory.keys[40:], np.float64)
    np.testing.assert_allclose(memory.class_sums(), [stored[labels == i].sum(axis=0) for i in (0, 1)], rtol=1e-13)
    kept = np.arange(80) >= 60
    part = dataclasses.replace(memory, kept=kept)
    assert part.class_counts().tolist() == [(labels[20:] == 0).sum(), (labels[20:] == 1).sum()]
    expected = [stored[20:][labels[20:] == i].sum(axis=0) for i in (0, 1)]
    np.testing.assert_allclose(part.class_sums(), expected, rtol=1e-13)


def test_a_name_is_one_class_whatever_number_a_source_gives_it(memory, keys):
    add(memory.folder, "one", keys[:4], classes=("bee", "ant", "no row has it"), labels=np.array([0, 1, 1, -1]))
    add(memory.folder, "two", keys[:3] + 1, classes=("ant", "cow"), labels=np.array([0, 1, 0]))
    memory = store.read(memory.folder)
    assert memory.class_names == ("bee", "ant", "cow")  # in order of arrival, and only what a row has
    assert memory.label_of[40:].tolist() == [0, 1, 1, -1, 1, 2, 1]
    assert memory.class_counts().tolist() == [1, 4, 1]
    with pytest.raises(ValueError, match="labels go from 0 to 2, but 1 classes have names"):
        add(memory.folder, "three", keys[:3] + 2, classes=("ant",), labels=np.array([0, 1, 2]))


def test_sums_in_chunks_are_the_sums(monkeypatch):
    random = np.random.default_rng(0)
    labels, keys = random.integers(-1, 4, 50).astype(np.int32), random.normal(size=(50, 3)).astype(np.float32)
    labels[labels == 2] = 1  # a class without rows
    monkeypatch.setattr(classes, "CHUNK", 7)
    found = classes.of_rows(labels, keys)
    assert found.labels.tolist() == [0, 1, 3] and found.counts.tolist() == [(labels == i).sum() for i in (0, 1, 3)]
    expected = [keys[labels == i].astype(np.float64).sum(axis=0) for i in (0, 1, 3)]
    np.testing.assert_allclose(found.sums, expected, rtol=1e-13)


def test_no_labels_at_all(memory):
    assert memory.class_names == () and memory.class_counts().shape == (0,) and memory.class_sums().shape == (0, 8)
