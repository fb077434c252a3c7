"""One image in, one uint8 image of the model's size out. Pixels are normalised on the device.

Both transforms are timm's: resized crop, flip and RandAugment for training; resize of the shorter side and centre crop
for evaluation. There is no mixup or cutmix, as in the paper. Both resize with the same function.
"""

import dataclasses
import math
import threading
from collections.abc import Callable

import numpy as np
from cykooz_resizer import FilterType, ImageData, PixelType, ResizeAlg, ResizeOptions, Resizer
from PIL import Image

from rac_jax.data.randaugment import RandAugment

Transform = Callable[[np.ndarray, np.random.Generator], np.ndarray]
Box = tuple[int, int, int, int]  # left, top, right, bottom

RESIZE = 2  # goes up when resized pixels change: keys of other pixels are not mixed (1 was Pillow's resize)
LONGEST = 10  # times its width an image may be long in evaluation
_thread = threading.local()
CONVOLUTION = {
    Image.Resampling.BILINEAR: ResizeOptions(ResizeAlg.convolution(FilterType.bilinear)),
    Image.Resampling.BICUBIC: ResizeOptions(ResizeAlg.convolution(FilterType.catmull_rom)),
}
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
        image = _without_far_ends(image)
        height, width = image.shape[:2]
        shorter = math.floor(self.size / self.crop)
        longer = int(shorter * max(height, width) / min(height, width))
        size = (longer, shorter) if width > height else (shorter, longer)
        resized = resize(image, size, INTERPOLATION[self.interpolation])
        left, top = round((size[0] - self.size) / 2), round((size[1] - self.size) / 2)
        return resized[top : top + self.size, left : left + self.size]


@dataclasses.dataclass(frozen=True)
class FiveCrops:
    """Evaluation with several views: the four corners and the centre of a square of 248 / 224 times the size."""

    size: int
    interpolation: str

    def __call__(self, image: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """[H, W, 3] to [5, size, size, 3]."""
        whole = round(self.size * 248 / 224)
        square = CentreCrop(whole, 1.0, self.interpolation)(image, random)
        last, middle = whole - self.size, round((whole - self.size) / 2)
        corners = ((0, 0), (0, last), (last, 0), (last, last), (middle, middle))
        return np.stack([square[top : top + self.size, left : left + self.size] for top, left in corners])


def _without_far_ends(image: np.ndarray) -> np.ndarray:
    """The middle of an image that is more than ten times as long as wide; resized in full it would be huge."""
    height, width = image.shape[:2]
    side = LONGEST * min(height, width)
    top, left = max(0, (height - side) // 2), max(0, (width - side) // 2)
    return image[top : top + side, left : left + side]


@dataclasses.dataclass(frozen=True)
class TrainTransform:
    """Training: a random crop of the image, perhaps flipped, then RandAugment."""

    size: int
    crop_scale: tuple[float, float]  # share of the image's area
    crop_ratio: tuple[float, float]  # width / height
    flip: float  # probability
    interpolation: str  # "random": bilinear or bicubic, a fair coin
    augment: RandAugment

    def __call__(self, image: np.ndarray, random: np.random.Generator) -> np.ndarray:
        box = random_box(image.shape[1], image.shape[0], self.crop_scale, self.crop_ratio, random)
        cut = image[box[1] : box[3], box[0] : box[2]]
        picture = Image.fromarray(resize(cut, (self.size, self.size), self.resample(random)))
        if random.random() < self.flip:
            picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return np.asarray(self.augment(picture, self.resample(random), random))

    def resample(self, random: np.random.Generator) -> Image.Resampling:
        """The interpolation for the next step; drawn if it is "random"."""
        if self.interpolation != "random":
            return INTERPOLATION[self.interpolation]
        return INTERPOLATION["bilinear" if random.random() < 0.5 else "bicubic"]


def resize(image: np.ndarray, size: tuple[int, int], resample: Image.Resampling) -> np.ndarray:
    """As Pillow's resize to a width and a height, several times as fast.

    Equal to Pillow's within one grey level on photos, bicubic within a few where it overshoots; hard edges of black and
    white differ more. The whole image is resized: with a crop box that begins between two pixels, version 4.0.1 of the
    resizer may end with a segmentation fault.
    """
    if image.dtype != np.uint8 or image.shape[2:] != (3,):  # the resizer would take the bytes as they are
        raise TypeError(f"an image of {image.dtype} {image.shape} cannot be resized; it must be uint8 [H, W, 3]")
    if resample not in CONVOLUTION:
        return np.asarray(Image.fromarray(np.ascontiguousarray(image)).resize(size, resample))
    if not hasattr(_thread, "resizer"):  # it must not be used by two threads at a time
        _thread.resizer = Resizer()
    height, width = image.shape[:2]
    source = ImageData(width, height, PixelType.U8x3, image.tobytes())
    target = ImageData(*size, PixelType.U8x3)
    _thread.resizer.resize(source, target, CONVOLUTION[resample])
    return np.frombuffer(target.get_buffer(), np.uint8).reshape(size[1], size[0], 3)


def random_box(
    width: int,
    height: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    random: np.random.Generator,
) -> Box:
    """A box of whole pixels with a random area and aspect, inside the image."""
    for _ in range(10):
        area = width * height * random.uniform(*scale)
        aspect = math.exp(random.uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(random.integers(width - w + 1)), int(random.integers(height - h + 1))
            return left, top, left + w, top + h
    # Nothing fitted: the largest centre box whose aspect is allowed.
    w = min(width, max(1, round(height * ratio[1])))
    h = min(height, max(1, round(width / ratio[0])))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h
