"""Every model's number of parameters without a head, to the unit: the paper's appendix, timm, transformers."""

import jax
import numpy as np
import pytest
from flax import nnx

from rac_jax import models

COUNTS = {
    "vit_ti16": 5_524_416,
    "vit_s16": 21_665_664,
    "vit_b16": 85_798_656,
    "vit_b32": 87_455_232,
    "vit_l16": 303_301_632,
    "dinov2_s14": 21_628_800,
    "dinov2_b14": 85_724_928,
    "clip_image_b16": 86_192_640,
    "clip_image_b32": 87_849_216,
    "resnet50": 23_508_032,
    "resnet152d": 58_163_040,
    "efficientnet_lite0": 3_371_008,
    "efficientnet_lite1": 4_135_680,
    "efficientnet_lite2": 4_811_072,
    "clip_text": 63_428_096,
    "bert": 108_891_648,
    "minilm": 22_565_376,
    "glove": 0,
    "random_words": 0,
}


def count(name, **arguments):
    model = nnx.eval_shape(lambda: models.create(name, **arguments))
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))


@pytest.mark.parametrize("name", models.NAMES)
def test_count(name):
    assert name in COUNTS, f"add {name} to the table"
    assert count(name) == COUNTS[name]


def test_a_larger_image_adds_positions():
    assert count("vit_b16", image_size=384) == 86_090_496


def test_an_unknown_name_lists_the_known():
    with pytest.raises(ValueError, match="no model is called 'vgg'; there are vit_ti16"):
        models.create("vgg")


def test_parameters_are_float32_whatever_is_computed_in():
    model = nnx.eval_shape(lambda: models.create("vit_ti16", dtype=jax.numpy.bfloat16))
    assert {leaf.dtype for leaf in jax.tree.leaves(nnx.state(model))} == {np.dtype("float32")}
