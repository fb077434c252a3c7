"""One image in, one uint8 image of the model's size out. Pixels are normalised on the device."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
from PIL import Image

Transform = Callable[[np.ndarray, np.random.Generator], np.ndarray]

INTERPOLATION = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
}


@dataclasses.dataclass(frozen=True)
class CentreCrop:
    """Evaluation: the shorter side becomes size / crop, then the centre square is cut out."""

    size: int
    crop: float
    interpolation: str

    def __call__(self, image: np.ndarray, random: np.random.Generator) -> np.ndarray:
        height, width = image.shape[:2]
        scale = min(height, width) / math.floor(self.size / self.crop)  # source pixels per pixel
        side = self.size * scale
        left, top = (width - side) / 2, (height - side) / 2
        box = (left, top, left + side, top + side)
        return _resize(image, self.size, box, self.interpolation)


@dataclasses.dataclass(frozen=True)
class TrainTransform:
    """Training: a random crop of the image, perhaps flipped."""

    size: int
    crop_scale: tuple[float, float]  # share of the image's area
    crop_ratio: tuple[float, float]  # width / height
    flip: float  # probability
    interpolation: str

    def __call__(self, image: np.ndarray, random: np.random.Generator) -> np.ndarray:
        box = random_box(image.shape[1], image.shape[0], self.crop_scale, self.crop_ratio, random)
        image = _resize(image, self.size, box, self.interpolation)
        if random.random() < self.flip:
            image = image[:, ::-1]
        return np.ascontiguousarray(image)


def random_box(
    width: int,
    height: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    random: np.random.Generator,
) -> tuple[float, float, float, float]:
    """A box (left, top, right, bottom) with a random area and aspect, inside the image."""
    for _ in range(10):
        area = width * height * random.uniform(*scale)
        aspect = math.exp(random.uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = math.sqrt(area * aspect), math.sqrt(area / aspect)
        if w <= width and h <= height:
            left, top = random.uniform(0, width - w), random.uniform(0, height - h)
            return left, top, left + w, top + h
    side = min(width, height)  # nothing fitted: the centre square
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def _resize(
    image: np.ndarray, size: int, box: tuple[float, float, float, float], interpolation: str
) -> np.ndarray:
    picture = Image.fromarray(image)
    right, bottom = min(box[2], picture.width), min(box[3], picture.height)
    box = (max(box[0], 0.0), max(box[1], 0.0), right, bottom)  # rounding may step outside
    return np.asarray(picture.resize((size, size), INTERPOLATION[interpolation], box=box))
