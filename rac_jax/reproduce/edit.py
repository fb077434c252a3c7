"""What rows that are added to the memory after training bring.

The run is trained on the part of the data that config.data.keep_share and keep_classes describe, with a memory of the
same images. Then the other images are added to the memory, in one or several steps, and after each the same checkpoint
is evaluated on all classes. No key is computed twice: all memories take their keys from that of all training images,
config.memory.dir. With config.tune each run has an E of its own, trained on its part of the data, and its own memories.
"""

import contextlib
import dataclasses
import functools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from rac_jax import data, evaluate, metrics, sharding, train
from rac_jax.data import subset
from rac_jax.data.dataset import Dataset
from rac_jax.memory import build, sources, store
from rac_jax.metrics import Counts
from rac_jax.reproduce.further import KEPT_CLASSES, SHARES, at
from rac_jax.retrieval import encoder as encoders
from rac_jax.start import tuning


@dataclasses.dataclass(frozen=True)
class Memories:
    """Makes memories of some of the training images out of the memory of all."""

    config: ConfigDict  # with all data
    dataset: Dataset
    encoder: Any
    mesh: Any
    everything: store.Memory

    @classmethod
    def of(cls, config: ConfigDict) -> "Memories":
        """The memory of all training images is built in config.memory.dir unless it is there."""
        config, mesh = with_all_data(config), sharding.make_mesh(config)
        dataset, encoder = data.load(config), encoders.load(config, mesh)
        folder = Path(config.memory.dir)
        everything = build.open_or_build(config, dataset, encoder, folder=folder, mesh=mesh)
        return cls(config, dataset, encoder, mesh, everything)

    def add(self, name: str, part: Dataset, chosen: np.ndarray, folder: Path) -> None:
        """Add a source that is the training split of `part`: the images `chosen` [N] of all training images."""
        rows = self.everything.row_of(self.dataset.fingerprint("train"), np.flatnonzero(chosen).astype(np.int32))
        content = dataclasses.replace(
            sources.of_split(part, "train"), split=None, keys=np.asarray(self.everything.keys[rows], np.float32)
        )
        recipe = build.make_recipe(self.config, self.encoder)
        build.add(self.config, recipe, name, content, self.encoder, folder=folder, mesh=self.mesh)

    def rest(self, chosen: np.ndarray) -> Dataset:
        """The data set with only the images `chosen` [N] for training."""
        split = self.dataset.split("train").select(np.flatnonzero(chosen))
        return dataclasses.replace(self.dataset, splits={"train": split})


def measure(config: ConfigDict, workdir: Path) -> dict[str, Any]:
    """The `figures` of a table: accuracies in % after the last edit, and before it."""
    if config.tune.share:
        config = tuning.with_tuned_encoder(config, workdir, functools.partial(train.train, evaluated=False))
        config.tune.share, config.memory.dir = 0.0, str(workdir / "everything")  # from now on, E is that file
        config.train.update(calibrate_new=False, calibrate_sets=False)  # which need images that E has not seen
    memories = Memories.of(config)
    labels = memories.dataset.split("train").labels
    mine = _kept(config, labels, memories.dataset.num_classes)
    own, edited = workdir / "memory", workdir / "edited"
    memories.add(build.TRAIN, data.load(config), mine, own)
    config.memory.dir = str(own)
    train.train(config, workdir, evaluated=False)
    figures = evaluated(memories, workdir, own)
    if config.data.keep_share in SHARES:
        figures[at(config.data.keep_share)] = figures["all"]
    before = dict(figures)
    with _copied(own, edited):
        for share, chosen in _edits(config, labels):
            memories.add(f"to {share:g}", memories.rest(chosen & ~mine), chosen & ~mine, edited)
            mine = mine | chosen
            found = evaluated(memories, workdir, edited)
            figures |= found | {at(share): found["all"]}
    if before != figures:
        figures |= {"before": before["all"], "lost": before["old classes"] - figures["old classes"]}
    return {"figures": figures}


def evaluated(memories: Memories, workdir: Path, folder: Path) -> dict[str, float]:
    """Accuracies in % of the newest checkpoint on all classes, with the memory in a folder.

    Groups are by the number of images in all training data. `old classes` are those that a run with keep_classes of
    the table `new` is trained on, whatever this run was trained on.
    """
    config, dataset = memories.config.copy_and_resolve_references(), memories.dataset
    config.memory.dir = str(folder)
    run, params, stats, _ = evaluate.restore(config, workdir, None, split=config.eval.split)
    counts = next(iter(evaluate.count(run, params, stats, config.eval.split).values()))
    ours = Counts(*(values[run.labels] for values in (counts.seen, counts.correct, counts.correct5)))
    figures = metrics.summary(ours, dataset.class_counts)
    old = np.isin(
        np.arange(dataset.num_classes), subset.kept_classes(dataset.num_classes, KEPT_CLASSES, config.data.seed)
    )
    for name, member in (("old classes", old), ("new classes", ~old)):
        figures[name] = float(ours.correct[member].sum() / max(ours.seen[member].sum(), 1))
    return {name: 100 * share for name, share in figures.items()} | {"offset": run.memory_record()["offset"]}


def with_all_data(config: ConfigDict) -> ConfigDict:
    """A copy of a config that leaves out no data."""
    config = config.copy_and_resolve_references()
    config.data.keep_share = config.data.keep_classes = 1.0
    return config


def _edits(config: ConfigDict, labels: np.ndarray) -> Iterator[tuple[float, np.ndarray]]:
    """The shares that the memory grows to, and which images [N] it then holds at least."""
    shares = SHARES if config.data.keep_classes == 1 else (1.0,)
    for share in shares:
        if share > config.data.keep_share or config.data.keep_classes < 1:
            yield share, subset.kept_images(labels, share, config.data.seed)


def _kept(config: ConfigDict, labels: np.ndarray, classes: int) -> np.ndarray:
    """Which of all training images a run is trained on, [N] bool."""
    keep, kept = config.data, np.ones(len(labels), bool)
    if keep.keep_classes < 1:
        kept = np.isin(labels, subset.kept_classes(classes, keep.keep_classes, keep.seed))
    if keep.keep_share < 1:
        kept[kept] = subset.kept_images(labels[kept], keep.keep_share, keep.seed)
    return kept


@contextlib.contextmanager
def _copied(folder: Path, copy: Path) -> Iterator[None]:
    """A copy of a memory, to be changed; what an interrupted command left of it is replaced."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    yield
    shutil.rmtree(copy)
