"""On the real lists, with a few generated images; and on what is wrong with a folder."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rac_jax.data.missing import MissingData
from rac_jax.data.sets import places


@pytest.fixture
def lists(real_data: Path) -> Path:
    return real_data / "places_lt"


class Everywhere:
    """Remembers a path for every spot check, so that only those images have to be made."""

    def __init__(self, lists: Path, root: Path, layout: str):
        self.lists, self.root, self.layout = lists, root, layout
        self.names = places.names_from_paths(places.files.read_list(lists / "Places_LT_train.txt", places.CLASSES))

    def make(self, name: str) -> None:
        part = places.files.read_list(self.lists / f"Places_LT_{name}.txt", places.CLASSES)
        for position in np.linspace(0, len(part.paths) - 1, places.files.SPOT_CHECKS).astype(int):
            label = part.labels[position]
            path = self.root / places.layouts(part.paths[position], self.names[label])[self.layout]
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (256, 256), (label % 256, 10, 20)).save(path)


@pytest.mark.parametrize("layout", ["easy", "plain"])
def test_real_lists(lists: Path, tmp_path: Path, layout: str):
    images = Everywhere(lists, tmp_path, layout)
    for name in places.IMAGES:
        images.make(name)
    data = places.load(str(tmp_path), str(lists))
    assert {name: len(split) for name, split in data.splits.items()} == places.IMAGES
    counts = data.class_counts
    assert (counts.max(), counts.min(), counts.sum()) == (4980, 5, 62_500)
    groups = (counts > 100).sum(), ((counts >= 20) & (counts <= 100)).sum(), (counts < 20).sum()
    assert groups == (131, 163, 71)
    assert np.bincount(data.split("test").labels).tolist() == [100] * 365
    assert data.class_texts[2] == "airport terminal"
    assert data.class_texts[15] == "arena hockey"
    # These follow the list's folders; categories_places365.txt numbers them otherwise.
    assert data.class_names[116:119] == ("desert_road", "desert-sand", "desert-vegetation")
    assert data.class_names[141:143] == ("field_road", "field-wild")
    last = data.split("test").images[36_499]
    assert last.shape == (256, 256, 3)
    assert abs(int(last[0, 0, 0]) - 364 % 256) <= 2


def test_both_list_layouts_mean_the_same_images(lists: Path, tmp_path: Path):
    """The lists that say data_256/a/arena/hockey/… lead to the same names and files."""
    for name in places.IMAGES:
        part = places.files.read_list(lists / f"Places_LT_{name}.txt", places.CLASSES)
        named = Everywhere(lists, tmp_path, "plain").names
        lines = [
            f"{places.layouts(path, named[label])['plain']} {label}"
            for path, label in zip(part.paths, part.labels, strict=True)
        ]
        (tmp_path / f"Places_LT_{name}.txt").write_text("\n".join(lines) + "\n")
        Everywhere(lists, tmp_path, "easy").make(name)
    plain = places.load(str(tmp_path))
    easy = places.load(str(tmp_path), str(lists))
    assert plain.class_names == easy.class_names
    assert [plain.fingerprint(s) for s in plain.splits] == [easy.fingerprint(s) for s in easy.splits]


def test_categories_agree_with_the_plain_layout(lists: Path):
    """data_256/<letter>/<folders> is how categories_places365.txt spells every class."""
    lines = (lists / "categories_places365.txt").read_text().splitlines()
    spelt = {line.split()[0] for line in lines}
    names = Everywhere(lists, Path(), "plain").names
    paths = {places.layouts(f"train/{name}/1.jpg", name)["plain"] for name in names}
    assert {f"data_256{name}/1.jpg" for name in spelt} == paths


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Two classes in place of 365, complete; a test then breaks something."""
    monkeypatch.setattr(places, "CLASSES", 2)
    monkeypatch.setattr(places, "IMAGES", {"train": 3, "val": 1, "test": 1})
    listed = {
        "train": "train/attic/1.jpg 0\ntrain/bar/1.jpg 1\ntrain/bar/2.jpg 1\n",
        "val": "train/bar/3.jpg 1\n",
        "test": "val/attic/Places365_val_00000001.jpg 0\n",
    }
    for name, lines in listed.items():
        (tmp_path / f"Places_LT_{name}.txt").write_text(lines)
        for line in lines.splitlines():
            path = tmp_path / line.split()[0]
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8)).save(path)
    return tmp_path


def test_small_is_complete(small: Path):
    data = places.load(str(small))
    assert data.class_texts == ("attic", "bar")
    assert data.class_counts.tolist() == [1, 2]
    assert data.split("train").images.references() == [
        "train/attic/1.jpg",
        "train/bar/1.jpg",
        "train/bar/2.jpg",
    ]


def test_missing_root_list_and_image_are_named(small: Path):
    with pytest.raises(MissingData, match=r"set --config.data.root[\s\S]*How to get it[\s\S]*OLTR"):
        places.load("")
    with pytest.raises(MissingData, match=re.escape(str(small / "nowhere"))):
        places.load(str(small / "nowhere"))
    (small / "train/bar/2.jpg").unlink()
    with pytest.raises(MissingData, match=r"bar/2.jpg \(Places_LT_train.txt, line 3\)\n[\s\S]*places2.csail"):
        places.load(str(small))
    (small / "Places_LT_val.txt").unlink()
    with pytest.raises(MissingData, match=r"Missing:\n .*Places_LT_val.txt"):
        places.load(str(small))
    shutil.rmtree(small)
    with pytest.raises(MissingData, match="the folder"):
        places.load(str(small))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("train/attic/1.jpg 0\ntrain/bar/1.jpg 2\n", r"train.txt, line 2: label 2 of train/bar/1"),
        ("train/attic/1.jpg 0\ntrain/bar/1.jpg\n", r"train.txt, line 2: expected `path label`"),
        ("train/attic/1.jpg -1\n", r"line 1: expected `path label`"),
        (
            "train/bar/1.jpg 1\n\ntrain/bar/1.jpg 1\n",
            r"line 3: train/bar/1.jpg is already on line 1",
        ),
        ("train/bar/1.jpg 1\n", r"1 images; the benchmark has 3"),
        ("train/a/1.jpg 0\ntrain/b/1.jpg 1\ntrain/b/2.jpg 0\n", r"line 3: label 0 is 'b' here"),
        ("train/b/1.jpg 1\ntrain/b/2.jpg 1\ntrain/b/3.jpg 1\n", r"no image has the label 0"),
    ],
)
def test_a_bad_list_is_reported_by_line(small: Path, lines: str, message: str):
    (small / "Places_LT_train.txt").write_text(lines)
    with pytest.raises(ValueError, match=message):
        places.load(str(small))
