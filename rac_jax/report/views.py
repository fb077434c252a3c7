"""The retrieval view: an image, what the memory found for it, and how the voices voted."""

import dataclasses
from collections import Counter
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rac_jax.report.captions import label
from rac_jax.report.predictions import Predictions

GREEN, RED, GREY = "#2b8a3e", "#b0413e", "#777777"
SHOWN = 8  # labels in each list, as in the paper's appendix
NAME, TITLE = 22, 30  # characters of a label in a list, and above the image


@dataclasses.dataclass(frozen=True)
class View:
    """Everything that a retrieval view shows."""

    image: np.ndarray  # uint8 [H, W, 3]
    true_text: str
    texts: Sequence[str]  # of the neighbours, nearest first
    names: Sequence[str]  # of their classes; the text of a row without a label
    matches: np.ndarray  # [k] bool: which neighbours are of the true class
    similarities: np.ndarray  # [k] as the index gives them: cosine similarity, or minus the squared L2 distance
    metric: str  # cosine | l2
    answers: dict[
        str, tuple[str, float, bool]
    ]  # by voice: the text of its answer, its probability, whether it is right

    @property
    def nearness(self) -> tuple[str, np.ndarray]:
        """What is shown of each neighbour, [k], and its name."""
        if self.metric == "l2":
            return "L2 distance", np.sqrt(np.maximum(-self.similarities, 0))
        return "cosine similarity", self.similarities


def chosen(predictions: Predictions, number: int, seed: int) -> dict[str, np.ndarray]:
    """The positions of images to show, by reason: random, worst, and those that the memory corrects most."""
    random = np.random.default_rng(seed).permutation(len(predictions))[:number]
    output = next(iter(predictions.votes))
    of_true = predictions.votes[output].of_true
    wrong = np.flatnonzero(~predictions.right(output))
    result = {"random": np.sort(random), "worst": wrong[np.argsort(of_true[wrong], kind="stable")][:number]}
    if "base" in predictions.votes and output != "base":
        gain = of_true - predictions.votes["base"].of_true
        rescued = np.flatnonzero(predictions.right(output) & ~predictions.right("base"))
        result["rescued"] = rescued[np.argsort(-gain[rescued], kind="stable")][:number]
    return result


def draw(view: View) -> Figure:
    """The image with its votes, the nearest labels, the most frequent labels, and a histogram. Matches are green."""
    votes = 0.1 + 0.2 * len(view.answers)  # inches
    figure = Figure(figsize=(11, 2.7 + votes), layout="constrained")
    axes = figure.subplot_mosaic(
        [["image", "list", "counts", "histogram"], ["votes", "list", "counts", "histogram"]],
        width_ratios=(1.1, 1.2, 1.3, 1.4), height_ratios=(2.7, votes),
    )  # fmt: skip
    axes["image"].imshow(view.image)
    axes["image"].axis("off")
    axes["image"].set_title(f"truth: {label(view.true_text, TITLE)}", fontsize=10)
    _draw_votes(axes["votes"], view)
    _draw_list(axes["list"], view)
    _draw_counts(axes["counts"], view)
    _draw_histogram(axes["histogram"], view)
    return figure


def _draw_votes(axes, view: View) -> None:  # type: ignore[no-untyped-def]
    axes.axis("off")
    for line, (voice, (text, probability, right)) in enumerate(view.answers.items()):
        shown = f"{label(voice, NAME)}: {label(text, NAME)} {100 * probability:.0f} %"
        colour = GREEN if right else RED
        axes.text(0, 1 - line / len(view.answers), shown, transform=axes.transAxes, color=colour, fontsize=9, va="top")


def _draw_list(axes, view: View) -> None:  # type: ignore[no-untyped-def]
    axes.axis("off")
    name, values = view.nearness
    axes.set_title(f"nearest, by {name}", fontsize=9)
    for line, text in enumerate(view.texts[:SHOWN]):
        y = 1 - (line + 0.5) / SHOWN
        shown, colour = f"{values[line]:.3f}  {label(text, NAME)}", GREEN if view.matches[line] else "black"
        axes.text(0, y, shown, transform=axes.transAxes, color=colour, fontsize=8)


def _draw_counts(axes, view: View) -> None:  # type: ignore[no-untyped-def]
    common = Counter(zip(view.names, view.matches.tolist(), strict=True)).most_common(SHOWN)
    colours = [GREEN if match else GREY for (_, match), _ in common]
    axes.barh(range(len(common)), [count for _, count in common], color=colours)
    axes.set_yticks(range(len(common)), [label(name, NAME) for (name, _), _ in common], fontsize=8)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    axes.invert_yaxis()
    axes.set_title(f"most frequent of {len(view.texts)}", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_histogram(axes, view: View) -> None:  # type: ignore[no-untyped-def]
    name, values = view.nearness
    both = [values[view.matches], values[~view.matches]]
    axes.hist(both, bins=12, stacked=True, color=[GREEN, GREY], label=["true class", "other"])
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    axes.set_title(name, fontsize=9)
    axes.set_ylim(top=1.3 * axes.get_ylim()[1])  # room for the legend
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
