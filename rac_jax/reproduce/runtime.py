"""The time of an epoch, from a short training without an evaluation.

The time of a step is the median over the run's records, without the first ones after a start, in which programs were
compiled. The memory is searched at every step, even if the config has cached neighbours. Nothing else should run on
the machine meanwhile.
"""

import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from ml_collections import ConfigDict
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rac_jax import config as configs
from rac_jax import data, optimizer, sharding, train
from rac_jax.data.dataset import Dataset
from rac_jax.memory import build, columns, made, manifest
from rac_jax.memory.sources import Content
from rac_jax.retrieval import encoder as encoders

STEPS, RECORDS, FIRST = 60, 12, 2  # most steps; records of their time; records after a start that are ignored
SOURCE = "made"


def measure(config: ConfigDict, workdir: Path, times: int) -> dict[str, Any]:
    """The `figures` of a table. First the memory gets synthetic rows, `times` as many as it has."""
    dataset = data.load(config)
    folder = Path(config.memory.dir or workdir / "memory")
    config.train.steps = min(config.train.steps or STEPS, STEPS)
    config.train.log_every = max(1, config.train.steps // RECORDS)
    if config.memory.lookup == "cached":
        config.memory.lookup = "callback"
    if times:
        grow(config, dataset, folder, times)
    train.train(config, workdir, evaluated=False)
    step = statistics.median(milliseconds(workdir))
    steps = optimizer.steps_per_epoch(len(dataset.split("train")), config.train.batch_size)
    rows = 0 if configs.roles(config) == ("base",) else manifest.read(folder).rows
    return {"figures": {"s an epoch": 1e-3 * step * steps, "ms a step": step, "rows in memory": rows}}


def grow(config: ConfigDict, dataset: Dataset, folder: Path, times: int) -> None:
    """Build the memory if there is none, and add synthetic keys that resemble its own, with texts of its own."""
    mesh = sharding.make_mesh(config)
    encoder = encoders.load(config, mesh)
    memory = build.open_or_build(config, dataset, encoder, folder=folder, mesh=mesh)
    if any(source.name == SOURCE and source.finished for source in memory.manifest.sources):
        return
    rows = times * len(memory)
    texts = memory.texts.take(memory.text_of[np.random.default_rng(0).integers(len(memory), size=rows)])
    table = columns.make(pa.array(texts), [f"{SOURCE}/{number}" for number in range(rows)])
    content = Content("made up", "", f"{SOURCE} {rows}", table, keys=made.like(memory.keys, rows))
    build.add(config, memory.recipe, SOURCE, content, encoder, folder=folder, mesh=mesh)


def milliseconds(workdir: Path) -> list[float]:
    """The times of steps in the run's records, without the first after each start."""
    found: list[float] = []
    for path in sorted((workdir / "tensorboard").glob("events*")):
        events = EventAccumulator(str(path)).Reload()
        if "train/step_ms" in events.Tags()["scalars"]:
            found += [point.value for point in events.Scalars("train/step_ms")[FIRST:]]
    if not found:
        raise ValueError(f"the run in {workdir} is too short to be timed: it needs more than {FIRST} steps")
    return found
