"""The retrieval view: an image, what the memory found for it, and how the branches voted."""

import dataclasses
from collections import Counter
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from rac_jax.report.predictions import Predictions

GREEN, RED, GREY = "#2b8a3e", "#b0413e", "#777777"
LISTED, COUNTED = 12, 8  # neighbours by distance, texts by count


@dataclasses.dataclass(frozen=True)
class View:
    """All that a retrieval view shows."""

    image: np.ndarray  # uint8 [H, W, 3]
    true_text: str
    texts: Sequence[str]  # of the neighbours, nearest first
    similarities: np.ndarray  # [k]
    answers: dict[str, tuple[str, float]]  # by branch: the text of its answer, and how probable it finds it


def chosen(predictions: Predictions, number: int, seed: int) -> dict[str, np.ndarray]:
    """Which images to show, by reason: random ones, the worst, and those that the memory rescued most."""
    random = np.random.default_rng(seed).permutation(len(predictions))[:number]
    output = next(iter(predictions.votes))
    of_true = predictions.votes[output].of_true
    wrong = np.flatnonzero(~predictions.right(output))
    result = {"random": np.sort(random), "worst": wrong[np.argsort(of_true[wrong], kind="stable")][:number]}
    if "base" in predictions.votes and output == "rac":
        gain = of_true - predictions.votes["base"].of_true
        rescued = np.flatnonzero(predictions.right("rac") & ~predictions.right("base"))
        result["rescued"] = rescued[np.argsort(-gain[rescued], kind="stable")][:number]
    return result


def draw(view: View) -> Figure:
    """The image with its votes; labels by distance; labels by count; the distances. Matches are green."""
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    picture, listed, counted, distances = figure.subplots(1, 4, width_ratios=(1.1, 1.2, 1.3, 1.4))
    matches = np.array([text == view.true_text for text in view.texts], bool)
    _draw_image(picture, view)
    _draw_list(listed, view, matches)
    _draw_counts(counted, view)
    both = [1 - view.similarities[matches], 1 - view.similarities[~matches]]
    distances.hist(both, bins=12, stacked=True, color=[GREEN, GREY], label=["true class", "other"])
    distances.set_title("distances (1 − similarity)", fontsize=9)
    distances.legend(frameon=False, fontsize=8)
    distances.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_image(axes, view: View) -> None:  # type: ignore[no-untyped-def]
    axes.imshow(view.image)
    axes.axis("off")
    axes.set_title(f"truth: {view.true_text}", fontsize=10)
    for line, (branch, (text, probability)) in enumerate(view.answers.items()):
        colour = GREEN if text == view.true_text else RED
        axes.text(
            0, -0.06 - 0.1 * line, f"{branch}: {text} {100 * probability:.0f} %",
            transform=axes.transAxes, color=colour, fontsize=9, va="top",
        )  # fmt: skip


def _draw_list(axes, view: View, matches: np.ndarray) -> None:  # type: ignore[no-untyped-def]
    axes.axis("off")
    axes.set_title("by distance", fontsize=9)
    for line, text in enumerate(view.texts[:LISTED]):
        label = f"{1 - view.similarities[line]:.3f}  {text[:22]}"
        y = 1 - (line + 0.5) / LISTED
        axes.text(0, y, label, transform=axes.transAxes, color=GREEN if matches[line] else "black", fontsize=8)


def _draw_counts(axes, view: View) -> None:  # type: ignore[no-untyped-def]
    common = Counter(view.texts).most_common(COUNTED)
    names = [text[:22] for text, _ in common]
    colours = [GREEN if text == view.true_text else GREY for text, _ in common]
    axes.barh(range(len(common)), [count for _, count in common], color=colours)
    axes.set_yticks(range(len(common)), names, fontsize=8)
    axes.invert_yaxis()
    axes.set_title("by count", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
