"""The pictures of an evaluation: what its counts, its predictions and the images themselves show."""

import shutil
from pathlib import Path

import numpy as np
from tqdm import tqdm

from rac_jax.metrics import Counts
from rac_jax.report import pictures, plots, views
from rac_jax.report.predictions import Predictions
from rac_jax.report.tensorboard import TensorBoard
from rac_jax.run import Run

SHOWN_NEIGHBOURS = 8


def draw(
    run: Run,
    counts: dict[str, Counts],
    predicted: Predictions,
    split: str,
    step: int,
    folder: Path,
    board: TensorBoard,
) -> None:
    """The pictures of a split's evaluation, in a folder and in TensorBoard."""
    names, output = run.dataset.class_names, next(iter(predicted.votes))
    figures = {
        "by_class": plots.by_class(counts, run.dataset.class_counts),
        "by_frequency": plots.by_frequency(counts, run.dataset.class_counts),
        "confusion": plots.confusion(predicted, output, names),
        "calibration": plots.calibration(predicted),
    }
    if run.retriever is not None and run.config.eval.show:
        for reason, places in views.chosen(predicted, run.config.eval.show, run.config.seed).items():
            for number, place in enumerate(places):
                figures[f"{reason}_{number}"] = views.draw(_view(run, predicted, split, place))
                if reason == "random":
                    board.image(step, f"neighbours/{split}_{number}", _strip(run, predicted, split, place))
    shutil.rmtree(folder, ignore_errors=True)  # pictures of another step
    for name, figure in tqdm(figures.items(), desc="draw", leave=False):
        encoded = plots.png(figure)
        plots.save(folder / f"{name}.png", encoded)
        board.image(step, f"{split}/{name}", plots.pixels(encoded))


def _view(run: Run, predicted: Predictions, split: str, place: int) -> views.View:
    assert run.retriever is not None
    images, memory, texts = run.dataset.split(split), run.retriever.memory, run.dataset.class_texts
    there = predicted.rows[place] >= 0
    return views.View(
        image=images.images[int(predicted.id[place])],
        true_text=texts[predicted.label[place]],
        texts=memory.texts.take(memory.text_of[predicted.rows[place][there]]),
        similarities=predicted.similarities[place][there],
        answers={name: (texts[v.label[place]], float(v.probability[place])) for name, v in predicted.votes.items()},
    )


def _strip(run: Run, predicted: Predictions, split: str, place: int) -> np.ndarray:
    """An image with its nearest neighbours beside it."""
    assert run.retriever is not None
    memory, rows = run.retriever.memory, predicted.rows[place][:SHOWN_NEIGHBOURS]
    rows = rows[rows >= 0]
    return pictures.neighbour_strip(
        run.dataset.split(split).images[int(predicted.id[place])],
        run.dataset.class_texts[predicted.label[place]],
        [_picture(run, row) for row in rows],
        memory.texts.take(memory.text_of[rows]),
    )


def _picture(run: Run, row: int) -> np.ndarray:
    """The image of a memory's row, where it can be had: of the training split, or a file that is still there."""
    assert run.retriever is not None
    memory = run.retriever.memory
    source, position = memory.source_of(row)
    if source.fingerprint == run.retriever.train_fingerprint:
        return run.dataset.split("train").images[position]
    return pictures.of_file(memory.file_of(row))
