"""The data set that a trained run is evaluated on, which need not be the one that it was trained on."""

import contextlib
import dataclasses
from pathlib import Path

from ml_collections import ConfigDict

from rac_jax import data
from rac_jax.data import usable
from rac_jax.data.dataset import Dataset, texts
from rac_jax.data.record import Record
from rac_jax.data.sets import folder, packed


def load(config: ConfigDict, split: str, trained_on: Record) -> Dataset:
    """The data set of the config with at least this split.

    A folder of classes that is not the run's own needs no training images: without a folder for the split, all of its
    images belong to the split. A run's own folder, also where it was moved, is split as it was for training.
    """
    kind, _, argument = config.data.name.partition(":")
    root = argument or config.data.root
    if kind != "folder" or packed.is_prepared(config.data.root) or _is_own(config, root, trained_on):
        return data.load(config)
    return of_folder(root, split, image_size=config.data.image_size, skip_bad=config.data.on_bad_image == "skip")


def of_folder(root: str, split: str, *, image_size: int, skip_bad: bool) -> Dataset:
    """A data set with one split: the folder of that name, or all images of a folder of classes."""
    class_names, part = folder.read(root, split)
    dataset = data.sized(Dataset(Path(root).name, class_names, texts(class_names), {split: part}), image_size)
    return (
        dataclasses.replace(dataset, splits={split: usable.usable_part(dataset.split(split))}) if skip_bad else dataset
    )


def _is_own(config: ConfigDict, root: str, trained_on: Record) -> bool:
    """Is this the folder that the run was trained on, or a copy of it?"""
    if trained_on.root and Path(root).resolve() == Path(trained_on.root).resolve():
        return True
    with contextlib.suppress(OSError, ValueError):  # a folder that cannot be trained on
        return data.load(config).fingerprint("train") == trained_on.train_fingerprint
    return False
