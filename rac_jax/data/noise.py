"""Wrong labels for training images, to measure what they cost.

Images exchange their labels, so that every class keeps its number of images and the same share of each class is wrong.
"""

import dataclasses

import numpy as np

from rac_jax.data.dataset import Dataset

TRIES = 1000


def of(dataset: Dataset, *, share: float, where: str, seed: int) -> Dataset:
    """The data set with wrong labels for this share of the training images.

    They are wrong in the loss (`where` is "training"), in the memory that is built of these images ("memory"), or in
    both, where an image then has the same wrong label.
    """
    if not share:
        return dataset
    train = dataset.split("train")
    wrong = exchanged(train.labels, share, seed)
    labels, inside = {
        "training": (wrong, train.labels),
        "memory": (train.labels, wrong),
        "both": (wrong, None),
    }[where]
    noisy = dataclasses.replace(train, labels=labels, memory_labels=inside)
    return dataclasses.replace(dataset, splits={**dataset.splits, "train": noisy})


def exchanged(labels: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Labels [N] of which a share of each class is exchanged with other classes: [N] int32."""
    random = np.random.default_rng([seed, 1])  # not the stream that draws splits
    chosen = np.concatenate([_some(np.flatnonzero(labels == label), share, random) for label in np.unique(labels)])
    before = labels[chosen]
    if len(np.unique(before)) < 2 or 2 * np.bincount(before).max() > len(before):
        raise ValueError(f"config.data.label_noise is {share}: too few images of too few classes can exchange labels")
    after = random.permutation(before)
    for _ in range(TRIES):
        same = np.flatnonzero(after == before)
        if not len(same):
            break
        for place in same:  # an exchange with any other may leave another image with its own label, until none is left
            other = random.integers(len(after))
            after[[place, other]] = after[[other, place]]
    result = labels.copy()
    result[chosen] = after
    return result


def _some(positions: np.ndarray, share: float, random: np.random.Generator) -> np.ndarray:
    """This share of the positions, rounded up or down at random, so that small classes have their share on average."""
    number = int(share * len(positions) + random.random())
    return random.permutation(positions)[:number]
