"""E itself, trained for the data before the memory is made (config.tune).

B alone is trained, from E's weights. E then becomes the mean of the published and the trained weights, and the
memory is made with it: vote and prototype become more accurate, and still follow edits. The trained weights alone
would fit the training images better than images that are added later; the mean hardly does.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import logging
from flax import nnx
from jax.experimental import multihost_utils
from ml_collections import ConfigDict

from rac_jax import config as configs
from rac_jax import models, rules, weights
from rac_jax.config import ConfigError
from rac_jax.memory import manifest
from rac_jax.models import cut
from rac_jax.retrieval.cached import everybody
from rac_jax.run import ENCODER, memory_folder
from rac_jax.runtime import files, processes
from rac_jax.weights import parameters

FOLDER = "tuning"  # of the run in which B is trained, inside the run's own folder
FILE = "model.npz"  # in the folder ENCODER
FIELDS = {  # of config.tune, and those of the run in which B is trained
    "frozen": "optim.frozen", "learning_rate": "optim.learning_rate", "warmup_epochs": "optim.warmup_epochs",
    "views": "train.views", "epochs": "train.epochs", "batch_size": "train.batch_size",
}  # fmt: skip

Train = Callable[[ConfigDict, Path], Any]  # trains a run in a folder and returns its state


def with_tuned_encoder(config: ConfigDict, workdir: Path, train: Train) -> ConfigDict:
    """The config with the E that config.tune describes. E is trained now unless the folder has it.

    Args:
      config: of the run.
      workdir: its folder, where E's weights are kept.
      train: see Train.
    """
    if not config.tune.share:
        return config
    path = workdir / ENCODER / FILE
    if not everybody(path.exists()):
        _require_no_memory(config, workdir)
        first = checked_stage(config)
        logging.info("training E in %s", workdir / FOLDER)
        state = train(first, workdir / FOLDER)
        arrays = _mean(config, {"params": state.params["base"], "stats": state.stats.get("base", {})})
        if processes.first():
            _write(path, arrays)
        processes.wait()
    config = config.copy_and_resolve_references()
    config.model.encoder.weights = str(path.resolve())
    return config


def _require_no_memory(config: ConfigDict, workdir: Path) -> None:
    """A memory that is there before E is trained was made with another E. Noticed now, not after E's training."""
    folder = memory_folder(config, workdir)
    if manifest.exists(folder):
        raise ValueError(
            f"{folder} holds a memory of another E; with config.tune.share the memory is made after E is trained: "
            "use another --config.memory.dir, or none"
        )


def _write(path: Path, arrays: dict[str, Any]) -> None:
    """Write E's file. Its folder appears with it, so that it never holds anything else."""
    with (
        files.atomic_folder(path.parent) as new,
        files.atomic(new / path.name) as temporary,
        temporary.open("wb") as file,
    ):
        np.savez(file, **arrays)


def checked_stage(config: ConfigDict) -> ConfigDict:
    """The same as `stage`; an error about it names the fields of config.tune."""
    first = stage(config)
    try:
        rules.validate(first, devices=jax.device_count())
        cut.of(first, nnx.eval_shape(lambda: _model(first, "base")))
    except ConfigError as error:
        text = str(error)
        for name, other in FIELDS.items():
            text = text.replace(f"config.{other}", f"config.tune.{name}")
        raise ConfigError(f"the training of E (config.tune.share): {text}") from None
    return first


def stage(config: ConfigDict) -> ConfigDict:
    """The config of the run in which B is trained: base alone, with a cosine head that starts from class means."""
    c, tune, dtype = config.copy_and_resolve_references(), config.tune, config.model.dtype
    configs.finetuned(c)
    c.name = f"{config.name}_{FOLDER}"
    c.model.base.update(c.model.encoder.to_dict())
    c.model.voices, c.model.dtype = "base+vote", dtype
    c.model.weights.update(base=1.0, vote=0.0)  # the vote is silent: it is there for E's keys
    c.model.text_start, c.loss.own = "random", 0.0
    c.optim.update(name="adamw", clip=1.0)
    for name, other in FIELDS.items():
        room, _, field = other.partition(".")
        c[room][field] = tune[name]
    c.optim.warmup_epochs = min(tune.warmup_epochs, tune.epochs)
    c.train.update(steps=0, accumulate=1, calibrate_new=False, calibrate_sets=False)  # all of E's training at once
    c.memory.update(dir="", thumbnails=0, k=config.memory.k)
    c.tune.share = 0.0
    return c


def _model(config: ConfigDict, role: str) -> Any:
    return models.from_config(config, role, nnx.Rngs(0), image_size=config.data.image_size)


def _mean(config: ConfigDict, trained: Any) -> dict[str, Any]:
    """The mean of E's published arrays and the trained ones, by path."""
    module = nnx.eval_shape(lambda: _model(config, "encoder"))
    share, published = config.tune.share, weights.from_config(config, "encoder", module)
    if jax.process_count() > 1:
        trained = multihost_utils.process_allgather(trained, tiled=True)
    arrays = {path: np.asarray(leaf) for part in trained.values() for path, leaf in parameters.flat(part).items()}
    return {
        path: ((1 - share) * np.asarray(values, np.float32) + share * arrays[path]).astype(np.float32)
        for path, values in published.items()
    }
