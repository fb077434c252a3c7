"""RandAugment with increasing severity: timm's `rand-m1-n3-mstd0.5-inc1`, operation by operation.

For each image a few operations are drawn, with replacement. Each is applied with probability one half, at a magnitude
drawn from a normal distribution around the configured one and limited to 0 to 10.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from rac_jax.data.shift import shift_rows

MOST = 10.0  # the strongest magnitude
APPLIED = 0.5  # probability that a drawn operation is applied
GREY = 128  # the colour of the area that a moved image leaves

Operation = Callable[[Image.Image, float, Image.Resampling], Image.Image]


def rotate(image: Image.Image, degrees: float, resample: Image.Resampling) -> Image.Image:
    return image.rotate(degrees, resample, fillcolor=(GREY, GREY, GREY))


def shear_x(image: Image.Image, factor: float, resample: Image.Resampling) -> Image.Image:
    return _shift_rows(image, factor * (np.arange(image.height) + 0.5), resample)


def translate_x(image: Image.Image, share: float, resample: Image.Resampling) -> Image.Image:
    return _shift_rows(image, np.full(image.height, share * image.width), resample)


def shear_y(image: Image.Image, factor: float, resample: Image.Resampling) -> Image.Image:
    return _turned(shear_x(_turned(image), factor, resample))


def translate_y(image: Image.Image, share: float, resample: Image.Resampling) -> Image.Image:
    return _turned(translate_x(_turned(image), share, resample))


def auto_contrast(image: Image.Image, _: float, __: Image.Resampling) -> Image.Image:
    return ImageOps.autocontrast(image)


def equalize(image: Image.Image, _: float, __: Image.Resampling) -> Image.Image:
    return ImageOps.equalize(image)


def invert(image: Image.Image, _: float, __: Image.Resampling) -> Image.Image:
    return ImageOps.invert(image)


def posterize(image: Image.Image, bits: float, _: Image.Resampling) -> Image.Image:
    if int(bits) < 1:  # Pillow refuses 0 bits, which leave a black image
        return Image.new(image.mode, image.size)
    return ImageOps.posterize(image, int(bits))


def solarize(image: Image.Image, threshold: float, _: Image.Resampling) -> Image.Image:
    return ImageOps.solarize(image, int(threshold))


def solarize_add(image: Image.Image, addend: float, _: Image.Resampling) -> Image.Image:
    """Lighten the darker half of the grey levels."""
    levels = np.arange(256)
    levels[:128] = np.minimum(levels[:128] + int(addend), 255)
    return image.point(levels.tolist() * 3)


def color(image: Image.Image, factor: float, _: Image.Resampling) -> Image.Image:
    return ImageEnhance.Color(image).enhance(factor)


def contrast(image: Image.Image, factor: float, _: Image.Resampling) -> Image.Image:
    return ImageEnhance.Contrast(image).enhance(factor)


def brightness(image: Image.Image, factor: float, _: Image.Resampling) -> Image.Image:
    return ImageEnhance.Brightness(image).enhance(factor)


def sharpness(image: Image.Image, factor: float, _: Image.Resampling) -> Image.Image:
    return Image.blend(Image.fromarray(smooth(np.asarray(image))), image, factor)


def smooth(image: np.ndarray) -> np.ndarray:
    """Pillow's SMOOTH filter, exactly: the 3 × 3 neighbours and four times the pixel more, over 13.

    The border stays as it is. [H, W, 3] uint8
    """
    wide = image.astype(np.uint16)
    three = wide[:, :-2] + wide[:, 1:-1] + wide[:, 2:]
    total = three[:-2] + three[1:-1] + three[2:] + 4 * wide[1:-1, 1:-1]
    result = image.copy()
    result[1:-1, 1:-1] = total * np.float32(1 / 13) + np.float32(0.5)
    return result


def _shift_rows(image: Image.Image, shifts: np.ndarray, resample: Image.Resampling) -> Image.Image:
    return Image.fromarray(shift_rows(np.asarray(image), shifts, resample, GREY))


def _turned(image: Image.Image) -> Image.Image:
    """Rows become columns."""
    return image.transpose(Image.Transpose.TRANSPOSE)


@dataclasses.dataclass(frozen=True)
class Scale:
    """Magnitude (0 to 10) and sign (1 or -1) -> an operation's argument."""

    reach: float  # what magnitude 10 adds to, or takes from, the start
    start: float = 0.0
    signed: bool = False  # the direction is a fair coin
    whole: bool = False  # cut to an integer
    least: float = -math.inf
    most: float = math.inf

    def __call__(self, magnitude: float, sign: int) -> float:
        change = magnitude / MOST * abs(self.reach)
        if self.whole:
            change = int(change)
        if self.reach < 0 or (self.signed and sign < 0):
            change = -change
        return min(max(self.start + change, self.least), self.most)


NOTHING = Scale(1.0)
ENHANCE = Scale(0.9, start=1.0, signed=True, least=0.1)
SHIFT = Scale(0.45, signed=True)
SHEAR = Scale(0.3, signed=True)

# In timm's order, under timm's names.
OPERATIONS: dict[str, tuple[Operation, Scale]] = {
    "AutoContrast": (auto_contrast, NOTHING),
    "Equalize": (equalize, NOTHING),
    "Invert": (invert, NOTHING),
    "Rotate": (rotate, Scale(30.0, signed=True)),
    "PosterizeIncreasing": (posterize, Scale(-4, start=4, whole=True)),
    "SolarizeIncreasing": (solarize, Scale(-256, start=256, whole=True)),
    "SolarizeAdd": (solarize_add, Scale(110, whole=True, most=128)),
    "ColorIncreasing": (color, ENHANCE),
    "ContrastIncreasing": (contrast, ENHANCE),
    "BrightnessIncreasing": (brightness, ENHANCE),
    "SharpnessIncreasing": (sharpness, ENHANCE),
    "ShearX": (shear_x, SHEAR),
    "ShearY": (shear_y, SHEAR),
    "TranslateXRel": (translate_x, SHIFT),
    "TranslateYRel": (translate_y, SHIFT),
}


@dataclasses.dataclass(frozen=True)
class RandAugment:
    """Draws and applies the operations."""

    layers: int
    magnitude: float
    noise: float  # standard deviation of the magnitude
    operations: tuple[tuple[Operation, Scale], ...] = tuple(OPERATIONS.values())

    def __call__(self, image: Image.Image, resample: Image.Resampling, random: np.random.Generator) -> Image.Image:
        for chosen in random.integers(len(self.operations), size=self.layers):
            applied, coin = random.random(2)
            magnitude = random.normal(self.magnitude, self.noise)
            if applied < APPLIED:
                operation, scale = self.operations[chosen]
                level = scale(min(max(magnitude, 0.0), MOST), 1 if coin < 0.5 else -1)
                image = operation(image, level, resample)
        return image
