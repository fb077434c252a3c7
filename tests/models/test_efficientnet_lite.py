"""EfficientNet-Lite0 with its published weights against timm's numbers for the same file."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rac_jax import models, weights
from rac_jax.models.efficientnet_lite import Stage
from tests.pretrained import head, load

GOLDEN = pathlib.Path(__file__).parent.parent / "golden" / "efficientnet_lite"
NAME = "efficientnet_lite0:imagenet"


@pytest.fixture(scope="module")
def real():
    try:
        weights.resolve(NAME)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    return load(nnx.eval_shape(lambda: models.create("efficientnet_lite0")), NAME)


def test_real_weights_give_the_reference_logits(real):
    io = np.load(GOLDEN / "io.npz")
    images = real.preprocessing.normalise(jnp.asarray(io["images_128"]), jnp.float32)
    logits = head(NAME, "_fc.weight", "_fc.bias")(nnx.jit(lambda model, x: model(x))(real, images))
    np.testing.assert_allclose(logits, io["logits_128"], atol=1e-3)
    np.testing.assert_array_equal(np.argsort(-logits, axis=-1)[:, :5], io["top5_ids_128"])


def test_real_weights_give_the_reference_features(real):
    io = np.load(GOLDEN / "io.npz")
    images = real.preprocessing.normalise(jnp.asarray(io["images_64"]), jnp.float32)
    features = nnx.jit(lambda model, x: model(x))(real, images)
    np.testing.assert_allclose(features, io["features_64"], atol=1e-4)


def test_bfloat16_keeps_the_direction_of_the_features(real):
    io = np.load(GOLDEN / "io.npz")
    model = load(nnx.eval_shape(lambda: models.create("efficientnet_lite0", dtype=jnp.bfloat16)), NAME)
    images = model.preprocessing.normalise(jnp.asarray(io["images_64"]), jnp.bfloat16)
    features = nnx.jit(lambda model, x: model(x))(model, images)
    norms = np.linalg.norm(features, axis=1) * np.linalg.norm(io["features_64"], axis=1)
    assert (np.sum(features * io["features_64"], axis=1) / norms).min() > 0.999


@pytest.mark.parametrize("number", [1, 2])
def test_larger_ones_from_their_packages_agree_with_the_smallest(real, number):
    """Networks trained on the same classes have correlated logits."""
    name = f"efficientnet_lite{number}"
    try:
        weights.resolve(f"{name}:imagenet")
    except FileNotFoundError as error:
        pytest.skip(str(error))
    io = np.load(GOLDEN / "io.npz")
    model = load(nnx.eval_shape(lambda: models.create(name)), f"{name}:imagenet")
    images = model.preprocessing.normalise(jnp.asarray(io["images_128"]), jnp.float32)
    features = nnx.jit(lambda model, x: model(x))(model, images)
    logits = np.asarray(head(f"{name}:imagenet", "_fc.weight", "_fc.bias")(features))
    for ours, smallest in zip(logits, io["logits_128"], strict=True):
        assert np.corrcoef(ours, smallest)[0, 1] > 0.4  # 0.56 to 0.61 were seen; unrelated networks have 0


def test_a_network_cut_off_after_some_blocks_has_their_published_weights(real):
    model = load(nnx.eval_shape(lambda: models.create("efficientnet_lite0", depth=5)), NAME)
    assert model.feature_width == 40 and len(model.blocks) == 5 and model.top is None
    np.testing.assert_array_equal(model.blocks[4].project.kernel, real.blocks[4].project.kernel)
    assert model(jnp.zeros((2, 32, 32, 3))).shape == (2, 40)


@pytest.mark.parametrize("depth", [0, 17])
def test_a_depth_that_there_is_not(depth):
    with pytest.raises(ValueError, match=f"depth is {depth}; this network has 1 to 16 blocks"):
        models.create("efficientnet_lite0", depth=depth)


def small(**overrides):
    stages = (Stage(2, 3, 2, 2, 16),)
    return models.create("efficientnet_lite0", image_size=16, stages=stages, feature_width=32, **overrides)


def images(count=8, size=16):
    return jnp.asarray(np.random.default_rng(0).normal(size=(count, size, size, 3)), jnp.float32)


@nnx.jit
def training(model):
    return model(images(), train=True)


@nnx.jit
def evaluation(model):
    return model(images())


def test_frozen_batch_norm_trains_its_scale_with_or_without_remat():
    def gradient(model):
        return nnx.to_pure_dict(nnx.jit(nnx.grad(lambda m: jnp.sum(m(images(), train=True))))(model))

    model = small()
    before = jax.tree.map(np.asarray, nnx.to_pure_dict(nnx.state(model, nnx.BatchStat)))
    plain, saving = gradient(model), gradient(small(remat=True))
    after = nnx.to_pure_dict(nnx.state(model, nnx.BatchStat))
    jax.tree.map(np.testing.assert_array_equal, before, after)
    assert float(jnp.abs(plain["top"]["norm"]["scale"]).sum()) > 0
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), plain, saving)


def test_updating_batch_norm_uses_the_batch_and_moves_the_statistics():
    model = small(batch_norm="update")
    evaluated, trained = evaluation(model), training(model)
    assert float(jnp.abs(trained - evaluated).max()) > 1e-2
    x = model.stem._convolve(images(), model.stem.kernel[...]).reshape(-1, 32)
    np.testing.assert_allclose(model.stem.norm.mean[...], 0.1 * jnp.mean(x, axis=0), atol=1e-6)
    unbiased = np.var(np.asarray(x), axis=0, ddof=1)
    np.testing.assert_allclose(model.stem.norm.variance[...], 0.9 + 0.1 * unbiased, atol=1e-5)


def test_stochastic_depth_draws_per_example_and_only_in_training():
    model = small(drop_path=0.9)
    key = jax.random.key(0)
    same = jnp.broadcast_to(images(1), (8, 16, 16, 3))
    plain = nnx.jit(lambda m: m(same, keys=jax.random.split(key, 8)))(model)
    np.testing.assert_allclose(plain, jnp.broadcast_to(plain[:1], plain.shape), atol=1e-6)
    dropped = np.asarray(nnx.jit(lambda m: m(same, train=True, keys=jax.random.split(key, 8)))(model))
    assert len(np.unique(dropped[:, 0].round(5))) == 2  # with and without the residual
