"""With data.on_bad_image = "skip", bad images are gone before positions and counts mean anything."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rac_jax import config, data
from rac_jax.data.decode import BadImage


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for split in ("train", "test"):
        for name in ("cat", "dog"):
            (tmp_path / split / name).mkdir(parents=True)
            for number in range(3):
                Image.new("RGB", (6, 6), (number, 0, 0)).save(tmp_path / split / name / f"{number}.png")
    (tmp_path / "train/cat/1.png").write_bytes(b"")
    (tmp_path / "test/dog/0.png").write_text("<html>")
    return tmp_path


def create(root: Path, policy: str):
    c = config.default()
    c.data.update(name="folder", root=str(root), on_bad_image=policy)
    return data.load(c)


def test_error_is_raised_where_the_image_is_read(root: Path):
    found = create(root, "error")
    assert len(found.split("train")) == 6
    with pytest.raises(BadImage, match=r"train/cat/1\.png: not a usable image \(of no known format\)"):
        found.split("train").images[1]


def test_skip_leaves_them_out_and_counts_them(root: Path, caplog: pytest.LogCaptureFixture):
    found = create(root, "skip")
    train, test = found.split("train"), found.split("test")
    assert train.images.references() == [
        "train/cat/0.png",
        "train/cat/2.png",
        "train/dog/0.png",
        "train/dog/1.png",
        "train/dog/2.png",
    ]
    assert train.labels.tolist() == [0, 0, 1, 1, 1]
    assert found.class_counts.tolist() == [2, 3]
    np.testing.assert_array_equal([image[0, 0, 0] for image in (train.images[i] for i in range(5))], [0, 2, 0, 1, 2])
    assert len(test) == 5
    assert "train: left out 1 of 6 images" in caplog.text
    assert "test/dog/0.png: not a usable image" in caplog.text


def test_a_class_without_a_usable_image_is_an_error(root: Path):
    for number in range(3):
        (root / f"train/cat/{number}.png").write_bytes(b"")
    with pytest.raises(ValueError, match=r"without its bad images: 1 classes have no training image: 'cat'"):
        create(root, "skip")
