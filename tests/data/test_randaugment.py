"""Against timm's own operations, and against its rules for drawing them."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFilter

from rac_jax.data import randaugment

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "randaugment.npz", allow_pickle=False)
CASES = list(zip(json.loads(str(GOLDEN["cases"])), GOLDEN["outputs"], strict=True))
SHIFTED = ("ShearX", "ShearY", "TranslateXRel", "TranslateYRel")  # not through Pillow
RESAMPLE = {
    "bicubic": Image.Resampling.BICUBIC,
    "bilinear": Image.Resampling.BILINEAR,
    None: Image.Resampling.BICUBIC,
}


def test_the_operations_are_timms_in_its_order():
    assert list(randaugment.OPERATIONS) == GOLDEN["ops"].tolist()


@pytest.mark.parametrize("name", randaugment.OPERATIONS)
def test_operation_equals_timms(name: str):
    cases = [(case, output) for case, output in CASES if case["op"] == name]
    assert cases
    operation, scale = randaugment.OPERATIONS[name]
    image = Image.fromarray(GOLDEN["image"])
    for case, expected in cases:
        level = scale(case["magnitude"] or 0, -1 if case["sign"] == "negative" else 1)
        if case["level_args"]:
            assert level == pytest.approx(case["level_args"][0], abs=1e-12)
        changed = np.asarray(operation(image, level, RESAMPLE[case["resample"]]))
        if name in SHIFTED:
            off = np.abs(changed.astype(int) - expected)
            assert off.max() <= 1, case
            assert np.mean(off > 0) < 0.05, case
        else:
            np.testing.assert_array_equal(changed, expected, err_msg=str(case))


@pytest.mark.parametrize("resample", ["bicubic", "bilinear", "nearest"])
@pytest.mark.parametrize("name", SHIFTED)
def test_shifts_equal_pillows_transform(name: str, resample: str):
    """Also on an image that is not square, and so far that nothing is left of it."""
    image = Image.fromarray(GOLDEN["image"][:40])
    filter_ = Image.Resampling[resample.upper()]
    operation, _ = randaugment.OPERATIONS[name]
    for level in (0.0, 0.011, -0.3, 0.5, -1.0, 3.0):
        w, h = image.size
        matrix = {
            "ShearX": (1, level, 0, 0, 1, 0),
            "ShearY": (1, 0, 0, level, 1, 0),
            "TranslateXRel": (1, 0, level * w, 0, 1, 0),
            "TranslateYRel": (1, 0, 0, 0, 1, level * h),
        }[name]
        expected = image.transform(image.size, Image.Transform.AFFINE, matrix, filter_, fillcolor=(128, 128, 128))
        changed = np.asarray(operation(image, level, filter_)).astype(int)
        assert np.abs(changed - np.asarray(expected)).max() <= 1, level


@pytest.mark.parametrize("shape", [(64, 64), (40, 51), (3, 3), (2, 5), (1, 1)])
def test_smooth_is_pillows(shape: tuple[int, int]):
    image = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    image[: shape[0] // 2] = 255
    expected = np.asarray(Image.fromarray(image).filter(ImageFilter.SMOOTH))
    np.testing.assert_array_equal(randaugment.smooth(image), expected)


def test_extremes_stay_in_range():
    posterize = randaugment.OPERATIONS["PosterizeIncreasing"][1]
    assert [posterize(m, 1) for m in (0, 2.4, 2.5, 10)] == [4, 4, 3, 0]
    white = Image.new("RGB", (2, 2), "white")
    kept = [randaugment.posterize(white, bits, Image.Resampling.BILINEAR).getpixel((0, 0))[0] for bits in (0, 1, 8)]
    assert kept == [0, 128, 255]
    solarize = randaugment.OPERATIONS["SolarizeIncreasing"][1]
    assert [solarize(m, 1) for m in (0, 10)] == [256, 0]
    enhance = randaugment.OPERATIONS["ColorIncreasing"][1]
    assert [enhance(10, s) for s in (1, -1)] == pytest.approx([1.9, 0.1])


class Recorder:
    """Stands in for the operations: notes which were applied, and how strongly."""

    def __init__(self) -> None:
        self.levels: list[tuple[int, float]] = []

    def operation(self, number: int) -> tuple[randaugment.Operation, randaugment.Scale]:
        def note(image: Image.Image, level: float, _: Image.Resampling) -> Image.Image:
            self.levels.append((number, level))
            return image

        return note, randaugment.Scale(10.0, signed=True)


def test_draws_follow_timms_rules():
    """15 operations alike, each applied half the time, magnitude N(1, 0.5) from 0 up, fair sign."""
    recorder = Recorder()
    operations = tuple(recorder.operation(i) for i in range(15))
    augment = randaugment.RandAugment(layers=3, magnitude=1.0, noise=0.5, operations=operations)
    image = Image.fromarray(GOLDEN["image"])
    random = np.random.default_rng(0)
    images = 10_000
    for _ in range(images):
        augment(image, Image.Resampling.BICUBIC, random)
    numbers, levels = map(np.array, zip(*recorder.levels, strict=True))
    assert len(levels) / (3 * images) == pytest.approx(0.5, abs=0.01)
    assert np.bincount(numbers) / len(numbers) == pytest.approx(1 / 15, abs=0.006)
    assert np.mean(levels > 0) / np.mean(levels != 0) == pytest.approx(0.5, abs=0.015)
    assert np.abs(levels).mean() == pytest.approx(1.004, abs=0.015)  # the clipped normal's mean
    assert np.mean(levels == 0) == pytest.approx(0.0228, abs=0.005)  # its share below 0


def test_no_layers_is_no_change():
    augment = randaugment.RandAugment(layers=0, magnitude=1.0, noise=0.5)
    image = Image.fromarray(GOLDEN["image"])
    assert augment(image, Image.Resampling.BICUBIC, np.random.default_rng(0)) is image
