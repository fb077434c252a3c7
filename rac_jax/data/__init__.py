"""Where images come from, and how they become batches."""

from ml_collections import ConfigDict

from rac_jax.data import digits, inat, places, transforms
from rac_jax.data.dataset import Dataset
from rac_jax.data.randaugment import RandAugment


def create(config: ConfigDict) -> Dataset:
    """The data set that `config.data` names."""
    data = config.data
    if data.name == "digits":
        return digits.load(data.seed)
    if data.name == "places_lt":
        return places.load(data.root, data.lists)
    if data.name == "inat2018":
        return inat.load(data.root, data.lists, data.text_levels)
    raise ValueError(f"config.data.name is {data.name!r}; known: digits, places_lt, inat2018")


def train_transform(config: ConfigDict) -> transforms.Transform:
    """What training does to an image."""
    data = config.data
    return transforms.TrainTransform(
        size=data.image_size,
        crop_scale=data.crop_scale,
        crop_ratio=data.crop_ratio,
        flip=data.flip,
        interpolation=data.train_interpolation,
        augment=RandAugment(data.randaugment_layers, data.randaugment_magnitude, data.randaugment_noise),
    )


def eval_transform(config: ConfigDict) -> transforms.Transform:
    """What evaluation, and the building of a memory, do to an image."""
    data = config.data
    return transforms.CentreCrop(data.image_size, data.crop, data.interpolation)
