"""A run knows its data: other classes, counts or images are refused, wherever they lie."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

from rac_jax import data, evaluate, train
from rac_jax.config import ConfigError
from rac_jax.data import record
from tests import tiny

CLASSES = ("car", "cat", "plane")


def make(root, seed=0):
    random = np.random.default_rng(seed)
    for split, each in ("train", 4), ("val", 1), ("test", 2):
        for name in CLASSES:
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(each):
                pixels = random.integers(256, size=(32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return root


def config(root):
    c = tiny.config("base", devices=1)
    c.data.name, c.data.root, c.train.batch_size, c.train.steps = "folder", str(root), 4, 2
    return c


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run and its data."""
    folder = tmp_path_factory.mktemp("record")
    train.train(config(make(folder / "images")), folder / "run")
    return folder


@pytest.fixture
def copied(trained, tmp_path):
    """The same, to be changed."""
    shutil.copytree(trained, tmp_path / "copy")
    return tmp_path / "copy"


def rename(root, old, new):
    for split in ("train", "val", "test"):
        (root / split / old).rename(root / split / new)


def test_everything_about_the_classes_is_recorded(trained):
    found = json.loads((trained / "run" / "data.json").read_text())
    assert found["classes"] == found["texts"] == list(CLASSES)
    assert found["train_images"] == [4, 4, 4]
    assert {name: split["images"] for name, split in found["splits"].items()} == {"train": 12, "val": 3, "test": 6}
    assert found["root"] == str(trained / "images") and found["name"]


def test_a_renamed_class_is_refused_by_training_and_is_new_for_evaluation(copied, caplog):
    images, right, _ = evaluated(copied, copied / "images")
    before = json.loads((copied / "run" / "eval" / "test.json").read_text())["voices"]["base"]
    assert images == [2, 2, 2] and "new" not in before
    rename(copied / "images", "car", "zebra")  # now last: labels go by name
    with pytest.raises(record.OtherData, match="class 'car' is gone, class 'zebra' is new"):
        train.train(config(copied / "images"), copied / "run")
    assert evaluated(copied, copied / "images") == ([0, 2, 2, 2], [0, *right[1:], 0], [4, 4, 4, 0])
    assert "1 classes of images were not trained on, so that they are never answered: zebra" in caplog.text
    found = json.loads((copied / "run" / "eval" / "test.json").read_text())
    assert found["voices"]["base"]["new"] == 0.0 and found["voices"]["base"]["few"] == sum(right[1:]) / 4
    assert np.isfinite(found["calibration_error"]["base"])


def test_data_without_a_class_of_the_run_are_refused(copied):
    for old, new in zip(CLASSES, ("bus", "dog", "ship"), strict=True):
        rename(copied / "images", old, new)
    with pytest.raises(record.OtherData, match="none of the classes of images is one that the run was trained on"):
        evaluated(copied, copied / "images")


def test_other_images_under_the_same_names_are_refused_and_the_config_stays(trained, copied):
    before = (copied / "run" / "config.json").read_text()
    c = config(make(copied / "other", seed=1))
    with pytest.raises(record.OtherData, match="split train: other images, labels or captions"):
        train.train(c, copied / "run")
    assert (copied / "run" / "config.json").read_text() == before
    evaluate.evaluate_checkpoint(c, copied / "run", step=None, split="test")  # the classes are the same


def test_the_same_images_elsewhere_are_the_same_data(trained, copied):
    (copied / "images").rename(copied / "moved")
    train.train(config(copied / "moved"), copied / "run")
    assert json.loads((copied / "run" / "data.json").read_text())["root"] == str(copied / "moved")


def evaluated(copied, root):
    """The numbers of test images by class, and of those that were answered right, of an evaluation on a folder."""
    evaluate.evaluate_checkpoint(config(root), copied / "run", step=None, split="test")
    found = json.loads((copied / "run" / "eval" / "test_classes.json").read_text())
    return found["images"], found["base"]["correct"], found["train_images"]


def test_evaluation_on_another_folder_needs_no_training_images(copied, tmp_path):
    images, right, _ = evaluated(copied, copied / "images")
    (tmp_path / "with_test").mkdir()
    (copied / "images" / "test").rename(tmp_path / "with_test" / "test")  # nothing but the test split
    shutil.rmtree(copied / "images")
    assert evaluated(copied, tmp_path / "with_test") == (images, right, [4, 4, 4])
    plain = tmp_path / "with_test" / "test"
    assert evaluated(copied, plain) == (images, right, [4, 4, 4])
    shutil.rmtree(plain / "car")  # some of the classes: labels go by name
    assert evaluated(copied, plain) == ([0, *images[1:]], [0, *right[1:]], [4, 4, 4])


def test_a_split_that_another_folder_lacks_is_named(copied, tmp_path):
    (copied / "images" / "test").rename(copied / "images" / "val" / "test")
    shutil.rmtree(copied / "images" / "train")
    with pytest.raises(FileNotFoundError, match=r"images has folders for val, but none for test"):
        evaluated(copied, shutil.copytree(copied / "images", tmp_path / "images"))


def test_what_differs_is_listed(copied):
    for split in ("train", "test"):
        shutil.copy(copied / "images" / split / "cat" / "0.png", copied / "images" / split / "cat" / "9.png")
    with pytest.raises(record.OtherData) as error:
        train.train(config(copied / "images"), copied / "run")
    assert "class 'cat': 4 training images there, 5 now" in str(error.value)
    assert "split test: 6 images there, 7 now" in str(error.value)


def test_another_order_is_refused(copied):
    path = copied / "run" / "data.json"
    found = json.loads(path.read_text())
    path.write_text(json.dumps(found | {"classes": ["cat", "car", "plane"]}))
    with pytest.raises(record.OtherData, match="another order: number 0 is 'cat' there, 'car' now"):
        train.train(config(copied / "images"), copied / "run")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"classes": 3}'])
def test_a_damaged_record_is_named(tmp_path, text):
    (tmp_path / "data.json").write_text(text)
    with pytest.raises(ValueError, match=r"data\.json is damaged"):
        record.read(tmp_path)


@pytest.mark.parametrize(
    "field, value, gone, message",
    [
        ("every", 1, "val", "config.eval.every=1 needs images in a split 'val'; data set .* has: test, train"),
        (
            "split",
            "dev",
            None,
            "config.eval.split=dev needs images in a split 'dev'; data set .* has: test, train, val",
        ),
    ],
)
def test_splits_that_the_run_will_need_are_checked_before_its_first_step(tmp_path, field, value, gone, message):
    root = make(tmp_path / "images")
    if gone:
        shutil.rmtree(root / gone)
    c = config(root)
    c.eval[field] = value
    with pytest.raises(ConfigError, match=message):
        train.train(c, tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == [
        ".lock"
    ]  # the folder can be used with other settings


def test_a_split_without_images_is_as_good_as_none(tmp_path):
    c = config(make(tmp_path / "images"))
    dataset = data.load(c)
    dataset.splits["test"] = dataset.split("test").select(np.array([], int))
    with pytest.raises(ConfigError, match=r"config\.eval\.split=test needs images in a split 'test'"):
        record.start(c, dataset, tmp_path)
