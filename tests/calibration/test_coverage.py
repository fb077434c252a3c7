"""Sets of labels."""

import dataclasses
import json

import numpy as np
import pytest

from rac_jax.calibration import coverage
from rac_jax.calibration.coverage import Coverage, SetCounts

COUNTS = np.array([900, 90, 10])


TAIL = np.round(400 * 0.01 ** (np.arange(20) / 19)).astype(int)  # 400 down to 4


def drawn(random, count, shares):
    """Labels, and probabilities [N, 20] that favour the true label, for rare classes less."""
    labels = random.choice(20, count, p=shares)
    logits = random.normal(size=(count, 20))
    logits[np.arange(count), labels] += np.linspace(2.0, 0.8, 20)[labels]
    odds = np.exp(logits)
    return labels, odds / odds.sum(axis=1, keepdims=True)


def made(scores, tau=0.0):
    return Coverage(7, "val", "abc", tau, np.asarray(scores, np.float64))


def test_the_threshold_is_the_standard_one_of_conformal_prediction():
    scores = np.arange(1, 100) / 100  # 99 of them
    assert coverage.threshold(scores, 0.9) == 0.9  # the 90th of 99: ⌈100 · 0.9⌉
    assert coverage.threshold(scores, 0.905) == 0.91
    assert coverage.threshold(scores, 0.99) == 0.99
    assert coverage.threshold(scores, 0.995) == float("inf")  # 99 images cannot promise that


@pytest.mark.parametrize("level", [0.8, 0.9, 0.95])
@pytest.mark.parametrize("shares", [TAIL / TAIL.sum(), np.ones(20) / 20], ids=["long-tailed", "balanced"])
def test_sets_hold_the_truth_as_often_as_asked_for_a_long_tail_and_for_balanced_images(level, shares):
    random = np.random.default_rng(0)
    labels, probabilities = drawn(random, 20_000, TAIL / TAIL.sum())
    of_true = probabilities[np.arange(len(labels)), labels]
    found = coverage.calibrated(of_true, labels, TAIL, step=7, images="val", memory=None)
    labels, probabilities = drawn(random, 20_000, shares)
    inside = found.at(level).inside(probabilities, TAIL)
    assert abs(inside[np.arange(len(labels)), labels].mean() - level) < 0.02
    plain = made(np.sort(-of_true)).at(level).inside(probabilities, TAIL)  # without p(y)
    rare = labels >= 15
    of_rare = [covered[rare, labels[rare]].mean() for covered in (plain, inside)]
    assert of_rare[0] < level - 0.05 < of_rare[1]


def test_rare_labels_are_let_in_with_less():
    probabilities = np.array([[0.5, 0.3, 0.2]])
    assert made([-0.4] * 20).at(0.9).inside(probabilities, COUNTS).tolist() == [[True, False, False]]
    assert made([-10.0] * 20, tau=1.0).at(0.9).inside(probabilities, COUNTS).tolist() == [[True, False, True]]


def test_the_answer_is_always_in_the_set():
    probabilities = np.array([[0.2, 0.5, 0.3]])
    assert made([-0.9] * 20).at(0.9).inside(probabilities, COUNTS).tolist() == [[False, True, False]]


def test_counts_by_group():
    sets = SetCounts(made([-0.25] * 20), COUNTS)
    sets.add(np.array([[0.7, 0.3, 0.0], [0.9, 0.05, 0.05]]), np.array([1, 2]))
    found = sets.summary({"all": np.ones(3, bool), "few": np.array([False, False, True]), "new": np.zeros(3, bool)})
    assert found["0.9"] == {"all": {"covered": 0.5, "labels": 1.5}, "few": {"covered": 0.0, "labels": 1.0}}
    assert list(found) == ["0.8", "0.9", "0.95"]


def test_it_is_kept_with_a_run_and_belongs_to_a_step(tmp_path):
    assert coverage.read(tmp_path) is None
    coverage.write(tmp_path, made(-np.linspace(1, 0, 30) / 3, tau=0.5))
    found = coverage.read(tmp_path, 7)
    assert dataclasses.astuple(found)[:4] == (7, "val", "abc", 0.5)
    np.testing.assert_allclose(found.scores, -np.linspace(1, 0, 30) / 3, rtol=1e-6)
    assert coverage.read(tmp_path, 8) is None
    with pytest.raises(ValueError, match=r"no coverage.json for step 8.*data.val_share"):
        coverage.require(tmp_path, 8, "abc")


def test_another_memory_is_warned_of_once(tmp_path, caplog):
    coverage.write(tmp_path, made([-0.5] * 30))
    assert coverage.require(tmp_path, 7, "abc").memory == "abc" and not caplog.records
    for memory in ("other", "other", "abc"):
        coverage.require(tmp_path, 7, memory)
    (record,) = caplog.records
    assert "were calibrated with another memory (coverage.json)" in record.getMessage()


@pytest.mark.parametrize("change", [{"scores": [3.0] * 19 + [1.0]}, {"tau": 9}, {"scores": "x"}, {"more": 1}])
def test_a_damaged_file_is_named(tmp_path, change):
    coverage.write(tmp_path, made([-0.5] * 30))
    path = tmp_path / coverage.FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=r"coverage.json is damaged"):
        coverage.read(tmp_path)


def test_too_few_images_make_none_and_impossible_levels_are_refused():
    nothing = coverage.calibrated(np.ones(19), np.zeros(19, int), COUNTS, step=1, images="", memory=None)
    assert nothing is None
    for level in (0.0, 1.0, 90):
        with pytest.raises(ValueError, match="between 0 and 1"):
            made([-0.5] * 30).at(level)
