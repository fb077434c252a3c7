"""Sets of labels that hold the truth as often as asked, with the long tail in mind (conformal prediction).

A label y is in the set of an image x if its score −p(y|x) / p(y)^τ is at most a threshold. p(y|x) is the run's answer,
p(y) the share of the rows (or training images) that class y has. The threshold for a coverage c is the standard one: of
n scores of the true labels of held-out images, the ⌈(n + 1) c⌉-th smallest. It covers a share c of images like these,
with any τ. With τ = 0, common classes are covered more often than rare ones; with a large τ it is the other way round.
τ is the value, found on the same images, with which the mean over classes is covered as often as the mean over images:
sets then keep their promise for a long-tailed stream of images as for a balanced one. It is 1 for exact probabilities
under the prior p(y), and less for a run whose loss (LACE) adjusts for the prior already.
"""

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging

from rac_jax.runtime import files

FILE = "coverage.json"
TAUS = np.arange(0.0, 1.51, 0.05)
LEVELS = (0.8, 0.9, 0.95)  # coverages at which τ is compared
LEAST = 20  # held-out images


@dataclasses.dataclass(frozen=True)
class Coverage:
    """What the sets of a run are made with."""

    step: int  # of the checkpoint that was calibrated
    images: str  # which images were held out, for people
    memory: str | None  # the fingerprint of the memory at that time
    tau: float
    scores: np.ndarray  # [n] float64, ascending: of the true labels of held-out images

    def at(self, level: float) -> "LabelSets":
        """The sets that hold the truth this often. They hold all labels if there are too few images to promise it."""
        if not 0 < level < 1:
            raise ValueError(f"coverage is {level}; it must be between 0 and 1, as 0.9")
        return LabelSets(level, self.tau, threshold(self.scores, level), self.memory)


@dataclasses.dataclass(frozen=True)
class LabelSets:
    """Sets of labels that hold the truth as often as `level` says."""

    level: float
    tau: float
    threshold: float
    memory: str | None = None  # the fingerprint of the memory that they were calibrated with

    def inside(self, probabilities: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Which labels are in the sets of images, [B, L] bool: the answer always is.

        Args:
          probabilities: [B, L], the answers of now.
          counts: [L], rows (or training images) of each class.
        """
        chosen = scores(probabilities, counts[None], counts.sum(), self.tau) <= self.threshold
        chosen[np.arange(len(chosen)), probabilities.argmax(axis=1)] = True
        return chosen


def scores(probabilities: np.ndarray, counts: np.ndarray, total: float, tau: float) -> np.ndarray:
    """−p(y|x) / p(y)^τ for probabilities of classes with these counts; a class without any counts as one with 1."""
    return -np.asarray(probabilities, np.float64) / (np.maximum(counts, 1) / total) ** tau


def threshold(ascending: np.ndarray, coverage: float) -> float:
    """The standard threshold of conformal prediction: the ⌈(n + 1) · coverage⌉-th of n scores."""
    place = int(np.ceil((len(ascending) + 1) * coverage - 1e-9))
    return float(ascending[place - 1]) if place <= len(ascending) else float("inf")


def calibrated(
    of_true: np.ndarray, labels: np.ndarray, counts: np.ndarray, *, step: int, images: str, memory: str | None
) -> Coverage | None:
    """From the probabilities [n] of the true labels [n] of held-out images; None if there are too few of them.

    Args:
      of_true: what the run answers for the true label of each image.
      labels: numbers of classes.
      counts: [L], rows (or training images) of each class.
      step: of the checkpoint.
      images: which images these are.
      memory: its fingerprint.
    """
    if len(labels) < LEAST:
        return None
    tau = min(TAUS, key=lambda value: _unevenness(scores(of_true, counts[labels], counts.sum(), value), labels))
    ascending = np.sort(scores(of_true, counts[labels], counts.sum(), float(tau)))
    return Coverage(step, images, memory, float(tau), ascending)


def _unevenness(of_true: np.ndarray, labels: np.ndarray) -> float:
    """How far the mean coverage over classes is from that over images, on average over some levels."""
    ascending, (_, place, count) = np.sort(of_true), np.unique(labels, return_inverse=True, return_counts=True)
    covered = [of_true <= threshold(ascending, level) for level in LEVELS]
    return float(np.mean([abs((np.bincount(place, c) / count).mean() - c.mean()) for c in covered]))


class SetCounts:
    """How often sets hold the truth and how large they are, summed over the images of each class."""

    def __init__(self, coverage: Coverage, counts: np.ndarray):
        self._counts = counts
        self._sets = [coverage.at(level) for level in LEVELS]
        self._sums = np.zeros((len(LEVELS), 3, len(counts)))  # images, hits, labels

    def add(self, probabilities: np.ndarray, labels: np.ndarray) -> None:
        """Further images: answers [B, L] and true labels [B]."""
        for sums, sets in zip(self._sums, self._sets, strict=True):
            inside = sets.inside(probabilities, self._counts)
            hits, sizes = inside[np.arange(len(labels)), labels], inside.sum(axis=1)
            for total, values in zip(sums, (np.ones(len(labels)), hits, sizes), strict=True):
                np.add.at(total, labels, values)

    def summary(self, groups: dict[str, np.ndarray]) -> dict[str, dict[str, dict[str, float]]]:
        """For each level and group of classes: the share of images whose set holds the truth, and the mean size."""
        return {
            str(sets.level): {
                name: {"covered": float(hits / images), "labels": float(size / images)}
                for name, member in groups.items()
                if (images := sums[0, member].sum())
                for hits, size in [sums[1:, member].sum(axis=1)]
            }
            for sums, sets in zip(self._sums, self._sets, strict=True)
        }


def write(workdir: Path, coverage: Coverage) -> None:
    """Keep it with a run."""
    content = dataclasses.asdict(coverage) | {"scores": [float(np.float32(score)) for score in coverage.scores]}
    files.write_text(workdir / FILE, json.dumps(content) + "\n")


def read(workdir: Path, step: int | None = None) -> Coverage | None:
    """That of the run in a folder, if it has one and, with a `step`, one of this step."""
    path = workdir / FILE
    if not path.exists():
        return None
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        found = Coverage(**content | {"scores": np.array(content["scores"], np.float64)})
        holds = found.scores.ndim == 1 and len(found.scores) >= LEAST and (np.diff(found.scores) >= 0).all()
        if not (holds and 0 <= found.tau <= TAUS[-1]):
            raise ValueError("its values do not fit together")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error}); delete it, and train again to make it anew") from error
    return found if step in (None, found.step) else None


def require(workdir: Path, step: int, memory: str | None) -> Coverage:
    """The same, or an error that says what would make it. Another `memory` (its fingerprint) is warned of."""
    found = read(workdir, step)
    if found is None:
        raise ValueError(
            f"{workdir} has no {FILE} for step {step}: sets of labels need held-out images. Training keeps it for data "
            "with a split val (data.val_share), and for voices that need E's keys only (vote, prototype; without "
            "tune.share)"
        )
    if found.memory != memory:
        _warn_of_other_memory(workdir, memory)
    return found


@functools.cache  # once for each state of the memory
def _warn_of_other_memory(workdir: Path, memory: str | None) -> None:
    logging.warning(
        "the sets of labels of %s were calibrated with another memory (%s): they may hold the true label more or less "
        "often than asked",
        workdir,
        FILE,
    )
