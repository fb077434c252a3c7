"""What a trained run keeps of held-out images: for sets of labels, and to say how familiar an image is."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from rac_jax.calibration import coverage, on_keys
from rac_jax.memory import build
from rac_jax.retrieval import familiarity, feed
from rac_jax.run import Run
from rac_jax.runtime import processes

OfTrue = tuple[np.ndarray, np.ndarray]  # probabilities of the true labels [n], and those labels [n]


def keep_coverage(run: Run, step: int, workdir: Path, *, on_val: Callable[[], OfTrue]) -> None:
    """Keep what sets of labels need: answers for the split val or, without one, for training images held out in turn.

    The latter is for voices that need keys of a published E only, which are trained again in seconds.

    Args:
      run: with its memory.
      step: of the checkpoint.
      workdir: its folder.
      on_val: the answers of the trained run for the split val; called only if there is one.
    """
    config = run.config
    if not config.train.calibrate_sets or coverage.read(workdir, step):
        return
    if "val" in run.dataset.splits and len(run.dataset.split("val")):
        images, (of_true, labels) = "val", on_val()
    elif on_keys.possible(run):
        images, (of_true, labels) = "train, held out in turn", on_keys.held_out(run, on_keys.training_rows(run))
    else:
        return
    memory = run.memory_record()["memory"]
    found = coverage.calibrated(of_true, labels, run.class_rows, step=step, images=images, memory=memory)
    if found and processes.first():
        coverage.write(workdir, found)
    processes.wait()


def keep_keys(run: Run, workdir: Path) -> None:
    """Keep the keys of some images of the split val, with which others are compared: see retrieval/familiarity.py."""
    images = len(run.dataset.split("val")) if "val" in run.dataset.splits else 0
    if run.retriever is None or images < familiarity.FEWEST or (workdir / familiarity.FILE).exists():
        return
    some = np.unique(np.linspace(0, images - 1, familiarity.MOST).astype(int))
    if run.config.train.calibrate_sets and not run.needs_images:  # all keys were computed for the sets of labels
        keys = feed.keys_of(run.config, run.retriever, run.mesh, run.dataset, "val")[some]
    else:
        keys = build.encode_split(run.config, run.dataset.split("val").select(some), run.retriever.encoder, run.mesh)
    if processes.first():
        familiarity.write(workdir, keys)
    processes.wait()
