"""E as a function: of images, of several crops of each, and with the output of its first blocks."""

import jax
import numpy as np
import pytest

from rac_jax import models
from rac_jax.retrieval import encoder
from rac_jax.weights import parameters
from tests import tiny


@pytest.fixture(scope="module")
def made():
    """A small ViT, its parameters, and five crops of three images."""
    module = models.create("vit_ti16", image_size=32, **tiny.TINY_VIT)
    crops = np.random.default_rng(0).integers(0, 255, (3, 5, 32, 32, 3), dtype=np.uint8)
    return module, parameters.split(module)[1], crops


def test_the_key_of_crops_is_their_mean_direction(made):
    module, params, crops = made
    encode = jax.jit(encoder.as_function(module))
    each = np.stack([encode(params, crops[:, number]) for number in range(5)], axis=1)
    lengths = np.linalg.norm(each, axis=2)
    expected = (each / lengths[..., None]).mean(axis=1) * lengths.mean(axis=1)[:, None]
    np.testing.assert_allclose(encode(params, crops), expected, atol=1e-5)


@pytest.mark.parametrize("views", [1, 5])
def test_seeing_gives_the_same_key_and_what_the_blocks_below_the_cut_give(made, views):
    module, params, crops = made
    images = crops[:, 0] if views == 1 else crops
    seen = jax.jit(encoder.seeing(module, 1))(params, images)
    np.testing.assert_allclose(seen["key"], jax.jit(encoder.as_function(module))(params, images), atol=1e-5)
    assert seen["activation"].shape == (3, views, 17, 32)
    last = module.below(module.preprocessing.normalise(crops[:, views - 1]), 1)
    np.testing.assert_allclose(seen["activation"][:, -1], last, atol=1e-5)
