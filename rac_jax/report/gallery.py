"""The pictures of an evaluation: what its counts, its predictions and the images themselves show."""

import shutil
from pathlib import Path

import numpy as np
from tqdm import tqdm

from rac_jax import system
from rac_jax.metrics import Counts
from rac_jax.report import pictures, plots, views
from rac_jax.report.predictions import Predictions
from rac_jax.report.tensorboard import TensorBoard

SHOWN_NEIGHBOURS = 8


def draw(
    parts: system.System,
    counts: dict[str, Counts],
    predicted: Predictions,
    split: str,
    step: int,
    folder: Path,
    board: TensorBoard,
) -> None:
    """The pictures of a split's evaluation, in a folder and in TensorBoard."""
    names, output = parts.dataset.class_names, next(iter(predicted.votes))
    figures = {
        "by_class": plots.by_class(counts, parts.dataset.class_counts),
        "by_frequency": plots.by_frequency(counts, parts.dataset.class_counts),
        "confusion": plots.confusion(predicted, output, names),
        "calibration": plots.calibration(predicted),
    }
    if parts.retrieval is not None and parts.config.eval.show:
        for reason, places in views.chosen(predicted, parts.config.eval.show, parts.config.seed).items():
            for number, place in enumerate(places):
                figures[f"{reason}_{number}"] = views.draw(_view(parts, predicted, split, place))
                if reason == "random":
                    board.image(step, f"neighbours/{split}_{number}", _strip(parts, predicted, split, place))
    shutil.rmtree(folder, ignore_errors=True)  # pictures of another step
    for name, figure in tqdm(figures.items(), desc="draw", leave=False):
        encoded = plots.png(figure)
        plots.save(folder / f"{name}.png", encoded)
        board.image(step, f"{split}/{name}", plots.pixels(encoded))


def _view(parts: system.System, predicted: Predictions, split: str, place: int) -> views.View:
    assert parts.retrieval is not None
    images, memory, texts = parts.dataset.split(split), parts.retrieval.memory, parts.dataset.class_texts
    there = predicted.rows[place] >= 0
    return views.View(
        image=images.images[int(predicted.id[place])],
        true_text=texts[predicted.label[place]],
        texts=memory.texts.take(memory.text_of[predicted.rows[place][there]]),
        similarities=predicted.similarities[place][there],
        answers={name: (texts[v.label[place]], float(v.probability[place])) for name, v in predicted.votes.items()},
    )


def _strip(parts: system.System, predicted: Predictions, split: str, place: int) -> np.ndarray:
    """An image with its nearest neighbours beside it."""
    assert parts.retrieval is not None
    memory, rows = parts.retrieval.memory, predicted.rows[place][:SHOWN_NEIGHBOURS]
    rows = rows[rows >= 0]
    return pictures.neighbour_strip(
        parts.dataset.split(split).images[int(predicted.id[place])],
        parts.dataset.class_texts[predicted.label[place]],
        [_picture(parts, row) for row in rows],
        memory.texts.take(memory.text_of[rows]),
    )


def _picture(parts: system.System, row: int) -> np.ndarray:
    """The image of a memory's row, where it can be had: of the training split, or a file that is still there."""
    assert parts.retrieval is not None
    memory = parts.retrieval.memory
    source, position = memory.source_of(row)
    if source.fingerprint == parts.retrieval.train_fingerprint:
        return parts.dataset.split("train").images[position]
    return pictures.of_file(memory.file_of(row))
