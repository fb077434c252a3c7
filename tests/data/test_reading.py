"""Reading a file: as evaluation reads it, and never waiting for something that is no file."""

import os
from pathlib import Path

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


def test_a_name_with_nul_and_a_huge_file(tmp_path: Path):
    with pytest.raises(BadImage, match="not a file name"):
        reading.read_bytes(Path("a\0b.jpg"))
    with (tmp_path / "x.jpg").open("wb") as file:
        file.truncate(reading.MOST_BYTES + 1)
    with pytest.raises(BadImage, match=r"2,147,483,649 bytes"):
        reading.read_bytes(tmp_path / "x.jpg")
