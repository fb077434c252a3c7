"""The offset of classes without training: found by leaving classes out of training and adding them afterwards.

A class that only the memory has competes with trained classes, whose prototypes were corrected without it. One number,
added to the fused logits of all such classes, balances the two. It is found on the training images alone: each fifth
of the classes is left out once, the voices are trained on the others, and the left-out classes are added to the memory.
The offset with the best mean accuracy over all classes on held-out training images is kept with the checkpoint, among
those with which the trained classes lose little.
"""

import dataclasses

import numpy as np
from absl import logging

from rac_jax.calibration.on_keys import Rows, Voices, training_rows
from rac_jax.models.rac import FUSED, VoiceSettings
from rac_jax.models.voices import READ_FROM_MEMORY
from rac_jax.run import Run

FOLDS = 5  # of the classes, each of which is left out once: a single draw gave −1.5 to −3.5 on CIFAR-100-LT
HELD_OUT = 0.2  # share of each class's images
OFFSETS = np.arange(-8.0, 2.01, 0.25)
MOST_LOST = 0.03  # of the accuracy of trained classes, when others are added


def offset(run: Run) -> float:
    """The offset for the voices of a run, from the keys and classes of its training images.

    Only the voices that are read from the memory are trained here: they alone say how probable new classes are.
    """
    if run.retriever is None or "prototype" not in run.model.settings.speaking:
        return 0.0  # only prototypes are pushed apart by training
    if run.config.tune.share:
        return 0.0  # E was trained on the classes that would be left out
    if run.model.output != FUSED or run.config.memory.metric != "cosine":
        logging.warning("the offset of new classes is 0: it needs several voices and memory.metric=cosine")
        return 0.0
    random = np.random.default_rng(run.config.seed)
    rows = training_rows(run).sample(random)
    if run.classes.trained < 3 or np.bincount(rows.labels).max() < 2:
        return 0.0  # too few classes or images to leave some out
    folds = np.array_split(random.permutation(run.classes.trained), min(FOLDS, run.classes.trained - 1))
    found = [both for new in folds if (both := _accuracies(run, rows, new, random)) is not None]
    return best(*np.mean(found, axis=0)) if found else 0.0


def _accuracies(
    run: Run, rows: Rows, new: np.ndarray, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray] | None:
    """What `accuracies` gives if the classes `new` are left out of training.

    None where these or the other classes have no held-out image: one kind alone says nothing about the balance.
    """
    order = np.argsort(np.isin(np.arange(run.classes.trained), new), kind="stable")  # left-out classes come last
    rows = Rows(rows.keys, np.argsort(order).astype(np.int32)[rows.labels])
    trained = run.classes.trained - len(new)
    held = _held_out(rows.labels, random)
    inside, asked = rows[~held], rows[held]
    if (asked.labels < trained).all() or (asked.labels >= trained).all():
        return None
    learning = inside[inside.labels < trained]
    settings = _of_memory(run.model.settings)
    voices = Voices(run, settings, classes=trained, width=rows.keys.shape[1], images=len(learning))
    params = voices.fit(learning, "offset of new classes")
    logits = voices.logits(params, asked, inside, run.classes.trained)
    return accuracies(logits, asked.labels, trained)


def accuracies(logits: np.ndarray, labels: np.ndarray, trained: int) -> tuple[np.ndarray, np.ndarray]:
    """With each of OFFSETS added to the classes from number `trained` on: mean accuracies over classes.

    Returns:
      The accuracy over all classes, and what the trained classes lose beside an answer without the others; [O] each.
    """
    is_new = np.arange(logits.shape[1]) >= trained

    def accuracy(value: float, classes: np.ndarray) -> float:
        right = (logits + np.where(is_new, value, 0.0)).argmax(axis=1) == labels
        return float(np.mean([right[labels == label].mean() for label in classes]))

    present = np.unique(labels)
    old = present[present < trained]
    alone = accuracy(-np.inf, old)
    return (
        np.array([accuracy(value, present) for value in OFFSETS]),
        np.array([alone - accuracy(value, old) for value in OFFSETS]),
    )


def best(scores: np.ndarray, lost: np.ndarray) -> float:
    """The offset with the best score among those that lose at most MOST_LOST; the middle of several equally good."""
    allowed = np.where(lost <= max(MOST_LOST, lost.min()), scores, -np.inf)
    return float(np.mean(OFFSETS[allowed >= allowed.max() - 1e-9]))


def _held_out(labels: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """A share of the images of each class that has two or more, [N] bool."""
    held = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        mine = random.permutation(np.flatnonzero(labels == label))
        held[mine[: min(max(1, round(HELD_OUT * len(mine))), len(mine) - 1)]] = True
    return held


def _of_memory(settings: VoiceSettings) -> VoiceSettings:
    """The same settings with the voices that are read from the memory only.

    The offset is added before the sharpness is applied, so it is found without that.
    """
    weights = dict(zip(settings.speaking, settings.weights, strict=True))
    speaking = tuple(voice for voice in settings.speaking if voice in READ_FROM_MEMORY)
    chosen = tuple(weights[voice] for voice in speaking)
    return dataclasses.replace(settings, speaking=speaking, weights=chosen, sharpness=1.0)
