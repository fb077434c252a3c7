"""Shift the rows of an image by fractions of a pixel, for shears and translations.

Pillow's affine transform computes the source of every pixel. In a shear or a translation all pixels of a row move by
the same distance, so a few products of arrays give the same result several times as fast. Single pixels may differ from
Pillow's by one grey level, because of rounding.
"""

import itertools
from collections.abc import Iterator

import numpy as np
from PIL import Image

CACHED_ROWS = 64
ROUNDING = 2e-4  # Pillow cuts float64 sums to integers; this keeps float32 sums on the same side


def shift_rows(image: np.ndarray, shifts: np.ndarray, resample: Image.Resampling, fill: int) -> np.ndarray:
    """Row y of the result reads row y of the image `shifts[y]` pixels further to the right.

    image: [H, W, 3] uint8, shifts: [H]. Outside the image there is `fill`.
    """
    width = image.shape[1]
    whole = np.floor(shifts).astype(int)
    weights = _weights(shifts - whole, resample)
    moved = np.empty_like(image)
    if np.ptp(shifts) == 0:
        weights = weights[:1]  # multiplying by a number is faster than by a column of equal numbers
    for rows in _runs(whole):
        moved[rows] = _blend(image[rows], int(whole[rows.start]), weights[rows] if len(weights) > 1 else weights)
    # A pixel whose centre comes from outside is filled. Its rows form runs too.
    left = np.clip(np.ceil(-0.5 - shifts), 0, width).astype(int)
    right = np.clip(np.ceil(width - 0.5 - shifts), 0, width).astype(int)
    for rows in _runs(left):
        moved[rows, : left[rows.start]] = fill
    for rows in _runs(right):
        moved[rows, right[rows.start] :] = fill
    return moved


def _runs(values: np.ndarray) -> Iterator[slice]:
    """Slices of neighbours with one value, short enough that a slice of an image stays in cache."""
    starts = np.flatnonzero(np.diff(values)) + 1
    for first, last in itertools.pairwise([0, *starts.tolist(), len(values)]):
        for start in range(first, last, CACHED_ROWS):
            yield slice(start, min(start + CACHED_ROWS, last))


def _blend(band: np.ndarray, whole: int, weights: np.ndarray) -> np.ndarray:
    """The weighted sum of four copies of a band, `whole` - 1 to `whole` + 2 pixels further on."""
    rows, width, channels = band.shape
    wide = np.empty((rows, width + 3, channels), np.float32)  # the edge pixels go on beyond it
    begin = min(max(1 - whole, 0), width + 3)
    end = min(max(1 - whole + width, 0), width + 3)
    wide[:, begin:end] = band[:, begin + whole - 1 : end + whole - 1]
    wide[:, :begin] = band[:, :1]
    wide[:, end:] = band[:, -1:]
    flat, size = wide.reshape(rows, -1), width * channels
    total = flat[:, channels : channels + size] * weights[:, 1]
    product = np.empty_like(total)
    for tap in (2,) if weights.shape[1] == 3 else (0, 2, 3):
        total += np.multiply(flat[:, tap * channels :][:, :size], weights[:, tap], out=product)
    total += np.float32(ROUNDING)
    return np.clip(total, 0, 255, out=total).astype(np.uint8).reshape(band.shape)


def _weights(part: np.ndarray, resample: Image.Resampling) -> np.ndarray:
    """How much of the pixels -1, 0, 1 and, if cubic, 2 is seen `part` of the way from 0 to 1.

    [H, 3 or 4, 1]
    """
    if resample == Image.Resampling.NEAREST:
        taps = [0 * part, part < 0.5, part >= 0.5]
    elif resample == Image.Resampling.BILINEAR:
        taps = [0 * part, 1 - part, part]
    else:  # the cubic of Pillow's transform, whose parameter is -1 (its resize has -1/2)
        square, cube = part**2, part**3
        taps = [-part + 2 * square - cube, 1 - 2 * square + cube, part + square - cube, cube - square]
    return np.stack(taps, axis=1).astype(np.float32)[..., None]
