"""Synthetic keys, in any number, with near neighbours like those of real keys: for measurements."""

from collections.abc import Iterator

import numpy as np

from rac_jax.memory import index

MEAN, POWER = 0.3, 1.4  # the squared length of the mean; how fast the variance falls
PART = 2**16  # keys that are made at once
MOVED = 0.6  # how far keys are moved: the share of the deviation that is redrawn


def keys(rows: int, width: int, seed: int = 0) -> np.ndarray:
    """Unit vectors [rows, width] float32. A graph search makes about as many comparisons among them as among real keys.

    They lie around a common mean, and their variance falls as a power of the dimension. With this power HNSW compares
    a query with about as many keys (515, 994 and 1,684 among 678, 2,712 and 10,847) as among EfficientNet-Lite0's of
    CIFAR-100-LT (619, 1,158 and 1,675). Clusters that lie apart would not do: a search never leaves its own.
    """
    return np.concatenate(list(parts(rows, width, seed)))


def parts(rows: int, width: int, seed: int = 0) -> Iterator[np.ndarray]:
    """The same keys a part at a time, for more of them than fit into memory."""
    random = np.random.default_rng([seed, rows])
    spread = np.arange(1, width + 1, dtype=np.float32) ** (-POWER / 2)
    spread *= ((1 - MEAN) / np.square(spread).sum()) ** 0.5
    # Turned, so that no coordinate matters more than another: an index that quantises coordinates would suffer.
    turned = np.linalg.qr(np.random.default_rng(0).standard_normal((width, width)))[0].astype(np.float32)
    for start in range(0, rows, PART):
        part = random.standard_normal((min(PART, rows - start), width), np.float32) * spread
        part[:, 0] += MEAN**0.5
        yield index.unit(part @ turned)


def like(keys: np.ndarray, rows: int, seed: int = 0) -> np.ndarray:
    """Keys [rows, D] float32 as if of more such images: keys [N, D], each moved, with the same mean and covariance.

    They lie among them, so that a search for a real key meets them; those of `keys` would be a cluster apart. Moved so
    far, they cost what real ones do: with EfficientNet-Lite0's of CIFAR-100-LT and efSearch 200, HNSW makes 539
    comparisons a query among 530 keys, 2,028 among 9,020, and 2,070 among those 530 and 8,480 made ones.
    """
    random = np.random.default_rng([seed, rows])
    some = np.asarray(keys[np.sort(random.permutation(len(keys))[: 2**14])], np.float32)
    mean = some.mean(axis=0)
    away = some - mean
    spread = np.linalg.qr(away / np.float32(len(some) ** 0.5), mode="r")
    stays = np.float32((1 - MOVED**2) ** 0.5)
    result = np.empty((rows, keys.shape[1]), np.float32)
    for start in range(0, rows, 2**14):
        part = result[start : start + 2**14]
        moved = random.standard_normal((len(part), len(spread)), np.float32) @ spread
        part[:] = mean + stays * away[random.integers(len(some), size=len(part))] + np.float32(MOVED) * moved
    return result
