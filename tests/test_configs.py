"""Every config of configs/, its own models made small, trains two steps; every variant builds its models."""

import functools
import importlib
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from rac_jax import config as configs
from rac_jax import data, models, rules, train
from rac_jax.data import dataset
from rac_jax.retrieval import encoder
from rac_jax.start import tuning
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


SMALL = {
    "efficientnet": {"depth": 3},
    "vit": {**tiny.TINY_VIT, "weights": ""},
    "clip_text": {**tiny.TINY_TEXT, "weights": ""},
}


def shrink(config):
    """The same recipe with fewer and narrower layers of the same models, smaller images, and fewer neighbours."""
    for role in configs.roles(config):
        (small,) = (fields for name, fields in SMALL.items() if config.model[role].name.startswith(name))
        config.model[role].update(small)
    config.data.image_size, config.data.workers = 32, 0
    if not config.model.encoder.weights:
        config.model.head_start = "random"  # B does not start as E
    config.memory.k = 5
    config.train.batch_size = config.eval.batch_size = 16
    config.tune.update(batch_size=16, epochs=0.5, frozen=r"base\.(stem|blocks\.[01]\.)")
    config.train.steps, config.train.log_every, config.eval.show = 2, 1, 0
    return config


FAST = ("demo", "places")  # one of each kind of models


ALSO = ("instant", "plus", "finetune", "tuned", "rac_keys")  # variants with a way of training of their own
TRAINED = [*NAMES, *(f"{n}:{v}" for n in NAMES for v in importlib.import_module(f"configs.{n}").VARIANTS if v in ALSO)]


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in FAST else pytest.mark.slow) for n in TRAINED])
def test_config_trains(name, tmp_path, monkeypatch):
    name, _, variant = name.partition(":")
    config = importlib.import_module(f"configs.{name}").get_config(variant)
    started = config.model.head_start
    rules.validate(shrink(config), devices=jax.device_count())
    config.model.head_start = started  # although small models have no weights that B and E could share
    if config.data.name not in ("digits", "groceries"):
        monkeypatch.setattr(data, "load", lambda config: images_of(config.data.name))
    train.train(config, tmp_path)
    result = json.loads((tmp_path / "eval" / f"{config.eval.split}.json").read_text())
    speaking = configs.voices(config)
    beside = ["paper"] if {"base", "text"} <= {*speaking} and config.model.fusion == "sum" else []
    expected = ["rac", *speaking, *beside] if len(speaking) > 1 else [*speaking]
    assert result["step"] == 2 and list(result["voices"]) == expected


@functools.cache
def width_of(described: str, role: str, image_size: int) -> int:
    """The features of a model at its full size, of which only shapes are made."""
    config = configs.default()
    config.model[role].update(json.loads(described))
    sizes = {"vocab_size": 49408, "context_length": 77} if role == "text" else {"image_size": image_size}
    return nnx.eval_shape(lambda: models.from_config(config, role, nnx.Rngs(0), **sizes)).feature_width


def variants() -> list[tuple[str, str]]:
    known = {name: getattr(importlib.import_module(f"configs.{name}"), "VARIANTS", ("",)) for name in NAMES}
    return [(name, variant) for name, of in known.items() for variant in of]


@pytest.mark.parametrize("name, variant", variants())
def test_every_variant_is_valid_and_builds_its_models(name, variant):
    config = importlib.import_module(f"configs.{name}").get_config(variant)
    rules.validate(config, devices=jax.device_count())
    widths = {"efficientnet_lite0": 1280, "vit_b16": 768}
    for role in configs.roles(config):
        model = config.model[role]
        expected = model.projection or 512 if role == "text" else widths[model.name]
        assert width_of(json.dumps(model.to_dict()), role, config.data.image_size) == expected


@pytest.mark.parametrize("name", ["demo", "cifar100_lt"])
def test_rac_on_keys_is_the_papers_rac_without_a_model_for_b(name):
    config = importlib.import_module(f"configs.{name}").get_config("rac_keys")
    assert configs.voices(config) == ("base", "text") and config.model.fusion == "paper"
    assert configs.roles(config) == ("encoder", "text") and config.memory.lookup == "cached"
    assert importlib.import_module(f"configs.{name}").get_config("rac_keys+minilm").model.text.name == "minilm"


@pytest.mark.parametrize("name", ["places", "inat", "imagenet_lt", "cifar100_lt"])
def test_clip_with_adapters_starts_from_texts(name):
    config = importlib.import_module(f"configs.{name}").get_config("plus+clip")
    rules.validate(config, devices=jax.device_count())
    assert config.model.head_start == "text" and config.model.base.adapter and config.name == f"{name}_plus_clip"
    assert width_of(json.dumps(config.model.base.to_dict()), "base", 224) == 512  # with CLIP's projection


@pytest.mark.parametrize(
    "variant, blocks",
    [("demo:instant+lite2", 0), ("folder:finetune+lite2", 15), ("folder:tuned+lite2", 15), ("demo:rac+minilm", 0)],
)
def test_larger_models_are_a_word(variant, blocks):
    name, _, variant = variant.partition(":")
    config = importlib.import_module(f"configs.{name}").get_config(variant)
    rules.validate(config, devices=jax.device_count())
    assert config.name == f"{name}_{variant.replace('+', '_')}"
    if "lite2" in variant:
        assert config.model.encoder.name == config.model.base.name == "efficientnet_lite2"
        assert config.model.base.weights == config.model.encoder.weights == "efficientnet_lite2:imagenet"
        assert encoder.cut_of(tuning.stage(config) if config.tune.share else config) == blocks
        assert width_of(json.dumps(config.model.encoder.to_dict()), "encoder", config.data.image_size) == 1280
    else:
        assert width_of(json.dumps(config.model.text.to_dict()), "text", 0) == 384


def test_a_text_model_needs_a_voice_that_reads():
    with pytest.raises(
        configs.ConfigError, match=r"demo_instant has no voice that reads texts; \+minilm needs .* as :rac"
    ):
        importlib.import_module("configs.demo").get_config("instant+minilm")


@pytest.mark.parametrize("name", NAMES)
def test_a_configs_docstring_is_its_lab_note(name):
    note = importlib.import_module(f"configs.{name}").__doc__
    assert f"python -m rac_jax.main --config=configs/{name}.py" in note
