"""Copies of training images in other sources are left out in training."""

import jax.numpy as jnp
import numpy as np
import pytest

from rac_jax import config as configs
from rac_jax import sharding
from rac_jax.memory import edit, manifest, store
from rac_jax.retrieval import callback, duplicates
from rac_jax.retrieval.lookup import KEEP_ALL, Lookup
from rac_jax.retrieval.snippets import Snippets
from tests.memory.conftest import RECIPE, add, make

OWN = np.arange(40, dtype=np.int32)


@pytest.fixture(params=["cosine", "l2"])
def copied(tmp_path, keys, request):
    """The training images; a source with copies of the first 20 and others; and, hidden, copies of all."""
    recipe = {**RECIPE, "index": {"kind": "flat", "metric": request.param}}
    folder = make(tmp_path / "copied", keys, recipe).folder
    others = np.roll(keys[20:], 3, axis=1)
    add(folder, "more", np.concatenate([keys[:20] + np.float32(1e-3), others]))
    add(folder, "hidden", keys)
    with edit.editing(folder) as editor:
        editor.set_state("hidden", manifest.DISABLED)
    return store.read(folder)


def lookup(memory, snippets, groups, k=5):
    return Lookup(memory, Snippets.tokenise(memory.texts, snippets.tokenizer), k, 64, "id", groups)


def test_rows_of_the_same_image_are_one_group(copied):
    groups = duplicates.groups(copied, "f", 0.9999, 64)
    assert groups[40:60].tolist() == list(range(20))
    untouched = [*range(40), *range(60, 120)]
    assert groups[untouched].tolist() == untouched


def test_no_copies_no_groups(memory, keys):
    assert duplicates.groups(memory, "f", 0.9999, 64) is None  # one source
    add(memory.folder, "more", np.roll(keys, 3, axis=1))
    memory = store.read(memory.folder)
    assert duplicates.groups(memory, "f", 0.9999, 64) is None
    add(memory.folder, "copies", keys)
    memory = store.read(memory.folder)
    assert duplicates.groups(memory, "f", 0.0, 64) is None  # off
    assert duplicates.groups(memory, "not inside", 0.9999, 64) is None


@pytest.mark.parametrize("copies", [30, 100, 300])
def test_an_image_with_many_copies(memory, keys, copies):
    add(memory.folder, "many", np.repeat(keys[:1], copies, axis=0))
    memory = store.read(memory.folder)
    groups = duplicates.groups(memory, "f", 0.9999, 64)
    assert groups[40:].tolist() == [0] * copies


def test_more_copies_than_are_looked_for_are_a_warning(memory, keys, caplog, monkeypatch):
    monkeypatch.setattr(duplicates, "MOST", 16)
    add(memory.folder, "many", np.repeat(keys[:1], 20, axis=0))
    groups = duplicates.groups(store.read(memory.folder), "f", 0.9999, 64)
    assert (groups[40:] == 0).sum() == 16
    assert "1 of the training images have more than 16 copies: some are not left out" in caplog.text


def test_own_rows_are_of_the_class_of_the_image_where_there_is_one(memory):
    row_label = np.repeat(np.array([0, 1, -1, 3], np.int32), 10)
    pairs = np.array([[0, 25], [0, 12], [0, 1], [2, 35], [2, 36]])
    own, groups = duplicates.own_rows(pairs, np.array([1, 1, 0]), memory, row_label)
    assert own.tolist() == [12, -1, 35]
    assert groups[[1, 12, 25]].tolist() == [1, 1, 1] and groups[[35, 36]].tolist() == [35, 35] and groups[34] == 34
    own, groups = duplicates.own_rows(np.zeros((0, 2), np.int64), np.array([1, 1]), memory, row_label)
    assert own.tolist() == [-1, -1] and groups.tolist() == list(range(40))


def test_augmented_queries_leave_out_their_copies_and_keep_k_neighbours(copied, snippets, keys):
    found = lookup(copied, snippets, duplicates.groups(copied, "f", 0.9999, 64))
    alone = lookup(copied, snippets, None, k=7)
    augmented = keys + np.float32(0.05)
    rows = found.search(augmented, OWN).rows
    left = alone.search(augmented, np.full(40, KEEP_ALL, np.int32)).rows
    for row, mine in enumerate(left):
        assert rows[row].tolist() == [r for r in mine if r not in (row, row + 40 if row < 20 else row)][:5]
    evaluated = found.search(augmented, np.full(40, KEEP_ALL, np.int32)).rows
    np.testing.assert_array_equal(evaluated, left[:, :5])  # evaluation leaves nothing out


def test_the_devices_leave_out_the_same(copied, snippets, keys):
    part = lookup(copied, snippets, duplicates.groups(copied, "f", 0.9999, 64))
    mesh = sharding.make_mesh(configs.default())
    program = callback.on_device(lambda _, images: images, part, mesh, "float32")
    own = np.where(OWN % 4 == 3, KEEP_ALL, OWN).astype(np.int32)
    queries = keys + np.float32(0.05)
    placed = sharding.put_batch(mesh, {"image": queries, "own": own})
    on_device, expected = program({}, placed["image"], placed["own"]), part.search(queries, own)
    np.testing.assert_array_equal(on_device["rows"], expected.rows)
    np.testing.assert_array_equal(on_device["tokens"], expected.tokens)
    assert on_device["rows"].dtype == jnp.int32


def test_where_too_few_are_left_the_rest_is_missing(copied, snippets, keys):
    rows = lookup(copied, snippets, duplicates.groups(copied, "f", 0.9999, 64), k=79).search(keys[:1], OWN[:1]).rows
    assert (rows[0, :78] >= 0).all() and rows[0, 78] == -1


def test_only_copies_with_the_same_label_are_among_the_rows_of_its_class():
    group = np.array([0, 1, 0, 0, 0, 1])
    labels, enabled = np.array([3, 3, 3, -1, 5, 3]), np.array([1.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    assert duplicates.alike(group, labels, enabled).tolist() == [2, 1, 2, 1, 1, 1]
