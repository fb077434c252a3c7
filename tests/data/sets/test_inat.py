"""On the real categories and list, and on the competition's JSON in miniature."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rac_jax.data import files
from rac_jax.data.missing import MissingData
from rac_jax.data.sets import inat


def test_real_categories(real_data: Path):
    categories = inat.read_categories(real_data / "inat18" / "categories.json")
    species = inat.class_texts(categories, "species")
    assert len(set(species)) == 8142
    assert species[0] == "Hermodice carunculata"
    levels = inat.class_texts(categories, "genus family order")
    assert levels[0] == "Hermodice Amphinomidae Phyllodocida"
    with pytest.raises(ValueError, match=r"text_levels is 'tribe'; .* species, genus"):
        inat.class_texts(categories, "tribe")


def test_real_validation_list(real_data: Path):
    part = files.read_list(real_data / "inat18" / "iNaturalist18_val.txt", inat.CLASSES)
    files.check_count(part, inat.IMAGES["test"])
    assert np.bincount(part.labels).tolist() == [3] * 8142


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two species, as JSON for training and as a list for the test."""
    monkeypatch.setattr(inat, "CLASSES", 2)
    monkeypatch.setattr(inat, "IMAGES", {"train": 3, "test": 1})
    categories = [
        {"id": 1, "name": "Ardea alba", "genus": "Ardea", "kingdom": "Animalia"},
        {"id": 0, "name": "Abies alba", "genus": "Abies", "kingdom": "Plantae"},
    ]
    (tmp_path / "categories.json").write_text(json.dumps(categories))
    paths = [f"train_val2018/Aves/1/{i}.jpg" for i in range(4)]
    content = {
        "images": [{"id": 10 + i, "file_name": paths[i]} for i in range(3)],
        "annotations": [{"image_id": 10 + i, "category_id": i % 2} for i in (2, 1, 0)],
    }
    (tmp_path / "train2018.json").write_text(json.dumps(content))
    (tmp_path / "iNaturalist18_val.txt").write_text(f"{paths[3]} 1\n")
    (tmp_path / "train_val2018/Aves/1").mkdir(parents=True)
    for path in paths:
        Image.new("RGB", (9, 7)).save(tmp_path / path)
    return tmp_path


def test_json_and_list(small: Path):
    data = inat.load(str(small), text_levels="species kingdom")
    assert data.class_names == ("Abies alba", "Ardea alba")
    assert data.class_texts == ("Abies alba Plantae", "Ardea alba Animalia")
    assert data.split("train").labels.tolist() == [0, 1, 0]
    assert data.split("test").images[0].shape == (7, 9, 3)
    with pytest.raises(ValueError, match=r"no split 'val'; it has \['train', 'test'\]"):
        data.split("val")


def test_what_is_missing_is_named(small: Path):
    (small / "train_val2018/Aves/1/2.jpg").unlink()
    with pytest.raises(MissingData, match=r"Aves/1/2.jpg \(train2018.json.*\n[\s\S]*train_val2018.tar.gz"):
        inat.load(str(small))
    (small / "train2018.json").unlink()
    with pytest.raises(MissingData, match=r"train2018.json or .*iNaturalist18_train.txt"):
        inat.load(str(small))
    (small / "categories.json").unlink()
    with pytest.raises(MissingData, match=r"categories.json"):
        inat.load(str(small))


def test_bad_annotations_are_named(small: Path):
    source = small / "train2018.json"
    content = json.loads(source.read_text())
    content["annotations"][0]["category_id"] = 7
    source.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"image 12 \(train_val2018/Aves/1/2.jpg\) has category 7"):
        inat.load(str(small))
    del content["annotations"][0]
    source.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"image 12 .* has no annotation"):
        inat.load(str(small))
