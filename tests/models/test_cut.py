"""B is cut at its first trained block: the two halves are the whole, and a pattern that freezes no block is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rac_jax import models
from rac_jax.config import ConfigError
from rac_jax.models import cut
from tests import tiny

MODELS = {"efficientnet_lite0": {"depth": 5}, "vit_ti16": {**tiny.TINY_VIT, "depth": 5}}


def made(name, **options):
    return models.create(name, image_size=32, **MODELS.get(name, {}), **options)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("blocks", [0, 2, 5])
def test_the_blocks_below_and_above_are_the_whole_model(name, blocks):
    model, images = made(name), jax.random.normal(jax.random.key(0), (3, 32, 32, 3))
    features = model.above(model.below(images, blocks), blocks)
    np.testing.assert_allclose(features, model(images), atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_stochastic_depth_above_the_cut_is_that_of_the_whole_model(name):
    """The rate of the two blocks below is set to 0, as below the cut there is none."""
    model, images = made(name, drop_path=0.5), jax.random.normal(jax.random.key(0), (3, 32, 32, 3))
    keys = jax.random.split(jax.random.key(1), 3)
    for block in list(model.blocks)[:2]:
        block.drop = 0.0
    above = model.above(model.below(images, 2), 2, train=True, keys=keys)
    np.testing.assert_allclose(above, model(images, train=True, keys=keys), atol=1e-6)
    assert np.abs(above - model(images)).max() > 1e-3


@pytest.mark.parametrize(
    "name, pattern, blocks",
    [
        ("efficientnet_lite0", r"base\.(stem|blocks\.[0-2]\.)", 3),
        ("efficientnet_lite0", r"base\.", 5),
        ("efficientnet_lite0", r"base\.(stem|blocks\.[0134]\.)", 2),
        ("vit_ti16", r"base\.(patch_embedding|class_token|position_embedding|blocks\.0\.)", 1),
        ("vit_ti16", r"base\.(?!blocks\.[34])", 3),
    ],
)
def test_the_cut_is_before_the_first_trained_block(name, pattern, blocks):
    config = tiny.config()
    config.train.views, config.optim.frozen = 2, pattern
    assert cut.of(config, nnx.eval_shape(lambda: made(name))) == blocks


@pytest.mark.parametrize("pattern", ["", r"base\.blocks", r"base\.(stem|blocks\.[1-4]\.)"])
def test_a_pattern_that_freezes_no_first_block_is_refused(pattern):
    config = tiny.config()
    config.train.views, config.optim.frozen = 2, pattern
    with pytest.raises(ConfigError, match=r"config\.train\.views is 2, but config\.optim\.frozen=.*does not freeze"):
        cut.of(config, nnx.eval_shape(lambda: made("efficientnet_lite0")))


def test_a_model_without_a_cut_is_refused():
    config = tiny.config()
    config.train.views = 1
    with pytest.raises(ConfigError, match=r"config\.train\.views is 1; .* cannot be cut: it must be 0"):
        cut.of(config, nnx.eval_shape(lambda: models.create("resnet50", image_size=32)))


def test_images_at_every_step_need_no_cut():
    assert cut.of(tiny.config(), object()) == 0


def test_half_precision_is_enough_for_what_is_kept():
    model, images = made("vit_ti16"), jax.random.normal(jax.random.key(0), (3, 32, 32, 3))
    kept = model.below(images, 2).astype(jnp.float16).astype(jnp.float32)
    np.testing.assert_allclose(model.above(kept, 2), model(images), atol=5e-3)
