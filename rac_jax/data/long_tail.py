"""Make a balanced data set long-tailed, and split one that has no splits."""

import dataclasses

import numpy as np

from rac_jax.data.dataset import Dataset


def exponential_counts(classes: int, most: int, imbalance: float) -> np.ndarray:
    """Class counts that fall exponentially from `most` to `most / imbalance`, cut to integers.

    The rule of CIFAR-LT: with 100 classes, 500 and 100 they add up to 10,847. [classes] int
    """
    ranks = np.arange(classes) / max(classes - 1, 1)
    return np.maximum((most * (1 / imbalance) ** ranks).astype(int), 1)


def long_tailed(labels: np.ndarray, classes: int, imbalance: float, seed: int) -> np.ndarray:
    """Positions of a long-tailed part of the images, in order. labels: [N] -> [M] int"""
    available = np.bincount(labels, minlength=classes)
    wanted = exponential_counts(classes, int(available.max()), imbalance)
    random = np.random.default_rng(seed)
    chosen = []
    for label in range(classes):
        mine = random.permutation(np.flatnonzero(labels == label))
        chosen.append(mine[: wanted[label]])
    return np.sort(np.concatenate(chosen))


def counts_of(available: np.ndarray, images: int, imbalance: float) -> np.ndarray:
    """Class counts [C] that fall exponentially and add up to about `images`, the classes with most images first.

    Args:
      available: [C] images of each class.
      images: in all; the counts add up to this or to a few more.
      imbalance: how many times the first class outnumbers the last; 1 = all have the same number.
    """
    order, counts = np.argsort(-available, kind="stable"), np.zeros(len(available), int)
    for most in range(1, int(available.max()) + 1):
        counts[order] = exponential_counts(len(available), most, imbalance)
        if (counts > available).any():
            break
        if counts.sum() >= images:
            return counts
    raise ValueError(f"config.data.images is {images}: there are too few at config.data.imbalance={imbalance:g}")


def of_total(dataset: Dataset, images: int, imbalance: float, seed: int) -> Dataset:
    """The data set with about so many training images, at this imbalance."""
    train = dataset.split("train")
    counts, random = counts_of(dataset.class_counts, images, imbalance), np.random.default_rng(seed)
    mine = [random.permutation(np.flatnonzero(train.labels == label))[:count] for label, count in enumerate(counts)]
    chosen = train.select(np.sort(np.concatenate(mine)))
    return dataclasses.replace(dataset, splits={**dataset.splits, "train": chosen})


def held_out(labels: np.ndarray, shares: dict[str, float], seed: int) -> dict[str, np.ndarray]:
    """Positions for train and for each named share, drawn class by class; train gets at least one.

    labels: [N]; the result's arrays are in order.
    """
    random = np.random.default_rng(seed)
    parts: dict[str, list[np.ndarray]] = {name: [] for name in ("train", *shares)}
    for label in np.unique(labels):
        mine = random.permutation(np.flatnonzero(labels == label))
        left = len(mine) - 1
        start = 0
        for name, share in shares.items():
            count = min(round(share * len(mine)), left - start)
            parts[name].append(mine[start : start + count])
            start += count
        parts["train"].append(mine[start:])
    return {name: np.sort(np.concatenate(positions)) for name, positions in parts.items()}


def thin_out(dataset: Dataset, imbalance: float, seed: int) -> Dataset:
    """The data set with its training split made long-tailed; the other splits stay as they are."""
    train = dataset.split("train")
    chosen = train.select(long_tailed(train.labels, dataset.num_classes, imbalance, seed))
    return dataclasses.replace(dataset, splits={**dataset.splits, "train": chosen})
