import numpy as np
import pytest

from rac_jax.report import plots, views
from rac_jax.report.predictions import Predictions, Votes
from tests.report import hostile

IMAGE = np.zeros((8, 8, 3), np.uint8)


def predictions(output="rac"):
    """Five images of class 0: base is right on the last alone, RAC on 0, 1 and 4."""
    rac = Votes(np.array([0, 0, 1, 1, 0]), np.full(5, 0.5), np.array([0.9, 0.6, 0.2, 0.1, 0.8]))
    base = Votes(np.array([1, 1, 1, 1, 0]), np.full(5, 0.5), np.array([0.2, 0.3, 0.4, 0.4, 0.1]))
    nothing = np.zeros((5, 0))
    return Predictions(np.arange(5), np.zeros(5, int), {output: rac, "base": base}, nothing.astype(int), nothing)


@pytest.mark.parametrize("output", ["rac", "fused"])
def test_random_worst_and_rescued(output):
    found = views.chosen(predictions(output), 2, seed=0)
    assert found["worst"].tolist() == [3, 2]
    assert found["rescued"].tolist() == [0, 1]
    assert len(set(found["random"].tolist())) == 2
    assert found["random"].tolist() == views.chosen(predictions(), 2, seed=0)["random"].tolist()


def draw(similarities, metric):
    texts = ["two", "seven", "two"]
    answers = {"rac": ("two", 0.7, True), "base": ("seven", 0.4, False)}
    matches = np.array([True, False, True])
    figure = views.draw(views.View(IMAGE, "two", texts, texts, matches, np.array(similarities), metric, answers))
    return {axes.get_label(): axes for axes in figure.axes}


def test_a_view_lists_and_counts_the_neighbours_with_matches_in_green():
    axes = draw([0.9, 0.8, 0.5], "cosine")
    listed, counted, histogram = axes["list"], axes["counts"], axes["histogram"]
    assert [(t.get_text(), t.get_color()) for t in listed.texts] == [
        ("0.900  two", views.GREEN), ("0.800  seven", "black"), ("0.500  two", views.GREEN),
    ]  # fmt: skip
    assert listed.get_title() == "nearest, by cosine similarity"
    assert [bar.get_width() for bar in counted.patches] == [2, 1]
    assert [label.get_text() for label in counted.get_yticklabels()] == ["two", "seven"]
    assert [t.get_text() for t in axes["votes"].texts] == ["rac: two 70 %", "base: seven 40 %"]
    assert axes["image"].get_title() == "truth: two"
    assert sum(patch.get_height() for patch in histogram.patches) == 3
    assert histogram.get_title() == "cosine similarity"


def test_captions_are_counted_by_class_and_classes_with_one_text_are_kept_apart():
    texts = ["a crane by the lake", "a tall crane", "crane", "grey bird"]
    names, matches = ["crane", "crane", "crane", "grey bird"], np.array([True, False, True, False])
    answers = {"rac": ("crane", 0.7, False)}  # the machine, not the bird
    view = views.View(IMAGE, "crane", texts, names, matches, np.linspace(0.9, 0.6, 4), "cosine", answers)
    axes = {axes.get_label(): axes for axes in views.draw(view).axes}
    assert [t.get_color() for t in axes["list"].texts] == [views.GREEN, "black", views.GREEN, "black"]
    assert [bar.get_width() for bar in axes["counts"].patches] == [2, 1, 1]
    assert [label.get_text() for label in axes["counts"].get_yticklabels()] == ["crane", "crane", "grey bird"]
    assert axes["votes"].texts[0].get_color() == views.RED


def test_l2_shows_the_distance_whose_negative_square_the_index_gives():
    axes = draw([-4.0, -6.25, -9.0], "l2")
    listed, histogram = axes["list"], axes["histogram"]
    assert [t.get_text() for t in listed.texts] == ["2.000  two", "2.500  seven", "3.000  two"]
    assert listed.get_title() == "nearest, by L2 distance"
    assert histogram.get_xlim()[0] < 2 < 3 < histogram.get_xlim()[1]


def test_eight_labels_are_listed_whatever_they_are_called():
    names, scores = hostile.NAMES, np.linspace(1, 0, len(hostile.NAMES))
    answers = {name: (name, 0.5, name == names[1]) for name in names[:6]}
    matches = np.array([name == names[1] for name in names])
    figure = views.draw(views.View(IMAGE, names[1], names, names, matches, scores, "cosine", answers))
    axes = {one.get_label(): one for one in figure.axes}
    assert len(axes["list"].texts) == len(axes["counts"].patches) == 8 and len(axes["votes"].texts) == 6
    assert plots.pixels(plots.png(figure)).std() > 10
