"""Train on a part of the data: a share of each class's images, or a share of the classes.

The rest can be added to a memory later: `python -m rac_jax.reproduce edit` and `new` measure what that brings.
"""

import dataclasses

import numpy as np

from rac_jax.data.dataset import Dataset, Split


def of(dataset: Dataset, *, share: float, classes: float, seed: int) -> Dataset:
    """The data set with this share of its classes, and this share of the training images of each of them.

    Without a class, its images are missing from every split; the others keep their order and get new labels.
    """
    if classes < 1:
        dataset = _with_classes(dataset, kept_classes(dataset.num_classes, classes, seed))
    if share < 1:
        train = dataset.split("train")
        chosen = train.select(np.flatnonzero(kept_images(train.labels, share, seed)))
        dataset = dataclasses.replace(dataset, splits={**dataset.splits, "train": chosen})
    return dataset


def most_frequent(dataset: Dataset, number: int) -> Dataset:
    """The data set with only so many classes, those with most training images; 0 = all."""
    if not number:
        return dataset
    if number > dataset.num_classes:
        raise ValueError(f"config.data.frequent is {number}, but {dataset.name} has {dataset.num_classes} classes")
    return _with_classes(dataset, np.sort(np.argsort(-dataset.class_counts, kind="stable")[:number]))


def kept_classes(number: int, share: float, seed: int) -> np.ndarray:
    """The labels of the classes to keep, ascending; at least two if there are two."""
    wanted = max(min(2, number), round(share * number))
    return np.sort(np.random.default_rng(seed).permutation(number)[:wanted])


def kept_images(labels: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Which of the images with labels [N] to keep, [N] bool: at least one of each class.

    With one seed, the images of a share are among those of any larger share.
    """
    random = np.random.default_rng(seed)
    kept = np.zeros(len(labels), bool)
    for label in np.unique(labels[labels >= 0]):
        mine = random.permutation(np.flatnonzero(labels == label))
        kept[mine[: max(1, round(share * len(mine)))]] = True
    return kept


def _with_classes(dataset: Dataset, kept: np.ndarray) -> Dataset:
    renumbered = np.full(dataset.num_classes, -1, np.int32)
    renumbered[kept] = np.arange(len(kept), dtype=np.int32)

    def part(split: Split) -> Split:
        inside = split.select(np.flatnonzero((split.labels >= 0) & (renumbered[split.labels] >= 0)))
        return dataclasses.replace(inside, labels=renumbered[inside.labels])

    return dataclasses.replace(
        dataset,
        class_names=tuple(dataset.class_names[label] for label in kept),
        class_texts=tuple(dataset.class_texts[label] for label in kept),
        class_groups=tuple(dataset.class_groups[label] for label in kept) if dataset.class_groups else (),
        splits={name: part(split) for name, split in dataset.splits.items()},
    )
