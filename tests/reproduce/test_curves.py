"""Learning curves, read from what runs log."""

import numpy as np
import pytest

from rac_jax.report.tensorboard import TensorBoard
from rac_jax.reproduce import curves


def logged(workdir, values, voice="rac"):
    with TensorBoard.of(workdir) as board:
        for step, value in values.items():
            board.scalars(step, {f"val/{voice}/all": value, f"val/{voice}/few": 0.0, "val/vote/all": 0.1})


def test_the_curve_is_of_the_runs_own_answer(tmp_path):
    logged(tmp_path, {10: 0.25, 20: 0.5})
    assert curves.read(tmp_path) == {10: 25.0, 20: 50.0}
    assert curves.read(tmp_path, "vote") == pytest.approx({10: 10, 20: 10})
    assert curves.read(tmp_path, "text") == {}
    assert curves.read(tmp_path / "nothing") == {}


def test_the_plot_shows_the_mean_over_seeds_where_all_have_a_value(tmp_path):
    figure = curves.plot({"a": [{1: 10.0, 2: 20.0}, {1: 30.0, 3: 5.0}], "b": [{}]}, "t")
    (line,) = figure.axes[0].lines
    np.testing.assert_allclose(line.get_xydata(), [[1, 20]])
    assert line.get_label() == "a" and figure.axes[0].get_title() == "t: learning curves"
    assert curves.plot({"b": [{}]}, "t") is None
