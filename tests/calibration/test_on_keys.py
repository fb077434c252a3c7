"""Voices on parts of a run's keys."""

import dataclasses

import numpy as np

from rac_jax import config as configs
from rac_jax.calibration import on_keys
from rac_jax.models.rac import VoiceSettings


def test_knowledge_of_rows_has_counts_sums_and_the_mean_of_the_class_means():
    rows = on_keys.Rows(np.array([[1.0, 0.0], [3.0, 0.0], [0.0, 4.0]], np.float32), np.array([0, 0, 2], np.int32))
    known = on_keys.knowledge(rows, 3)
    np.testing.assert_array_equal(known.counts, [2, 0, 1])
    np.testing.assert_array_equal(known.sums, [[4, 0], [0, 0], [0, 4]])
    np.testing.assert_array_equal(known.centre, [1.0, 2.0])  # the mean of (2, 0) and (0, 4)
    assert known.row_label.shape == (on_keys.PART,) and known.row_label[:4].tolist() == [0, 0, 2, -1]


def test_each_row_is_held_out_once_with_equal_shares_of_its_class():
    labels = np.array([0] * 10 + [1] * 3 + [2])
    fold = on_keys._folds(labels, np.random.default_rng(0))
    assert np.bincount(fold[:10]).tolist() == [2] * 5
    assert len(set(fold[10:13].tolist())) == 3  # never all at once
    assert fold[13] == -1  # the only row of its class


class FakeRun:
    """What held_out needs of a run."""

    def __init__(self, config, classes):
        self.config = config
        self.classes = dataclasses.make_dataclass("Classes", ["trained"])(classes)
        settings = VoiceSettings(speaking=("vote", "prototype"), fusion="sum", weights=(0.5, 1.0))
        self.model = dataclasses.make_dataclass("Model", ["settings"])(settings)


def test_a_held_out_row_is_not_in_the_memory_that_answers_for_it():
    """Every row has its own direction: a voice that saw it would be sure, and one that did not cannot know."""
    config = configs.default()
    configs.instant(config)
    config.memory.k, config.train.epochs = 2, 1.0
    rows = on_keys.Rows(np.eye(30, 32, dtype=np.float32), np.repeat(np.arange(3, dtype=np.int32), 10))
    of_true, labels = on_keys.held_out(FakeRun(config, 3), rows)
    assert len(of_true) == 30 and sorted(labels.tolist()) == rows.labels.tolist()
    assert of_true.max() < 0.9
    near = on_keys.Rows(np.repeat(np.eye(3, 32, dtype=np.float32), 10, axis=0), rows.labels)
    assert on_keys.held_out(FakeRun(config, 3), near)[0].min() > 0.9
