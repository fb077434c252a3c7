"""Rows that are wrong neighbours of other rows count less in the vote."""

import dataclasses

import jax
import numpy as np

from rac_jax.retrieval import knowledge, reliability
from rac_jax.retrieval.knowledge import Classes
from tests.memory.conftest import make


def expected(memory, near, allowed):
    """By comparing all pairs."""
    stored, labels = np.asarray(memory.keys, np.float32), memory.label_of
    cosines = stored @ stored.T
    np.fill_diagonal(cosines, -2)
    cosines[:, ~allowed] = -2
    wrong = np.zeros(len(stored), int)
    for row in np.flatnonzero(allowed & (labels >= 0)):
        for other in np.argsort(-cosines[row])[:near]:
            wrong[other] += labels[other] >= 0 and labels[other] != labels[row]
    return wrong


def labelled(memory):
    labels = np.random.default_rng(0).integers(-1, 3, len(memory)).astype(np.int32)
    manifest = dataclasses.replace(memory.manifest, class_names=("a", "b", "c"))
    return dataclasses.replace(memory, label_of=labels, manifest=manifest)


def test_wrong_neighbours_are_counted_without_the_row_itself(tmp_path, keys):
    memory = labelled(make(tmp_path / "m", keys))
    everything = np.ones(len(memory), bool)
    found = reliability.wrong_neighbours(memory, 3, ef_search=200)
    np.testing.assert_array_equal(found, expected(memory, 3, everything))
    assert found.max() > 1
    some = everything.copy()
    some[::2] = False  # after an edit: rows that are hidden neither ask nor answer
    np.testing.assert_array_equal(
        reliability.wrong_neighbours(dataclasses.replace(memory, kept=some), 3, ef_search=200),
        expected(memory, 3, some),
    )


def test_weights_are_kept_in_the_cache_and_follow_the_memory(tmp_path, keys, config):
    memory = labelled(make(tmp_path / "m", keys))
    assert reliability.weights(config, memory, tmp_path / "cache") is None
    config.model.vote.reliability = 3
    weights = reliability.weights(config, memory, tmp_path / "cache")
    wrong = expected(memory, 3, np.ones(len(memory), bool))
    np.testing.assert_allclose(weights, 1 / (1 + wrong), rtol=1e-6)
    (file,) = (tmp_path / "cache").iterdir()
    before = file.stat().st_mtime_ns
    np.testing.assert_array_equal(reliability.weights(config, memory, tmp_path / "cache"), weights)
    assert file.stat().st_mtime_ns == before
    config.model.vote.reliability = 2
    reliability.weights(config, memory, tmp_path / "cache")
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_the_weights_of_a_class_are_those_of_its_rows(tmp_path, keys):
    memory = labelled(make(tmp_path / "m", keys))
    mesh = jax.make_mesh((1,), ("data",), devices=jax.devices()[:1], axis_types=(jax.sharding.AxisType.Auto,))
    weights = np.linspace(0.1, 1.0, len(memory)).astype(np.float32)
    known = knowledge.read(memory, Classes(("a", "b", "c"), 3), mesh, weights)
    sums = [weights[memory.label_of == label].sum() for label in range(3)]
    np.testing.assert_allclose(known.class_weight, sums, rtol=1e-5)
    np.testing.assert_array_equal(known.row_weight, weights)


def test_weights_are_computed_where_they_cannot_be_kept(tmp_path, keys, config):
    memory = labelled(make(tmp_path / "m", keys))
    config.model.vote.reliability = 3
    (tmp_path / "file").write_text("")  # no folder can be made in it, by root neither
    weights = reliability.weights(config, memory, tmp_path / "file" / "cache")
    wrong = expected(memory, 3, np.ones(len(memory), bool))
    np.testing.assert_allclose(weights, 1 / (1 + wrong), rtol=1e-6)
