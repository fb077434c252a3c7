"""Familiarity: the rank of an image's nearness among held-out images."""

import numpy as np
import pytest

from rac_jax.memory import index
from rac_jax.retrieval import familiarity
from rac_jax.retrieval.lookup import Lookup
from tests.memory.conftest import make


@pytest.fixture
def lookup(tmp_path, keys):
    return Lookup(make(tmp_path / "m", keys), None, 5, 64, "id")


def nearest(lookup, queries):
    own = np.full(len(queries), -2, np.int32)
    found = lookup.search(np.asarray(queries, np.float32), own)
    return found.rows, found.similarities


def test_the_reference_is_of_the_nearest_other_rows(lookup):
    stored = np.asarray(lookup.memory.keys)
    cosines = stored @ stored.T
    np.fill_diagonal(cosines, -2)
    expected = np.sort(np.sort(cosines, axis=1)[:, -3:].mean(axis=1))
    np.testing.assert_allclose(familiarity.reference(lookup), expected, rtol=1e-5)


def test_the_reference_of_held_out_images_is_of_their_nearest_rows(lookup):
    stored, held_out = (
        np.asarray(lookup.memory.keys),
        np.random.default_rng(1).normal(size=(30, lookup.memory.keys.shape[1])),
    )
    expected = np.sort(np.sort(index.unit(held_out) @ stored.T, axis=1)[:, -3:].mean(axis=1))
    np.testing.assert_allclose(familiarity.reference(lookup, held_out), expected, rtol=1e-5)


def test_keys_of_held_out_images_are_kept_with_a_run(tmp_path):
    assert familiarity.read(tmp_path, 4) is None
    keys = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    familiarity.write(tmp_path, keys)
    np.testing.assert_array_equal(familiarity.read(tmp_path, 4), keys)
    with pytest.raises(ValueError, match=r"held_out\.npy is damaged .*not of keys with 5 numbers"):
        familiarity.read(tmp_path, 5)
    (tmp_path / familiarity.FILE).write_bytes((tmp_path / familiarity.FILE).read_bytes()[:500])
    with pytest.raises(ValueError, match="is damaged"):
        familiarity.read(tmp_path, 4)


def test_an_image_of_the_memory_is_familiar_and_an_opposite_one_is_not(lookup):
    reference, stored = familiarity.reference(lookup), np.asarray(lookup.memory.keys)
    inside = familiarity.shares(reference, *nearest(lookup, stored[:4]))
    assert (inside > 0.5).all() and inside.max() == 1  # each finds itself
    away = familiarity.shares(reference, *nearest(lookup, index.unit(-stored.mean(axis=0, keepdims=True))))
    assert away.tolist() == [0.0]


def test_held_out_images_without_rows_are_no_reference(tmp_path, keys, lookup):
    one = Lookup(make(tmp_path / "one", keys[:1]), None, 1, 64, "id")
    reference = familiarity.reference(one)
    assert reference.shape == (0,)
    assert familiarity.shares(reference, *nearest(one, keys[:2])) is None
    assert familiarity.reference(one, keys[1:4]).shape == (3,)
    none = np.full((2, 3), -1), np.zeros((2, 3))
    assert familiarity.shares(familiarity.reference(lookup), *none).tolist() == [0.0, 0.0]


def test_the_share_counts_images_that_are_no_nearer():
    reference = np.array([0.1, 0.2, 0.3, 0.4])
    rows, near = np.array([[3, 4, 5, 6], [3, -1, -1, -1], [-1, -1, -1, -1]]), np.full((3, 4), 0.3)
    near[0, 3] = -9  # beyond the nearest three
    assert familiarity.shares(reference, rows, near).tolist() == [0.75, 0.75, 0.0]
