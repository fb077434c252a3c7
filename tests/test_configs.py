"""Every config of configs/, made small, trains two steps on real parts."""

import importlib
import json
from pathlib import Path

import jax
import numpy as np
import pytest

from rac_jax import config as configs
from rac_jax import data, train
from rac_jax.data import dataset
from tests import tiny

ROOT = Path(__file__).parents[1]
NAMES = sorted(path.stem for path in (ROOT / "configs").glob("*.py"))


def images_of(name: str, classes: int = 6) -> dataset.Dataset:
    """Noise that stands in for a data set which is not on this machine; its classes are long-tailed."""
    random = np.random.default_rng(0)
    splits = {}
    for split, counts in (("train", [30, 12, 8, 5, 3, 2]), ("val", [2] * classes), ("test", [3] * classes)):
        labels = np.repeat(np.arange(classes), counts).astype(np.int32)
        pixels = random.integers(0, 255, (len(labels), 40, 48, 3), dtype=np.uint8)
        splits[split] = dataset.Split(split, dataset.ArrayImages(f"{name}/{split}", pixels), labels)
    texts = ("airfield", "bamboo forest outdoor", "sea cliff", "zen garden", "alcove", "atrium public")
    return dataset.Dataset(name, texts, texts, splits)


def shrink(config):
    """The same recipe with fewer layers, smaller images and no published weights."""
    for role in ("base", "encoder"):
        # convolutional networks cannot be made small, and take long to compile
        config.model[role].update(name="vit_ti16", weights="", **tiny.TINY_VIT)
    config.model.text.update(weights="", **tiny.TINY_TEXT)
    config.data.image_size, config.data.workers = 32, 0
    config.memory.k = 5
    config.train.batch_size = config.eval.batch_size = 16
    config.train.steps, config.train.log_every, config.eval.show = 2, 1, 2
    return config


@pytest.mark.parametrize("name", NAMES)
def test_config_trains(name, tmp_path, monkeypatch):
    config = shrink(importlib.import_module(f"configs.{name}").get_config())
    configs.validate(config, devices=jax.device_count())
    if config.data.name != "digits":
        monkeypatch.setattr(data, "load", lambda config: images_of(config.data.name))
    train.train(config, tmp_path)
    result = json.loads((tmp_path / "eval" / f"{config.eval.split}.json").read_text())
    assert result["step"] == 2 and list(result["branches"]) == ["rac", "base", "retrieval"]


@pytest.mark.parametrize("name", NAMES)
def test_a_configs_docstring_is_its_lab_note(name):
    note = importlib.import_module(f"configs.{name}").__doc__
    assert f"python -m rac_jax.main --config=configs/{name}.py" in note
