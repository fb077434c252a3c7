import numpy as np

from rac_jax.report import views
from rac_jax.report.predictions import Predictions, Votes


def predictions():
    """Five images of class 0: base is right on the last alone, RAC on 0, 1 and 4."""
    rac = Votes(np.array([0, 0, 1, 1, 0]), np.full(5, 0.5), np.array([0.9, 0.6, 0.2, 0.1, 0.8]))
    base = Votes(np.array([1, 1, 1, 1, 0]), np.full(5, 0.5), np.array([0.2, 0.3, 0.4, 0.4, 0.1]))
    nothing = np.zeros((5, 0))
    return Predictions(np.arange(5), np.zeros(5, int), {"rac": rac, "base": base}, nothing.astype(int), nothing)


def test_random_worst_and_rescued():
    found = views.chosen(predictions(), 2, seed=0)
    assert found["worst"].tolist() == [3, 2]
    assert found["rescued"].tolist() == [0, 1]
    assert len(set(found["random"].tolist())) == 2
    assert found["random"].tolist() == views.chosen(predictions(), 2, seed=0)["random"].tolist()


def test_a_view_lists_and_counts_the_neighbours_with_matches_in_green():
    image = np.zeros((8, 8, 3), np.uint8)
    texts, similarities = ["two", "seven", "two"], np.array([0.9, 0.8, 0.5])
    figure = views.draw(views.View(image, "two", texts, similarities, {"rac": ("two", 0.7), "base": ("seven", 0.4)}))
    picture, listed, counted, distances = figure.axes
    assert [(t.get_text(), t.get_color()) for t in listed.texts] == [
        ("0.100  two", views.GREEN), ("0.200  seven", "black"), ("0.500  two", views.GREEN),
    ]  # fmt: skip
    assert [bar.get_width() for bar in counted.patches] == [2, 1]
    assert [label.get_text() for label in counted.get_yticklabels()] == ["two", "seven"]
    assert [t.get_text() for t in picture.texts] == ["rac: two 70 %", "base: seven 40 %"]
    assert picture.get_title() == "truth: two"
    assert sum(patch.get_height() for patch in distances.patches) == 3
