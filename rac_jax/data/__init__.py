"""Where images come from, and how they become batches."""

from ml_collections import ConfigDict

from rac_jax.data import digits, transforms
from rac_jax.data.dataset import Dataset


def create(config: ConfigDict) -> Dataset:
    """The data set that `config.data` names."""
    data = config.data
    if data.name == "digits":
        return digits.load(data.seed)
    raise ValueError(f"config.data.name is {data.name!r}; known: digits")


def train_transform(config: ConfigDict) -> transforms.Transform:
    """What training does to an image."""
    data = config.data
    return transforms.TrainTransform(
        data.image_size, data.crop_scale, data.crop_ratio, data.flip, data.interpolation
    )


def eval_transform(config: ConfigDict) -> transforms.Transform:
    """What evaluation, and the building of a memory, do to an image."""
    data = config.data
    return transforms.CentreCrop(data.image_size, data.crop, data.interpolation)
