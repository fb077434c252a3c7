import numpy as np
import pytest

from rac_jax.metrics import Counts
from rac_jax.report import plots
from rac_jax.report.predictions import Predictions, Votes
from tests.report import hostile
from tests.report.test_predictions import some

CLASS_COUNTS = np.array([5, 100, 20])
COUNTS = {"rac": Counts(np.array([4, 4, 0]), np.array([1, 3, 0]), np.array([4, 4, 0]))}


def test_moving_average_skips_what_is_not_a_number():
    values = np.array([1.0, np.nan, 3.0, 5.0])
    np.testing.assert_allclose(plots.moving_average(values, 3), [1.0, 2.0, 4.0, 4.0])
    assert np.isnan(plots.moving_average(np.array([np.nan, np.nan]), 1)).all()


def test_confusion_matrix_and_the_most_confused():
    matrix = plots.confusion_matrix(np.array([0, 0, 1, 2, 2]), np.array([0, 2, 1, 2, 0]), 3)
    assert matrix.tolist() == [[1, 0, 1], [0, 1, 0], [1, 0, 1]]
    assert plots.most_confused(matrix, 2).tolist() == [0, 2]


def test_reliability_and_its_error():
    probability = np.array([0.95, 0.91, 0.55, 0.51])
    right = np.array([True, False, True, True])
    confidence, accuracy, weight = plots.reliability(probability, right)
    np.testing.assert_allclose(confidence, [0.53, 0.93])
    np.testing.assert_allclose(accuracy, [1.0, 0.5])
    np.testing.assert_allclose(weight, [0.5, 0.5])
    assert plots.calibration_error(probability, right) == pytest.approx((0.47 + 0.43) / 2)
    assert plots.calibration_error(np.array([1.0]), np.array([True])) == 0


def test_by_class_draws_the_classes_by_frequency():
    axes = plots.by_class(COUNTS, CLASS_COUNTS).axes[0]
    points = axes.lines[0].get_ydata()
    np.testing.assert_array_equal(points, [75.0, np.nan, 25.0])  # 100, 20 and 5 training images; 20 has no test image


def test_by_class_averages_over_the_window_that_is_asked_for_or_all_classes():
    def averaged(window):
        figure = plots.by_class(COUNTS, CLASS_COUNTS, window)
        return figure.axes[0].lines[1].get_ydata().tolist(), figure.axes[0].get_title()

    assert averaged(2) == ([75.0, 75.0, 25.0], "by class, with the mean over 2 neighbouring classes")
    assert averaged(300) == ([75.0, 50.0, 25.0], "by class, with the mean over 3 neighbouring classes")
    assert averaged(0)[1] == "by class"  # a tenth of three classes is one


def test_a_branch_of_any_name_has_a_colour():
    counts = {"fused": COUNTS["rac"], "prototype": COUNTS["rac"], "of my own": COUNTS["rac"]}
    lines = plots.by_frequency(counts, CLASS_COUNTS).axes[0].lines
    assert [line.get_color() for line in lines] == [plots.colour(name) for name in counts]
    assert len({line.get_color() for line in lines}) == 3


def test_by_frequency_leaves_out_classes_without_images():
    axes = plots.by_frequency(COUNTS, CLASS_COUNTS).axes[0]
    np.testing.assert_allclose(axes.lines[0].get_xdata(), [5, 100])
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [25, 75])


def test_confusion_shows_shares_of_the_true_class():
    axes = plots.confusion(some([0, 1, 2, 3]), "rac", ("a", "b", "c")).axes[0]
    assert axes.images[0].get_array().tolist() == [[50, 0, 50], [50, 50, 0], [0, 0, 0]]


def test_a_figure_becomes_pixels_and_a_file(tmp_path):
    encoded = plots.png(plots.calibration(some([0, 1, 2, 3])))
    plots.save(tmp_path / "a" / "calibration.png", encoded)
    pixels = plots.pixels((tmp_path / "a" / "calibration.png").read_bytes())
    assert pixels.shape == (440, 770, 3) and pixels.min() < 50 < 250 < pixels.max()


def test_classes_of_any_name_are_drawn():
    labels = np.arange(12, dtype=np.int32)
    for start in (0, len(hostile.NAMES) - 12):
        names = hostile.NAMES[start : start + 12]
        answers = Votes((labels + 1) % 12, np.full(12, 0.5), np.full(12, 0.5))
        confused = Predictions(labels, labels, {"rac": answers}, labels[:, None][:, :0], np.zeros((12, 0)))
        assert plots.pixels(plots.png(plots.confusion(confused, "rac", names))).std() > 10
