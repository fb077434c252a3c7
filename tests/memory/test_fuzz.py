"""Damaged memories, by the hundred: opening and checking end in one of our own errors, and no damage goes unnoticed."""

import contextlib
import json
import shutil

import numpy as np
import pytest

from rac_jax.memory import check, edit, index, manifest, store
from rac_jax.memory.manifest import BadMemory
from tests.memory.conftest import RECIPE, add

FLIPPED, FORGED = 600, 300
OURS = (BadMemory, FileNotFoundError)
ODD = [None, -1, 0, 1, 3, 2**70, 0.5, float("nan"), "", "x", "../x", "/", [], [1], {}, {"a": 1}, True]


@pytest.fixture(scope="module", params=["hnsw", "ivf_sq", "ivf_rabitq"])
def original(tmp_path_factory, request):
    """Two labelled sources, one of them disabled."""
    folder = tmp_path_factory.mktemp("fuzz") / "m"
    keys = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    edit.create(folder, {**RECIPE, "index": {**RECIPE["index"], "kind": request.param}}, width=8)
    add(folder, "one", keys, classes=("x", "y"), labels=np.arange(40, dtype=np.int32) % 3 - 1)
    add(folder, "two", keys[:7] + 1, classes=("y", "z"), labels=np.arange(7, dtype=np.int32) % 2)
    with edit.editing(folder) as editor:
        editor.set_state("two", manifest.DISABLED)
    return folder


def content(folder):
    """All that a memory answers."""
    memory = store.read(folder)
    queries = np.eye(4, 8, dtype=np.float32)
    rows, similarities = index.search(memory.index, queries, 9, 64, memory.allowed())
    texts, images = memory.texts.take(memory.text_of), list(memory.images)
    counts, sums = memory.class_counts(), memory.class_sums()
    return [rows, similarities, texts, images, memory.label_of, memory.class_names, counts, sums, memory.keys]


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def damaged(random, data):
    """A file's bytes with some changed, cut off, put in or doubled."""
    place, kind = int(random.integers(len(data))), random.integers(5)
    some = random.bytes(int(random.integers(1, 9)))
    if kind <= 1:
        return data[:place] + some[:1] + data[place + 1 :]
    if kind == 2:
        return data[:place]
    return data[:place] + some + data[place + (len(some) if kind == 3 else 0) :]


def test_changed_bytes_are_noticed(original, tmp_path):
    random, expected = np.random.default_rng(1), content(original)
    names = sorted(path.name for path in original.iterdir() if path.name not in ("lock", manifest.RESERVE))
    noticed = 0
    shutil.copytree(original, tmp_path / "m")
    for number in range(FLIPPED // 2):
        path = tmp_path / "m" / names[number % len(names)]
        data = path.read_bytes()
        path.write_bytes(damaged(random, data))
        if path.read_bytes() != data:
            opened = problems = None
            with contextlib.suppress(*OURS):
                opened = content(tmp_path / "m")
            with contextlib.suppress(*OURS):
                problems = check.problems(tmp_path / "m")
            assert opened is None or same(opened, expected), path.name
            assert problems != [] or (opened is not None and same(opened, expected)), path.name
            noticed += opened is None
        path.write_bytes(data)
    assert noticed > FLIPPED // 4
    assert same(content(tmp_path / "m"), expected)


def places(value, at=()):
    """The paths to all values in nested lists and dicts."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, under in inner:
        yield (*at, key)
        yield from places(under, (*at, key))


def test_forged_manifests_with_a_right_checksum(original, tmp_path):
    random, names = np.random.default_rng(2), []
    shutil.copytree(original, tmp_path / "m")
    victim = tmp_path / "x"
    victim.write_bytes(b"untouched")
    path = tmp_path / "m" / manifest.NAME
    found, ended = json.loads(path.read_text()), 0
    paths = list(places(found["memory"]))
    for _ in range(FORGED // 2):
        forged = json.loads(json.dumps(found))
        for _ in range(int(random.integers(1, 3))):
            at, value = paths[random.integers(len(paths))], ODD[random.integers(len(ODD))]
            with contextlib.suppress(KeyError, IndexError, TypeError):  # an outer value was replaced before
                under = forged["memory"]
                for key in at[:-1]:
                    under = under[key]
                under[at[-1]] = value
        forged["sha256"] = manifest._digest(forged["memory"])
        path.write_text(json.dumps(forged))
        for use in (store.read, check.problems):
            with contextlib.suppress(*OURS):
                names.append(use(tmp_path / "m"))
                ended -= 1
            ended += 1
    assert ended > FORGED // 4 and victim.read_bytes() == b"untouched"


@pytest.mark.parametrize("text", ["", "null", "[[[[", "[" * 100_000, '{"format": 3}', '{"format": {}}', "\x00", "NaN"])
def test_manifests_of_nothing(tmp_path, text):
    (tmp_path / manifest.NAME).write_text(text)
    with pytest.raises(BadMemory, match="manifest"):
        store.read(tmp_path)
