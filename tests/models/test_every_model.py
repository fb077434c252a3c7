"""What holds for every model: it traces in both precisions, in training and not, and answers in float32."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rac_jax import config as configs
from rac_jax import models
from rac_jax.models.preprocessing import Preprocessing

TEXT = ("clip_text", "bert", "minilm", "glove", "random_words")
IMAGE = tuple(name for name in models.NAMES if name not in TEXT)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("name", IMAGE)
def test_images_to_features(name, dtype):
    def run(images, key):
        model = models.create(name, image_size=224, dtype=dtype, drop_path=0.1)
        assert model.preprocessing.image_size == 224
        return model(images, train=True, keys=jax.random.split(key)), jnp.zeros(model.feature_width)

    images = jax.ShapeDtypeStruct((2, 224, 224, 3), jnp.float32)
    features, width = nnx.eval_shape(run, images, jax.eval_shape(lambda: jax.random.key(0)))
    assert features.dtype == jnp.float32
    assert features.shape == (2, *width.shape)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("name", TEXT)
def test_tokens_to_features(name, dtype):
    def run(tokens):
        model = models.create(name, vocab_size=1000, context_length=60, dtype=dtype)
        return model(tokens), jnp.zeros(model.feature_width)

    features, width = nnx.eval_shape(run, jax.ShapeDtypeStruct((2, 60), jnp.int32))
    assert (features.shape, features.dtype) == ((2, *width.shape), jnp.float32)


def test_a_setting_that_a_model_does_not_have_is_an_error():
    with pytest.raises(TypeError, match="batch_norm"):
        models.create("vit_ti16", batch_norm="update")


@pytest.mark.parametrize(
    ("role", "options", "message"),
    [
        ("base", {"depth": -1}, r"config\.model\.base\.depth is -1; it must be positive"),
        ("base", {"heads": 5}, r"config\.model\.base\.heads is 5; it must divide the width, 768"),
        ("base", {"patch": 15}, r"config\.model\.base\.patch is 15; it must divide config\.data\.image_size, 224"),
        ("base", {"activation": "relu"}, r"config\.model\.base\.activation is 'relu'; it must be one of gelu, "),
        ("base", {"epsilon": float("nan")}, r"config\.model\.base\.epsilon is nan; it must be positive"),
        ("base", {"batch_norm": "update"}, r"config\.model\.base\.batch_norm is 'update'; vit_b16 has no such option"),
        ("base", {"name": "resnet50", "batch_norm": "x"}, r"config\.model\.base\.batch_norm is 'x'; it must be one of"),
        (
            "encoder",
            {"name": "clip_text"},
            r"config\.model\.encoder\.name is 'clip_text'; the image models are vit",
        ),
        ("base", {"name": "bert"}, r"config\.model\.base\.name is 'bert'; the image models are"),
        ("text", {"name": "vit_b16"}, r"config\.model\.text\.name is 'vit_b16'; the text models are clip_text, bert"),
        ("text", {"width": 100}, r"config\.model\.text\.heads is 8; it must divide the width, 100"),
    ],
)
def test_an_option_that_cannot_work_is_named(role, options, message):
    config = configs.default()
    config.model[role].update(options)
    with pytest.raises(configs.ConfigError, match=message):
        models.from_config(config, role, nnx.Rngs(0))


def test_normalising_is_in_units_of_pixel_values():
    expects = Preprocessing(mean=(127.0, 0.0, 255.0), std=(128.0, 1.0, 255.0))
    images = jnp.asarray(np.full((1, 2, 2, 3), 255), jnp.uint8)
    np.testing.assert_allclose(jax.jit(expects.normalise)(images)[0, 0, 0], [1.0, 255.0, 0.0])
    assert expects.normalise(images, jnp.bfloat16).dtype == jnp.bfloat16
