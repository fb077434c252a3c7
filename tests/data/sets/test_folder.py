"""A user's own folder, in each of its layouts."""

import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rac_jax import config, data
from rac_jax.data.sets.folder import read


def make(root: Path, paths: list[str]) -> None:
    for number, path in enumerate(paths):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 10), (number, 0, 0)).save(root / path)


def create(root: Path, name: str = "folder", **settings):
    c = config.default()
    c.data.update(name=name, root=str(root), **settings)
    return data.load(c)


def test_split_folders(tmp_path: Path):
    make(tmp_path, ["train/red_fox/1.png", "train/red_fox/deep/2.PNG", "train/cat/1.jpg"])
    make(tmp_path, ["test/cat/8.png", "validation/red_fox/9.webp"])
    (tmp_path / "train/cat/notes.txt").write_text("no image")
    found = create(tmp_path)
    assert found.class_names == ("cat", "red_fox")
    assert found.class_texts == ("cat", "red fox")
    assert found.split("train").images.references() == [
        "train/cat/1.jpg",
        "train/red_fox/1.png",
        "train/red_fox/deep/2.PNG",
    ]
    assert {name: split.labels.tolist() for name, split in found.splits.items()} == {
        "train": [0, 1, 1],
        "val": [1],
        "test": [0],
    }
    assert found.split("train").images[2][0, 0].tolist() == [1, 0, 0]


def test_only_validation_is_the_test(tmp_path: Path):
    make(tmp_path, ["train/a/1.png", "train/b/1.png", "val/b/2.png"])
    found = create(tmp_path)
    assert list(found.splits) == ["train", "test"]
    assert found.split("test").images.references() == ["val/b/2.png"]


@pytest.mark.parametrize("prefix", ["", "train/"])
def test_held_out(tmp_path: Path, prefix: str):
    make(tmp_path, [f"{prefix}{name}/{i}.png" for name in "ab" for i in range(20)])
    found = create(tmp_path)
    assert {name: np.bincount(split.labels).tolist() for name, split in found.splits.items()} == {
        "train": [14, 14],
        "val": [2, 2],
        "test": [4, 4],
    }
    paths = [path for split in found.splits.values() for path in split.images.references()]
    assert len(set(paths)) == 40
    same = create(tmp_path)
    assert same.fingerprint("test") == found.fingerprint("test")
    assert create(tmp_path, seed=1).fingerprint("test") != found.fingerprint("test")


@pytest.mark.parametrize("prefix", ["", "train/"])
def test_a_class_may_be_called_train(tmp_path: Path, prefix: str):
    make(tmp_path, [f"{prefix}{name}/{i}.png" for name in ("car", "train") for i in range(20)])
    found = create(tmp_path)
    assert found.class_names == ("car", "train") and found.class_counts.tolist() == [14, 14]
    assert read(str(tmp_path), "train")[0] == ("car", "train")


def test_named_with_its_folder_and_thinned(tmp_path: Path):
    make(tmp_path, [f"train/{name}/{i}.png" for name in "abc" for i in range(16)])
    make(tmp_path, ["test/a/1.png"])
    found = create(Path(), name=f"folder:{tmp_path}", imbalance=4.0)
    assert found.class_counts.tolist() == [16, 8, 4]


def test_what_is_wrong_is_said(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"config.data.root is '.*nowhere'"):
        create(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="holds no folders"):
        create(tmp_path)
    (tmp_path / "a").mkdir()
    with pytest.raises(FileNotFoundError, match="no images"):
        create(tmp_path)
    make(tmp_path, ["b/1.png", "b/2.png"])
    with pytest.raises(ValueError, match=r"1 classes have no training image: 'a' \(0\)"):
        create(tmp_path)
    make(tmp_path, ["train/b/1.png", "test/c/1.png"])
    with pytest.raises(ValueError, match=r"test/c: this class has no training folder"):
        create(tmp_path)
    with pytest.raises(ValueError, match=r"config.data.name is 'folders'; known: digits, groceries, places_lt"):
        create(tmp_path, name="folders")


def test_cifar_folders(real_data: Path, tmp_path: Path):
    """The long-tailed CIFAR-100 as class folders; only the first images of the test are unpacked."""
    with zipfile.ZipFile(real_data / "cifar100_lt.zip") as archive:
        names = archive.namelist()
        archive.extractall(tmp_path, [name for name in names if name.startswith("train/")])
        archive.extractall(tmp_path, [name for name in names if name.startswith("test/")][::50])
    found = create(tmp_path)
    assert found.num_classes == 100
    assert found.class_texts[1] == "aquarium fish"
    assert (found.class_counts.max(), found.class_counts.min(), len(found.split("train"))) == (500, 5, 10_847)
    assert found.split("train").images[10_846].shape == (32, 32, 3)
    as_benchmark = create(tmp_path, name="cifar100_lt", imbalance=100.0)
    np.testing.assert_array_equal(as_benchmark.class_counts, found.class_counts)
