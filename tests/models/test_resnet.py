"""ResNet and its "d" variant against timm, at an even and an odd size of feature map."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rac_jax import models
from rac_jax.models import resnet
from tests import pretrained

GOLDEN = pathlib.Path(__file__).parent.parent / "golden" / "resnet_timm"
NARROW = {"widths": (8, 16, 32, 64)}
SIZES = {
    "resnet50": {**NARROW, "blocks": (1, 1, 1, 1)},
    "resnet152d": {**NARROW, "blocks": (1, 2, 1, 1), "stem_widths": (8, 8, 16)},
}


def load(name, **overrides):
    model = nnx.eval_shape(lambda: models.create(name, **{**SIZES[name], **overrides}))
    return pretrained.load(model, GOLDEN / f"{name}_like.safetensors")


@pytest.mark.parametrize("size", [64, 72])
@pytest.mark.parametrize("name", ["resnet50", "resnet152d"])
def test_feature_map_and_logits_equal_timm(name, size):
    io = np.load(GOLDEN / f"{name}_like_io_{size}.npz")

    @nnx.jit
    def run(model, images):
        return model.feature_map(images), model(images)

    head = pretrained.head(GOLDEN / f"{name}_like.safetensors", "fc.weight", "fc.bias")
    feature_map, features = run(load(name), jnp.asarray(io["images"]))
    np.testing.assert_allclose(feature_map, io["feature_map"], atol=1e-4)
    np.testing.assert_allclose(head(features), io["logits"], atol=1e-4)


def test_features_without_a_head_in_both_precisions():
    io = np.load(GOLDEN / "resnet50_like_io_64.npz")
    run = nnx.jit(lambda model, x: model(x))
    images = jnp.asarray(io["images"])
    np.testing.assert_allclose(run(load("resnet50"), images), io["features"], atol=1e-4)
    low = run(load("resnet50", dtype=jnp.bfloat16), images)
    norms = np.linalg.norm(low, axis=1) * np.linalg.norm(io["features"], axis=1)
    assert (np.sum(low * io["features"], axis=1) / norms).min() > 0.999


def test_training_modes_of_batch_norm():
    images = jnp.asarray(np.load(GOLDEN / "resnet152d_like_io_64.npz")["images"])

    def small(**overrides):
        return models.create("resnet152d", blocks=(2,), widths=(4,), stem_widths=(4, 8), **overrides)

    @nnx.jit
    def step(model):
        gradients = nnx.grad(
            lambda m: jnp.sum(m(images, train=True, keys=jax.random.split(jax.random.key(0), len(images))) ** 2)
        )(model)
        return gradients["stem"][0]["norm"]["scale"][...]

    moved, kept = small(batch_norm="update", remat=True), small(batch_norm="frozen")
    before = np.asarray(kept.stem[0].norm.mean[...])
    for model in (moved, kept):
        assert float(jnp.abs(step(model)).sum()) > 0
    np.testing.assert_array_equal(kept.stem[0].norm.mean[...], before)
    assert float(jnp.abs(moved.stem[0].norm.mean[...] - before).max()) > 1e-4


def test_an_odd_border_is_averaged_over_the_pixels_there_are():
    x = jnp.arange(9.0).reshape(1, 3, 3, 1)
    np.testing.assert_allclose(resnet.average_pairs(x)[0, :, :, 0], [[2.0, 3.5], [6.5, 8.0]])
