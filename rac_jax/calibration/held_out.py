"""Sets of labels for a trained run: which held-out images they are made with."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from rac_jax import config as configs
from rac_jax.calibration import coverage, on_keys
from rac_jax.run import Run
from rac_jax.runtime import processes

OfTrue = tuple[np.ndarray, np.ndarray]  # probabilities of the true labels [n], and those labels [n]


def keep_coverage(run: Run, step: int, workdir: Path, *, on_val: Callable[[], OfTrue]) -> None:
    """Keep what sets of labels need: answers for the split val or, without one, for training images held out in turn.

    The latter is for voices that need E's keys only, which are trained again in seconds.

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
    elif configs.roles(config) == ("encoder",) and config.memory.metric == "cosine" and run.retriever:
        images, (of_true, labels) = "train, held out in turn", on_keys.held_out(run, on_keys.training_rows(run))
    else:
        return
    memory = run.memory_record()["memory"]
    found = coverage.calibrated(of_true, labels, run.class_rows, step=step, images=images, memory=memory)
    if found and processes.first():
        coverage.write(workdir, found)
    processes.wait()
