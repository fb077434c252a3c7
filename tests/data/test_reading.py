"""Reading a file: as evaluation reads it, and never waiting for something that is no file."""

import os
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_images

from rac_jax import config, data
from rac_jax.data import reading
from rac_jax.data.decode import BadImage


def test_an_image_is_read_as_in_evaluation(tmp_path: Path):
    """A JPEG more than four times the image size is decoded at a part of its size, in both."""
    for split, name in (("train", "1.jpg"), ("test", "2.jpg")):
        (tmp_path / split / "temple").mkdir(parents=True)
        Image.fromarray(load_sample_images().images[0]).save(tmp_path / split / "temple" / name, quality=90)
    c = config.default()
    c.data.update(name="folder", root=str(tmp_path), image_size=32)
    seen = data.load(c).split("test").images[0]
    read = data.read_image(tmp_path / "test/temple/2.jpg", c.data.image_size)
    assert read.shape == (107, 160, 3)  # a quarter of 427 × 640
    np.testing.assert_array_equal(read, seen)


@pytest.mark.parametrize("kind", ["fifo", "device", "folder", "absent", "loop"])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, kind: str):
    path = tmp_path / "x.jpg"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path)
    with pytest.raises(BadImage, match=r"x\.jpg: (not a regular file|cannot be read)"):
        data.read_image(path, 32)


def test_a_picture_whose_file_is_cut_short_is_no_usable_image(tmp_path: Path):
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "whole.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "whole.png").read_bytes()[:3000])
    np.testing.assert_array_equal(reading.pixels_of(Image.open(tmp_path / "whole.png")), pixels)
    with Image.open(tmp_path / "cut.png") as cut, pytest.raises(BadImage, match=r"cut\.png: not a usable image \("):
        reading.pixels_of(cut)


@pytest.mark.parametrize("wrong", [None, b"\xff\xd8\xff", 3, [[1, 2]], object()])
def test_what_is_no_image_is_named(wrong):
    kind = type(wrong).__name__
    with pytest.raises(BadImage, match=f"a path, a picture of Pillow or an array, and this one is of type {kind}"):
        reading.pixels_of(wrong)


def test_arrays_of_any_library_are_images():
    pixels = np.random.default_rng(0).integers(0, 256, (4, 5, 3), np.uint8)

    class Array:
        def __init__(self, found):
            self.found = found

        def __array__(self, dtype=None, copy=None):
            if self.found is None:
                raise TypeError("it is on another device")
            return self.found

    np.testing.assert_array_equal(reading.pixels_of(jnp.asarray(pixels)), pixels)
    np.testing.assert_array_equal(reading.pixels_of(Array(pixels)), pixels)
    shares = jnp.asarray([[0.0, 0.5, 1.0]], jnp.bfloat16)
    np.testing.assert_array_equal(reading.pixels_of(shares)[0, :, 0], [0, 128, 255])
    with pytest.raises(BadImage, match=r"Array is not a usable array \(it is on another device\)"):
        reading.pixels_of(Array(None))


def test_true_is_white_and_what_is_no_grey_value_is_refused():
    mask = np.array([[True, False], [False, False]])
    assert reading.pixels_of(mask)[..., 0].tolist() == [[255, 0], [0, 0]]
    assert reading.pixels_of(np.stack([mask] * 3, axis=-1))[0].tolist() == [[255] * 3, [0] * 3]
    assert not reading.pixels_of(np.zeros((2, 2), bool)).any()
    for kind in (np.complex64, "U1", "M8[s]", object):
        with pytest.raises(
            BadImage, match=r"is not a usable image \(its values are not grey values; give booleans, int"
        ):
            reading.pixels_of(np.ones((2, 2)).astype(int).astype(kind))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "CMYK", "HSV", "I;16", "F"])
def test_pictures_of_every_mode_are_images(mode: str):
    grey = Image.new("LA", (3, 2), (90, 255))
    grey.putpixel((0, 0), (0, 0))
    picture = (grey.convert("RGBA") if mode == "RGBa" else grey).convert(mode)
    pixels = reading.pixels_of(picture)
    assert pixels.shape == (2, 3, 3) and pixels.dtype == np.uint8
    if mode in ("LA", "La", "RGBA", "RGBa"):
        assert pixels[0, 0].tolist() == [255] * 3 and pixels[1, 1].tolist() == [90] * 3


def test_a_name_with_nul_and_a_huge_file(tmp_path: Path):
    with pytest.raises(BadImage, match="not a file name"):
        reading.read_bytes(Path("a\0b.jpg"))
    with (tmp_path / "x.jpg").open("wb") as file:
        file.truncate(reading.MOST_BYTES + 1)
    with pytest.raises(BadImage, match=r"2,147,483,649 bytes"):
        reading.read_bytes(tmp_path / "x.jpg")
