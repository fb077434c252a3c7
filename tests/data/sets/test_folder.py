"""A user's own folder, in each of its layouts."""

import os
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


def test_small_classes_have_no_val(tmp_path: Path, caplog):
    make(tmp_path, [f"{name}/{i}.png" for name in "ab" for i in range(4)])
    found = create(tmp_path)
    assert {name: len(split) for name, split in found.splits.items()} == {"train": 6, "test": 2}
    assert "no split val" in caplog.text
    with pytest.raises(ValueError, match="no image is left for test; set config"):
        create(tmp_path, test_share=0.1)


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


@pytest.mark.parametrize(
    ("train", "val", "test"),
    [("Train", "Val", "Test"), ("TRAINING", "Validation", "Testing"), ("train_set", "dev-set", "test images")],
)
def test_other_spellings_of_the_splits(tmp_path: Path, train: str, val: str, test: str):
    make(tmp_path, [f"{train}/cat/1.png", f"{train}/dog/2.png", f"{val}/cat/3.png", f"{test}/dog/4.png"])
    found = create(tmp_path)
    assert found.class_names == ("cat", "dog")
    assert {name: split.labels.tolist() for name, split in found.splits.items()} == {
        "train": [0, 1], "val": [0], "test": [1],
    }  # fmt: skip


def test_two_spellings_of_one_split(tmp_path: Path):
    make(tmp_path, ["train/cat/1.png", "Training/cat/1.png"])
    with pytest.raises(ValueError, match="has two folders for train: Training and train"):
        create(tmp_path)


@pytest.mark.parametrize("inside", ["train/{}.png", "train/steam/{}.png"])
def test_a_class_called_train_hides_no_other(tmp_path: Path, inside: str, caplog: pytest.LogCaptureFixture):
    make(tmp_path, [path.format(i) for path in ("car/{}.png", "plane/{}.png", inside) for i in range(10)])
    make(tmp_path, ["train/.ipynb_checkpoints/1.png"])
    found = create(tmp_path)
    assert found.class_names == ("car", "plane", "train") and found.class_counts.tolist() == [7, 7, 7]
    assert "read train as classes, not as splits, because of the folders beside: car, plane" in caplog.text


def test_what_is_beside_the_splits_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    make(tmp_path, ["train/cat/1.png", "train/dog/2.png", "val/cat/3.png", "extra/1.png", "test/unlabelled.png"])
    found = create(tmp_path)
    assert found.split("test").images.references() == ["val/cat/3.png"]
    assert "read train, val as splits; left out test, extra" in caplog.text


def test_splits_without_class_folders(tmp_path: Path):
    make(tmp_path, ["train/1.png", "test/2.png"])
    with pytest.raises(FileNotFoundError, match=r"train holds no class folders with images. Expected one folder"):
        create(tmp_path)


def test_hidden_folders_are_no_classes(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    make(tmp_path, [f"{name}/{i}.png" for name in ("cat", "dog") for i in range(10)])
    make(tmp_path, ["cat/.ipynb_checkpoints/1.png", ".ipynb_checkpoints/2.png", "__MACOSX/3.png", "cat/._1.png"])
    make(tmp_path, ["loose.png"])
    found = create(tmp_path, val_share=0.0)
    assert found.class_names == ("cat", "dog") and sum(map(len, found.splits.values())) == 20
    assert list(found.splits) == ["train", "test"]  # val_share = 0: no validation split
    assert "left out the folders .ipynb_checkpoints, __MACOSX and 1 images that are in no class folder" in caplog.text
    assert "cat: left out .ipynb_checkpoints" in caplog.text


def test_other_endings_and_no_folders_among_the_images(tmp_path: Path):
    make(tmp_path, ["a/1.png", "a/2.png"])
    Image.new("RGB", (8, 8)).save(tmp_path / "a/3.jfif", "JPEG")
    Image.new("RGB", (8, 8)).save(tmp_path / "a/4.AVIF", "AVIF")
    (tmp_path / "a/folder.jpg").mkdir()
    _, split = read(str(tmp_path), "train")
    assert split.images.references() == ["a/1.png", "a/2.png", "a/3.jfif", "a/4.AVIF"]
    assert [split.images[i].shape[0] for i in range(4)] == [10, 10, 8, 8]


def test_a_folder_that_cannot_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    make(tmp_path, ["cat/1.png", "cat/deep/2.png", "dog/1.png"])
    scandir = os.scandir

    def refuse(path):  # as root, permissions do not apply
        if str(path).endswith("deep"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(PermissionError, match=r"cat/deep: this folder cannot be read \(Permission denied\)"):
        create(tmp_path)


@pytest.mark.parametrize("name", [b"cat/caf\xe9.png", b"caf\xe9/1.png"])
def test_a_name_that_is_not_utf8_is_shown(tmp_path: Path, name: bytes):
    make(tmp_path, ["cat/1.png", "dog/1.png"])
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    odd.parent.mkdir(exist_ok=True)
    odd.write_bytes((tmp_path / "cat/1.png").read_bytes())
    with pytest.raises(ValueError, match=r"caf\\xe9.*: the name is not UTF-8; rename it"):
        create(tmp_path)


def test_classes_that_share_a_text(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    make(tmp_path, [f"{name}/{i}.png" for name in ("red_fox", "red-fox", "red fox", "_", "cat") for i in range(10)])
    found = create(tmp_path)
    assert found.class_names == ("_", "cat", "red fox", "red-fox", "red_fox")
    assert found.class_texts == ("_", "cat", "red fox", "red fox", "red fox")
    assert found.class_counts.tolist() == [7] * 5
    assert "3 classes share their text with another class, as 'red fox' and 'red-fox' and 'red_fox' do" in caplog.text


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
