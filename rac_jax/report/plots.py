"""The curves and matrices of an evaluation, drawn from per-class counts and predictions."""

import io
import zlib
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from rac_jax.metrics import Counts
from rac_jax.report.captions import label
from rac_jax.report.predictions import Predictions
from rac_jax.runtime import files

COLOURS = {
    "rac": "#1f6f8b", "fused": "#1f6f8b", "base": "#d1793a", "retrieval": "#6a4c93", "text": "#6a4c93",
    "vote": "#3a8f5c", "prototype": "#b03a6b", "nearest": "#8a8a8a",
}  # fmt: skip
OTHER_COLOURS = ("#4b5bab", "#a08a2c", "#5b8a8a", "#94604c")  # of voices that are not named above
MOST_CONFUSED = 12  # classes in a confusion matrix
BINS = 10  # of a reliability diagram
FREQUENCY_BINS = 8


def colour(voice: str) -> str:
    """The colour of a voice: the same in every picture."""
    return COLOURS.get(voice) or OTHER_COLOURS[zlib.crc32(voice.encode()) % len(OTHER_COLOURS)]


def by_class(counts: dict[str, Counts], class_counts: np.ndarray, window: int = 0) -> Figure:
    """Accuracy of each class by voice, most frequent class first, with the moving average over `window` classes.

    A window of 0 is a tenth of the classes.
    """
    figure, axes = _figure("classes, most frequent first", "accuracy, %")
    order = np.argsort(-class_counts, kind="stable")
    window = min(window or max(1, len(order) // 10), len(order))
    ranks = np.arange(len(order))
    for voice, accuracy in _class_accuracies(counts).items():
        values = accuracy[order]
        axes.plot(ranks, values, ".", color=colour(voice), alpha=0.25, markersize=4)
        axes.plot(ranks, moving_average(values, window), color=colour(voice), label=voice)
    axes.set_title(f"by class, with the mean over {window} neighbouring classes" if window > 1 else "by class")
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return figure


def by_frequency(counts: dict[str, Counts], class_counts: np.ndarray) -> Figure:
    """Accuracy against the number of training images: classes in bins of equal width on a log axis."""
    figure, axes = _figure("training images of a class", "accuracy, %")
    present = np.maximum(class_counts, 1)
    edges = np.geomspace(present.min(), present.max() * 1.0001, FREQUENCY_BINS + 1)
    bin_of = np.clip(np.digitize(present, edges) - 1, 0, FREQUENCY_BINS - 1)
    for voice, accuracy in _class_accuracies(counts).items():
        known = [np.flatnonzero((bin_of == b) & np.isfinite(accuracy)) for b in range(FREQUENCY_BINS)]
        known = [members for members in known if len(members)]
        x = [np.exp(np.log(present[members]).mean()) for members in known]
        axes.plot(x, [accuracy[members].mean() for members in known], "o-", color=colour(voice), label=voice)
    axes.set_xscale("log")
    axes.set_title("by class frequency")
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return figure


def confusion(predictions: Predictions, voice: str, class_names: tuple[str, ...]) -> Figure:
    """A confusion matrix of the most confused classes, in % of the images of each true class (row)."""
    matrix = confusion_matrix(predictions.label, predictions.votes[voice].label, len(class_names))
    chosen = most_confused(matrix, MOST_CONFUSED)
    shares = 100 * matrix[chosen][:, chosen] / np.maximum(matrix[chosen].sum(axis=1, keepdims=True), 1)
    side = 2.5 + 0.4 * len(chosen)
    figure = Figure(figsize=(side, side), layout="constrained")
    axes = figure.add_subplot()
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=100)
    names = [label(class_names[number], 20) for number in chosen]
    axes.set_xticks(range(len(chosen)), names, rotation=90)
    axes.set_yticks(range(len(chosen)), names)
    for (row, column), share in np.ndenumerate(shares):
        if share >= 0.5:
            ink = "white" if share > 50 else "black"
            axes.text(column, row, f"{share:.0f}", ha="center", va="center", color=ink, fontsize=8)
    axes.set_xlabel("answer")
    axes.set_ylabel("truth")
    axes.set_title(f"{voice}: the {len(chosen)} most confused classes, %")
    return figure


def calibration(predictions: Predictions) -> Figure:
    """Reliability by voice: the share of right answers against their probability."""
    figure, axes = _figure("probability of the answer", "share of right answers")
    axes.plot([0, 1], [0, 1], color="#bbbbbb", linewidth=1)
    for voice, votes in predictions.votes.items():
        right = predictions.right(voice)
        confidence, accuracy, weight = reliability(votes.probability, right)
        error = calibration_error(votes.probability, right)
        axes.plot(confidence, accuracy, color=colour(voice), label=f"{voice}, ECE {100 * error:.1f} %")
        axes.scatter(confidence, accuracy, s=8 + 120 * weight, color=colour(voice))
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.set_title(f"calibration, {BINS} bins; a point's size is its share of the images")
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return figure


def moving_average(values: np.ndarray, window: int) -> np.ndarray:
    """The mean over `window` values around each, fewer at the ends; NaNs are ignored."""
    known = np.isfinite(values)
    kernel = np.ones(window)
    weight = np.convolve(known, kernel, mode="same")
    total = np.convolve(np.where(known, values, 0.0), kernel, mode="same")
    return np.divide(total, weight, out=np.full(len(values), np.nan), where=weight > 0)


def confusion_matrix(truth: np.ndarray, answer: np.ndarray, classes: int) -> np.ndarray:
    """[C, C] int64: the number of images of each class (row) that are classified as each class (column)."""
    return np.bincount(truth.astype(np.int64) * classes + answer, minlength=classes**2).reshape(classes, classes)


def most_confused(matrix: np.ndarray, number: int) -> np.ndarray:
    """The classes with the most mistakes, as truth or as answer, in the order of their labels."""
    mistakes = matrix - np.diag(np.diag(matrix))
    part = mistakes.sum(axis=0) + mistakes.sum(axis=1)
    return np.sort(np.argsort(-part, kind="stable")[:number])


def reliability(probability: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each bin that is not empty: the mean probability, the share of right answers, the share of all images."""
    bin_of = np.clip((probability * BINS).astype(int), 0, BINS - 1)
    weight = np.bincount(bin_of, minlength=BINS)
    there = weight > 0
    confidence = np.bincount(bin_of, probability, minlength=BINS)[there] / weight[there]
    accuracy = np.bincount(bin_of, right, minlength=BINS)[there] / weight[there]
    return confidence, accuracy, weight[there] / len(right)


def calibration_error(probability: np.ndarray, right: np.ndarray) -> float:
    """ECE: the mean over images of their bin's distance between probability and accuracy."""
    confidence, accuracy, weight = reliability(probability, right)
    return float((weight * np.abs(confidence - accuracy)).sum())


def png(figure: Figure) -> bytes:
    """A figure as a PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def pixels(encoded: bytes) -> np.ndarray:
    """The pixels of a PNG, uint8 [H, W, 3]."""
    return np.asarray(Image.open(io.BytesIO(encoded)).convert("RGB"))


def save(path: Path, encoded: bytes) -> None:
    """Write a picture atomically."""
    with files.atomic(path) as temporary:
        temporary.write_bytes(encoded)


def _class_accuracies(counts: dict[str, Counts]) -> dict[str, np.ndarray]:
    """By voice [C], in %; NaN for a class without images."""
    return {
        voice: np.divide(100.0 * c.correct, c.seen, out=np.full(len(c.seen), np.nan), where=c.seen > 0)
        for voice, c in counts.items()
    }


def _figure(x: str, y: str):  # type: ignore[no-untyped-def]  # a figure and its axes
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    return figure, axes
