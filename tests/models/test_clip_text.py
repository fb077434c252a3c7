"""CLIP's text tower against transformers and OpenAI's own code."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rac_jax import models
from rac_jax.models import clip_text
from tests import pretrained

GOLDEN = pathlib.Path(__file__).parent.parent / "golden"
SIZES = {"vocab_size": 512, "width": 64, "depth": 3, "heads": 4, "projection": 32}


def load(name, **overrides):
    model = nnx.eval_shape(lambda: models.create("clip_text", **{**SIZES, **overrides}))
    return pretrained.load(model, GOLDEN / name)


@pytest.mark.parametrize("name", ["clip_text_hf", "clip_text_openai"])
def test_both_file_formats_give_the_reference_features(name):
    io = np.load(GOLDEN / name / "io.npz")
    tokens = jnp.asarray(io["input_ids"], jnp.int32)

    @nnx.jit
    def run(model, tokens):
        return model(tokens), model.final_norm(model.encode(tokens))

    features, hidden = run(load(name), tokens)
    np.testing.assert_allclose(features, io["text_embeds"], atol=1e-4)
    np.testing.assert_allclose(hidden, io["last_hidden_state"], atol=1e-4)


def test_padding_after_the_end_token_changes_nothing():
    model, io = load("clip_text_hf"), np.load(GOLDEN / "clip_text_hf" / "io.npz")
    tokens = jnp.asarray(io["input_ids"], jnp.int32)[:2]  # 3 and 9 tokens long
    short = nnx.jit(lambda m, t: m(t))(model, tokens[:, :12])
    np.testing.assert_allclose(short, io["text_embeds"][:2], atol=1e-4)


def test_bfloat16_keeps_the_direction_of_the_features():
    io = np.load(GOLDEN / "clip_text_hf" / "io.npz")
    model = load("clip_text_hf", dtype=jnp.bfloat16)
    features = nnx.jit(lambda m, t: m(t))(model, jnp.asarray(io["input_ids"], jnp.int32))
    assert features.dtype == jnp.float32
    expected = io["text_embeds"]
    norms = np.linalg.norm(features, axis=1) * np.linalg.norm(expected, axis=1)
    assert (np.sum(features * expected, axis=1) / norms).min() > 0.999


def test_gradients_with_and_without_remat_agree():
    tokens = jnp.asarray(np.load(GOLDEN / "clip_text_hf" / "io.npz")["input_ids"], jnp.int32)

    @nnx.jit
    def gradient(model):
        return nnx.grad(lambda m: jnp.sum(m(tokens) ** 2))(model)

    sizes = {**SIZES, "depth": 1}
    plain = nnx.to_pure_dict(gradient(models.create("clip_text", **sizes)))
    saving = nnx.to_pure_dict(gradient(models.create("clip_text", remat=True, **sizes)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), plain, saving)
    assert all(float(jnp.abs(leaf).max()) > 0 for leaf in jax.tree.leaves(plain))


def test_too_many_tokens_are_refused():
    model = nnx.eval_shape(lambda: models.create("clip_text", **SIZES))
    with pytest.raises(ValueError, match="length 78, but context_length=77"):
        nnx.eval_shape(lambda m: m(jnp.zeros((1, 78), jnp.int32)), model)


def test_a_token_looks_only_back():
    bias = clip_text.causal_bias(3)[0]
    np.testing.assert_array_equal(bias == 0, [[True, False, False], [True, True, False], [True, True, True]])
