import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from rac_jax import metrics

SHOTS = json.loads((Path(__file__).parent / "golden" / "shots.json").read_text())


def counts_of(logits, labels, mask=None):
    labels = jnp.asarray(labels, jnp.int32)
    mask = jnp.ones(len(labels), bool) if mask is None else jnp.asarray(mask)
    return metrics.Counts(*np.asarray(metrics.batch_counts(jnp.asarray(logits, jnp.float32), labels, mask)))


def test_groups_of_places():
    groups = metrics.groups(np.array(SHOTS["class_counts"]))
    assert {name: int(member.sum()) for name, member in groups.items()} == {
        "all": 365, "many": 131, "medium": 163, "few": 71, "new": 0
    }  # fmt: skip


def test_summary_against_the_oracle_with_an_empty_group():
    small = SHOTS["small"]
    logits = np.eye(5)[small["predictions"]]
    summary = metrics.summary(counts_of(logits, small["labels"]), np.array(small["class_counts"]))
    for name, expected in small["groups"].items():
        if expected is None:
            assert name not in summary
        else:
            assert summary[name] == pytest.approx(expected["accuracy"], abs=1e-7)


def test_counts_by_class_rank_and_mask():
    logits = [[9, 8, 7, 6, 5, 4], [9, 8, 7, 6, 5, 4], [9, 8, 7, 6, 5, 4], [0, 0, 0, 0, 0, 9]]
    counts = counts_of(logits, [0, 4, 5, 5], [True, True, True, False])
    np.testing.assert_array_equal(counts.seen, [1, 0, 0, 0, 1, 1])
    np.testing.assert_array_equal(counts.correct, [1, 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(counts.correct5, [1, 0, 0, 0, 1, 0])


def test_ties_and_not_a_number_do_not_flatter():
    assert counts_of([[1, 1, 1]], [2]).correct.sum() == 0  # argmax answers 0
    assert counts_of([[1, 1, 1]], [0]).correct.sum() == 1
    assert counts_of([[np.nan, 0, 0]], [0]).correct.sum() == 0
    assert counts_of([[np.nan, np.nan, np.nan]], [0]).correct5.sum() == 0


def test_counts_of_nearest_neighbours():
    found = jnp.array([[1, 0, 0, 0, 0, 2], [2, 2, 1, 1, 1, 0], [-1, -1, -1, -1, -1, -1], [0, 1, 2, 0, 1, 2]], jnp.int32)
    labels, mask = jnp.array([1, 0, 2, 1], jnp.int32), jnp.array([True, True, True, False])
    counts = metrics.Counts(*np.asarray(metrics.nearest_counts(found, labels, mask, 3)))
    assert counts.seen.tolist() == [1, 1, 1]
    assert counts.correct.tolist() == [0, 1, 0]
    assert counts.correct5.tolist() == [0, 1, 0]  # the 0 of the second is sixth


def test_adding_batches():
    a, b = counts_of([[1, 0]], [0]), counts_of([[1, 0]], [1])
    total = a + b
    assert total.seen.tolist() == [1, 1] and total.correct.tolist() == [1, 0]
