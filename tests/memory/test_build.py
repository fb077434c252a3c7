"""What a memory is built from."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from rac_jax import config as configs
from rac_jax import sharding
from rac_jax.data import digits
from rac_jax.memory import build
from rac_jax.models.preprocessing import HALF

ENCODER = dataclasses.make_dataclass("Encoder", [("preprocessing", object, HALF)])()


def encode(parameters, images):
    return images.astype(jnp.float32).mean(axis=(2, 3)) * parameters["scale"]


def open_or_build(dataset, folder, **changes):
    config = configs.default()
    config.data.image_size = 16
    with config.unlocked():
        for name, value in changes.items():
            config.memory[name] = value
    mesh = sharding.make_mesh(config)
    parameters = sharding.put_replicated(mesh, {"scale": jnp.float32(1)})
    return build.open_or_build(config, dataset, ENCODER, encode, parameters, folder=folder, mesh=mesh)


def test_a_row_for_each_training_image_with_its_classs_text(tmp_path):
    dataset = digits.load(0)
    memory = open_or_build(dataset, tmp_path / "m")
    assert len(memory) == 466 and memory.keys.shape == (466, 16)
    labels = dataset.split("train").labels
    assert [memory.texts[t] for t in memory.text_of[:9]] == [digits.WORDS[label] for label in labels[:9]]
    assert memory.images[465] == "digits/train/465"
    written = (tmp_path / "m" / "manifest.json").stat().st_mtime_ns
    open_or_build(dataset, tmp_path / "m", encode_batch=56)  # reused: the batch changes nothing
    assert (tmp_path / "m" / "manifest.json").stat().st_mtime_ns == written


def test_keys_do_not_depend_on_the_batch(tmp_path):
    dataset = digits.load(0)
    one, other = (open_or_build(dataset, tmp_path / str(b), encode_batch=b) for b in (128, 50))
    np.testing.assert_allclose(one.keys, other.keys, rtol=1e-6)


def test_captions_are_stored_in_place_of_the_classs_text(tmp_path):
    dataset = digits.load(0)
    train = dataset.split("train")
    captions = [f"a {digits.WORDS[label]}" + (" in ink" if i % 2 else "") for i, label in enumerate(train.labels)]
    captioned = dataclasses.replace(train, captions=captions)
    dataset = dataclasses.replace(dataset, splits={**dataset.splits, "train": captioned})
    memory = open_or_build(dataset, tmp_path / "m")
    assert [memory.texts[t] for t in memory.text_of] == captions
    assert len(memory.texts) < 25
