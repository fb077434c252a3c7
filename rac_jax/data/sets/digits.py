"""scikit-learn's 1,797 handwritten digits, made long-tailed: real images that need no download."""

import numpy as np

from rac_jax.data import dataset

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
MOST, FEWEST, TEST = 150, 5, 25


def long_tail_counts(classes: int, most: int, fewest: int) -> np.ndarray:
    """Class counts that fall exponentially from `most` to `fewest`: [classes] int."""
    ranks = np.arange(classes) / max(classes - 1, 1)
    return np.rint(most * (fewest / most) ** ranks).astype(int)


def load(seed: int) -> dataset.Dataset:
    """150 training zeros down to 5 nines; 25 test images a class; all others are validation."""
    from sklearn.datasets import load_digits  # imported here: it takes a second, and input workers do not need it

    digits = load_digits()
    grey = np.rint(digits.images * (255 / 16)).astype(np.uint8)  # the pixels go from 0 to 16
    pixels = np.repeat(grey[..., None], 3, axis=-1)
    random = np.random.default_rng(seed)
    positions: dict[str, list[np.ndarray]] = {"train": [], "val": [], "test": []}
    for label, count in enumerate(long_tail_counts(len(WORDS), MOST, FEWEST)):
        mine = random.permutation(np.flatnonzero(digits.target == label))
        positions["test"].append(mine[:TEST])
        positions["train"].append(mine[TEST : TEST + count])
        positions["val"].append(mine[TEST + count :])

    def split(name: str) -> dataset.Split:
        chosen = np.sort(np.concatenate(positions[name]))
        images = dataset.ArrayImages(f"digits/{name}", pixels[chosen])
        return dataset.Split(name, images, digits.target[chosen].astype(np.int32))

    splits = {name: split(name) for name in positions}
    return dataset.Dataset("digits", tuple("0123456789"), WORDS, splits)
