"""Data sets and the pipeline that turns their images into batches."""

import dataclasses

from absl import logging
from ml_collections import ConfigDict

from rac_jax.data import class_texts, duplicates, long_tail, noise, subset, transforms, usable
from rac_jax.data.dataset import Dataset, Split, same_texts
from rac_jax.data.encoded import EncodedImages
from rac_jax.data.files import FileImages
from rac_jax.data.randaugment import RandAugment
from rac_jax.data.reading import enough_for, read_image
from rac_jax.data.sets import cifar, digits, folder, groceries, imagenet, inat, packed, places, table, tfds
from rac_jax.data.sets.tfds import RecordImages

KNOWN = """\
digits, groceries, places_lt, inat2018, imagenet_lt, cifar10_lt, cifar100_lt; folder (config.data.root) or folder:DIR;
table:FILE with a .csv, .jsonl or .parquet; tfds:NAME"""


__all__ = [
    "KNOWN", "Dataset", "Split", "eval_transform", "load", "plain_transform", "read_image", "sized", "train_transform",
]  # fmt: skip


def load(config: ConfigDict) -> Dataset:
    """The data set that `config.data` names."""
    data = config.data
    _check_imbalance(data)
    dataset = packed.load(data) if packed.is_prepared(data.root) else _load(data)
    dataset = sized(dataset, data.image_size)
    duplicates.warn(dataset)
    _warn_of_same_texts(dataset)
    dataset = usable.without_bad(dataset) if data.on_bad_image == "skip" else dataset
    dataset = subset.most_frequent(dataset, data.frequent)
    if data.images and data.name != "groceries":
        dataset = long_tail.of_total(dataset, data.images, max(data.imbalance, 1.0), data.seed)
    dataset = subset.of(dataset, share=data.keep_share, classes=data.keep_classes, seed=data.seed)
    dataset = class_texts.of(dataset, data.caption)
    return noise.of(dataset, share=data.label_noise, where=data.noise_in, seed=data.seed)


def _warn_of_same_texts(dataset: Dataset) -> None:
    groups = same_texts(dataset)
    if groups and dataset.name != "inat2018":  # whose text_levels may be meant to be shared
        logging.warning(
            "%s: %d classes share their text with another class, as %s do; give them names with other words",
            dataset.name, sum(map(len, groups)), " and ".join(map(repr, groups[0][:3])),
        )  # fmt: skip


def _check_imbalance(data: ConfigDict) -> None:
    kind = data.name.partition(":")[0]
    if data.imbalance > 1 and kind in ("digits", "places_lt", "inat2018", "imagenet_lt") and not data.images:
        raise ValueError(f"config.data.imbalance is {data.imbalance}, but {kind} is long-tailed already; set it to 0")


def _load(data: ConfigDict) -> Dataset:
    kind, _, argument = data.name.partition(":")
    shares = {"seed": data.seed, "val_share": data.val_share, "test_share": data.test_share}
    if kind == "digits":
        return digits.load(data.seed)
    if kind == "groceries":
        return groceries.load(data.seed, imbalance=data.imbalance, images=data.images)
    if kind == "places_lt":
        return places.load(data.root, data.lists)
    if kind == "inat2018":
        return inat.load(data.root, data.lists, data.text_levels)
    if kind == "imagenet_lt":
        return imagenet.load(data.root, data.lists)
    if kind in ("cifar10_lt", "cifar100_lt"):
        classes = 10 if kind == "cifar10_lt" else 100
        return cifar.load(classes, data.root, imbalance=0.0 if data.images else data.imbalance, seed=data.seed)
    if kind == "folder":
        return _perhaps_thinned(folder.load(argument or data.root, **shares), data)
    if kind == "table":
        return _perhaps_thinned(table.load(argument, data.root, **shares), data)
    if kind == "tfds":
        return _perhaps_thinned(tfds.load(argument, data.root), data)
    raise ValueError(f"config.data.name is {data.name!r}; known: {KNOWN}")


def _perhaps_thinned(dataset: Dataset, data: ConfigDict) -> Dataset:
    thinned = data.imbalance > 1 and not data.images
    return long_tail.thin_out(dataset, data.imbalance, data.seed) if thinned else dataset


def sized(dataset: Dataset, image_size: int) -> Dataset:
    """The data set with images decoded only as large as a run at `image_size` needs: see decode.decode."""
    splits = {name: _sized(split, image_size) for name, split in dataset.splits.items()}
    return dataclasses.replace(dataset, splits=splits)


def _sized(split: Split, image_size: int) -> Split:
    if not isinstance(split.images, EncodedImages | FileImages | RecordImages):
        return split
    return dataclasses.replace(split, images=dataclasses.replace(split.images, enough=enough_for(image_size)))


def train_transform(config: ConfigDict) -> transforms.Transform:
    """The augmentation that training applies to an image."""
    data = config.data
    return transforms.TrainTransform(
        size=data.image_size,
        crop_scale=data.crop_scale,
        crop_ratio=data.crop_ratio,
        flip=data.flip,
        interpolation=data.train_interpolation,
        augment=RandAugment(data.randaugment_layers, data.randaugment_magnitude, data.randaugment_noise),
    )


def plain_transform(config: ConfigDict) -> transforms.Transform:
    """The image as a memory sees it, [S, S, 3]."""
    data = config.data
    return transforms.CentreCrop(data.image_size, data.crop, data.interpolation)


def eval_transform(config: ConfigDict) -> transforms.Transform:
    """What answers are computed from: the plain image, or the crops [5, S, S, 3] of config.eval.views=5."""
    if config.eval.views == 1:
        return plain_transform(config)
    return transforms.FiveCrops(config.data.image_size, config.data.interpolation)
