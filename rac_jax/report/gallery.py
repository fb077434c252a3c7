"""The pictures of an evaluation, drawn from its counts, its predictions and the images themselves."""

import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
from absl import logging
from matplotlib.figure import Figure
from tqdm import tqdm

from rac_jax.metrics import Counts
from rac_jax.report import pictures, plots, views
from rac_jax.report.predictions import Predictions
from rac_jax.report.tensorboard import TensorBoard
from rac_jax.run import Run

SHOWN_NEIGHBOURS = 8
Drawn = TypeVar("Drawn")


def draw(
    run: Run,
    counts: dict[str, Counts],
    predicted: Predictions,
    split: str,
    step: int,
    folder: Path,
    board: TensorBoard,
) -> None:
    """Write the pictures of a split's evaluation to a folder and to TensorBoard.

    A picture that cannot be drawn is left out with a warning: the evaluation itself is already complete.
    """
    shutil.rmtree(folder, ignore_errors=True)  # pictures of an earlier step
    for name, make in tqdm(_figures(run, counts, predicted, split).items(), desc="draw", leave=False):
        encoded = _attempt(f"{split}/{name}", functools.partial(_png, make))
        if encoded is not None:
            plots.save(folder / f"{name}.png", encoded)
            board.image(step, f"{split}/{name}", plots.pixels(encoded))
    if run.retriever is not None and run.config.eval.show:
        for number, place in enumerate(views.chosen(predicted, run.config.eval.show, run.config.seed)["random"]):
            name = f"neighbours/{split}_{number}"
            strip = _attempt(name, functools.partial(_strip, run, predicted, split, place))
            if strip is not None:
                board.image(step, name, strip)


def _figures(
    run: Run, counts: dict[str, Counts], predicted: Predictions, split: str
) -> dict[str, Callable[[], Figure]]:
    """How each picture is drawn, by name."""
    classes, output = run.class_counts, next(iter(predicted.votes))
    window = run.config.eval.moving_average
    figures: dict[str, Callable[[], Figure]] = {
        "by_class": lambda: plots.by_class(counts, classes, window),
        "by_frequency": lambda: plots.by_frequency(counts, classes),
        "confusion": lambda: plots.confusion(predicted, output, run.classes.names),
        "calibration": lambda: plots.calibration(predicted),
    }
    if run.retriever is not None and run.config.eval.show:
        for reason, chosen in views.chosen(predicted, run.config.eval.show, run.config.seed).items():
            for number, place in enumerate(chosen):
                figures[f"{reason}_{number}"] = functools.partial(_draw_view, run, predicted, split, place)
    return figures


def _png(make: Callable[[], Figure]) -> bytes:
    return plots.png(make())


def _attempt(name: str, make: Callable[[], Drawn]) -> Drawn | None:
    """What `make` returns, or None and a warning if it fails, whatever the reason."""
    try:
        return make()
    except Exception as error:
        logging.warning("the picture %s could not be drawn: %s: %s", name, type(error).__name__, error)
        return None


def _draw_view(run: Run, predicted: Predictions, split: str, place: int) -> Figure:
    assert run.retriever is not None
    images, memory, texts = run.dataset.split(split), run.retriever.memory, run.class_texts
    there, truth = predicted.rows[place] >= 0, predicted.label[place]
    rows = predicted.rows[place][there]
    classes, names = _classes(run, rows)
    view = views.View(
        image=images.images[int(predicted.id[place])],
        true_text=texts[truth],
        texts=memory.texts.take(memory.text_of[rows]),
        names=names,
        matches=classes == truth,
        similarities=predicted.similarities[place][there],
        metric=run.retriever.lookup.metric,
        answers={
            name: (texts[v.label[place]], float(v.probability[place]), bool(v.label[place] == truth))
            for name, v in predicted.votes.items()
        },
    )
    return views.draw(view)


def _strip(run: Run, predicted: Predictions, split: str, place: int) -> np.ndarray:
    """An image with its nearest neighbours beside it."""
    assert run.retriever is not None
    truth, rows = predicted.label[place], predicted.rows[place][:SHOWN_NEIGHBOURS]
    rows = rows[rows >= 0]
    classes, names = _classes(run, rows)
    return pictures.neighbour_strip(
        run.dataset.split(split).images[int(predicted.id[place])],
        run.class_texts[truth],
        [_picture(run, row) for row in rows],
        names,
        [bool(c == truth) if c >= 0 else None for c in classes],
    )


def _classes(run: Run, rows: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """The class of each row [M], −1 for none, and its name; the row's own text where there is none."""
    assert run.retriever is not None
    memory, classes = run.retriever.memory, np.asarray(run.retriever.knowledge.row_label)[rows]
    own = memory.texts.take(memory.text_of[rows])
    return classes, [run.class_texts[c] if c >= 0 else text for c, text in zip(classes, own, strict=True)]


def _picture(run: Run, row: int) -> np.ndarray:
    """The image of a memory's row: from the training split, its file or its thumbnail."""
    assert run.retriever is not None
    memory = run.retriever.memory
    source, position = memory.source_of(row)
    if source.fingerprint == run.retriever.train_fingerprint and "train" in run.dataset.splits:
        return pictures.or_grey(lambda: run.dataset.split("train").images[position])
    return pictures.of_row(memory, row)
