"""Sizes, crops and pixels against the operations they stand for."""

import math

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_images

from rac_jax import config, data
from rac_jax.data import transforms

PHOTO = load_sample_images().images[0]  # [427, 640, 3]


@pytest.mark.parametrize(("height", "width"), [(427, 640), (300, 200), (256, 256), (50, 61)])
@pytest.mark.parametrize(("interpolation", "most"), [("bicubic", 9), ("bilinear", 1), ("nearest", 0)])
def test_centre_crop_is_pillows_resize_then_cut(height: int, width: int, interpolation: str, most: int):
    """timm's evaluation: the shorter side to floor(224 / 0.95) = 235, then the integer centre."""
    image = np.ascontiguousarray(PHOTO[:height, :width])
    long = int(235 * max(height, width) / min(height, width))
    size = (235, long) if height > width else (long, 235)
    resized = Image.fromarray(image).resize(size, transforms.INTERPOLATION[interpolation])
    left, top = round((size[0] - 224) / 2), round((size[1] - 224) / 2)
    expected = np.asarray(resized.crop((left, top, left + 224, top + 224)))
    result = transforms.CentreCrop(224, 0.95, interpolation)(image, np.random.default_rng(0))
    difference = np.abs(result.astype(int) - expected)
    assert difference.max() <= most
    assert difference.mean() < 0.2 and np.mean(difference > 1) < 0.001


def test_centre_crop_of_extremes():
    crop = transforms.CentreCrop(32, 0.95, "bicubic")
    random = np.random.default_rng(0)
    assert crop(np.full((1, 1, 3), 7, np.uint8), random).tolist() == [[[7] * 3] * 32] * 32
    assert crop(np.full((1, 3_000_000, 3), 9, np.uint8), random).shape == (32, 32, 3)
    for height, width in random.integers(1, 100, (200, 2)):
        assert crop(PHOTO[:height, :width], random).shape == (32, 32, 3)
    exact = transforms.CentreCrop(8, 1.0, "bicubic")
    np.testing.assert_array_equal(exact(PHOTO[:8, :8], random), PHOTO[:8, :8])


@pytest.mark.parametrize(("name", "most"), [("bilinear", 1), ("bicubic", 6), ("nearest", 0)])
@pytest.mark.parametrize("shape", [(240, 220), (427, 640), (40, 70), (8, 8), (1, 1)])
def test_resize_is_pillows(name: str, most: int, shape: tuple[int, int]):
    image, resample = PHOTO[: shape[0], : shape[1]], transforms.INTERPOLATION[name]
    expected = np.asarray(Image.fromarray(np.ascontiguousarray(image)).resize((64, 64), resample))
    difference = np.abs(transforms.resize(image, (64, 64), resample).astype(int) - expected)
    assert difference.max() <= most
    assert np.mean(difference > 1) < 0.01


@pytest.mark.parametrize(
    "image", [np.zeros((9, 9, 3), np.float32), np.zeros((9, 9, 4), np.uint8), np.zeros((9, 9), bool)]
)
def test_pixels_of_another_kind_are_not_taken_for_bytes(image: np.ndarray):
    with pytest.raises(TypeError, match="it must be uint8"):
        transforms.resize(image, (4, 4), transforms.INTERPOLATION["bilinear"])


def test_random_box_covers_scale_and_ratio():
    random = np.random.default_rng(0)
    boxes = [transforms.random_box(400, 300, (0.2, 0.6), (0.75, 1.33), random) for _ in range(2000)]
    for left, top, right, bottom in boxes:
        assert 0 <= left < right <= 400
        assert 0 <= top < bottom <= 300
    areas = np.array([(r - l) * (b - t) for l, t, r, b in boxes]) / 120_000  # noqa: E741
    ratios = np.array([(r - l) / (b - t) for l, t, r, b in boxes])  # noqa: E741
    assert areas.min() == pytest.approx(0.2, abs=0.01)
    assert areas.max() == pytest.approx(0.6, abs=0.01)
    assert areas.mean() == pytest.approx(0.4, abs=0.01)
    assert np.log(ratios).mean() == pytest.approx((math.log(0.75) + math.log(1.33)) / 2, abs=0.02)


@pytest.mark.parametrize(("width", "height", "box"), [(1000, 10, (493, 0, 506, 10)), (10, 1000, (0, 493, 10, 506))])
def test_box_of_a_strip_is_the_allowed_centre(width: int, height: int, box: transforms.Box):
    assert transforms.random_box(width, height, (0.9, 1.0), (0.75, 1.33), np.random.default_rng(0)) == box


def test_one_pixel_can_be_trained_on():
    c = config.default()
    result = data.train_transform(c)(np.full((1, 1, 3), 100, np.uint8), np.random.default_rng(0))
    assert result.shape == (224, 224, 3)
    assert result.dtype == np.uint8


def test_flip_and_crop_without_augmentation():
    whole = transforms.TrainTransform(64, (1.0, 1.0), (1.0, 1.0), 1.0, "nearest", transforms.RandAugment(0, 1.0, 0.5))
    square = PHOTO[:64, :64]
    np.testing.assert_array_equal(whole(square, np.random.default_rng(0)), square[:, ::-1])


def test_training_draws_differ_and_repeat():
    transform = data.train_transform(config.default())
    first, again, other = (transform(PHOTO, np.random.default_rng(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first.astype(int) - other).mean() > 1


def test_five_crops_are_the_corners_and_the_centre_of_a_larger_square():
    pixels = np.random.default_rng(0).integers(0, 255, (248, 310, 3), dtype=np.uint8)
    crops = transforms.FiveCrops(224, "bilinear")(pixels, np.random.default_rng(0))
    square = pixels[:, 31:279]  # the shorter side is 248 already
    assert crops.shape == (5, 224, 224, 3) and crops.dtype == np.uint8
    for crop, (top, left) in zip(crops, ((0, 0), (0, 24), (24, 0), (24, 24), (12, 12)), strict=True):
        np.testing.assert_array_equal(crop, square[top : top + 224, left : left + 224])
