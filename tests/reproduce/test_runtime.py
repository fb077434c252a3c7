"""A short training with a memory that was grown, and what its records say of the time."""

import numpy as np
import pytest

from rac_jax import data
from rac_jax.memory import store
from rac_jax.report.tensorboard import TensorBoard
from rac_jax.reproduce import runtime
from tests import tiny


def test_the_first_records_after_each_start_do_not_count(tmp_path):
    for values in ([900, 500, 10, 12, 14], [700, 300, 20], []):
        with TensorBoard.of(tmp_path) as board:
            board.scalars(0, {"start/seconds_to_first_step": 3})
            for step, value in enumerate(values):
                board.scalars(step, {"train/step_ms": value})
    assert runtime.milliseconds(tmp_path) == [10, 12, 14, 20]


def test_a_run_that_is_too_short_says_so(tmp_path):
    with TensorBoard.of(tmp_path) as board:
        board.scalars(1, {"train/step_ms": 900})
    with pytest.raises(ValueError, match="too short to be timed"):
        runtime.milliseconds(tmp_path)


def test_an_epoch_with_a_memory_that_was_grown(tmp_path):
    config = tiny.config("text", devices=1)
    config.train.steps, config.memory.lookup = 4, "cached"
    found = runtime.measure(config, tmp_path, times=2)["figures"]
    recorded = runtime.milliseconds(tmp_path)
    assert len(recorded) == 2 and found["ms a step"] == pytest.approx(np.mean(recorded))
    assert found["s an epoch"] == pytest.approx(30 * found["ms a step"] / 1000)  # 466 images, 16 a step
    assert found["rows in memory"] == 3 * 466
    assert not (tmp_path / "eval").exists() and not (tmp_path / "neighbours").exists()
    memory = store.read(tmp_path / "memory")
    assert [(source.name, source.rows) for source in memory.manifest.sources] == [("train", 466), ("made", 932)]
    assert set(memory.texts.take(memory.text_of[466:])) <= set(data.load(config).class_texts)
    version = memory.version
    assert runtime.measure(config, tmp_path, times=2)["figures"] == found  # nothing is left to do
    assert store.read(tmp_path / "memory").version == version
