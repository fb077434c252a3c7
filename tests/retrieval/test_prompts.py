"""A head made of prompts: with it, B starts as CLIP's zero-shot classifier."""

import jax
import numpy as np
import pytest
from flax import nnx

from rac_jax import config as configs
from rac_jax import models, optimizer, rules, train
from rac_jax.config import ConfigError
from rac_jax.retrieval import prompts, tokenizers
from rac_jax.run import Run
from rac_jax.weights import tensor_files
from tests import pretrained, tiny
from tests.models.test_clip_text import GOLDEN

SIZES = {"width": 32, "depth": 2, "heads": 4, "mlp_width": 64, "projection": 16}
NAMES = ["zero", "sea cliff"]


@pytest.fixture(scope="module")
def towers(tmp_path_factory):
    """The small CLIP of golden/, with tables for all of CLIP's words and positions."""
    tensors, random = dict(tensor_files.read(GOLDEN / "clip_hf")), np.random.default_rng(0)
    for table, rows in (("token", 49408), ("position", 77)):
        tensors[f"text_model.embeddings.{table}_embedding.weight"] = random.normal(0, 0.5, (rows, 32)).astype("f4")
    path = tmp_path_factory.mktemp("clip") / "clip.npz"
    np.savez(path, **tensors)
    return str(path)


def config(towers):
    c = tiny.config("base")
    for name, role in (("clip_image_b16", "base"), ("clip_text", "text")):
        c.model[role] = configs.default().model[role]
        c.model[role].update(name=name, weights=towers, **SIZES)
    c.model.head, c.model.head_start, c.model.drop_path = "cosine", "text", 0.0
    c.model.base.adapter = 2
    return c


def features(towers, prompt):
    """Of one prompt, by the text tower alone."""
    model = nnx.eval_shape(lambda: models.create("clip_text", **SIZES))
    tokenizer = tokenizers.clip()
    ids = [tokenizer.start, *tokenizer.encode([prompt])[0], tokenizer.end]
    found = np.asarray(nnx.jit(lambda m, t: m(t))(pretrained.load(model, towers), np.array([ids], np.int32)))[0]
    return found / np.linalg.norm(found)


def test_a_column_is_the_feature_of_the_classs_prompt(towers):
    head = prompts.head(config(towers), NAMES)
    assert head.shape == (16, 2)
    for column, name in zip(head.T, NAMES, strict=True):
        np.testing.assert_allclose(column, features(towers, f"a photo of a {name}."), atol=1e-5)


def test_sequences_are_cut_and_padded():
    tokenizer = tokenizers.clip()
    short, long = prompts.sequences(tokenizer, ["a photo of a cat.", "cat " * 100])
    np.testing.assert_array_equal(short[:9], [49406, 320, 1125, 539, 320, 2368, 269, 49407, 0])
    assert long[0] == 49406 and long[-1] == 49407 and (long[1:-1] == 2368).all()


def test_b_starts_as_the_zero_shot_classifier(towers, tmp_path):
    c = config(towers)
    rules.validate(c, devices=8)
    run = Run.from_config(c, tmp_path)
    state = train.initial_state(run, optimizer.from_config(c, 100))
    images = np.random.default_rng(0).integers(0, 255, (4, 32, 32, 3), dtype=np.uint8)
    model = nnx.merge(nnx.graphdef(run.model), jax.device_get(state.params), jax.device_get(state.stats))
    tower = pretrained.load(nnx.eval_shape(lambda: models.create("clip_image_b16", image_size=32, **SIZES)), towers)
    seen = np.asarray(tower(tower.preprocessing.normalise(images)))
    seen = seen / np.linalg.norm(seen, axis=1, keepdims=True)
    expected = seen @ np.stack([features(towers, f"a photo of a {text}.") for text in run.class_texts]).T
    np.testing.assert_allclose(model(images)["base"], 30.0 * expected, atol=1e-3)


def test_other_models_have_no_text_start():
    c = tiny.config("base")
    c.model.head_start = "text"
    with pytest.raises(ConfigError, match=r"config\.model\.head_start is 'text'; .* unless B is CLIP's image tower"):
        rules.validate(c, devices=8)
    c = tiny.config("base")
    c.model.prompt = "a photo"
    with pytest.raises(ConfigError, match=r"config\.model\.prompt is 'a photo'; it must be a text of one line with"):
        rules.validate(c, devices=8)
