"""The hand-written depthwise convolution and its gradient against XLA's own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rac_jax import models
from rac_jax.models import convolution


def reference(x, kernel, stride, pads):
    kernel = kernel[:, :, None, :]
    order = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), pads, dimension_numbers=order, feature_group_count=x.shape[-1]
    )


@pytest.mark.parametrize("padding", ["same", "symmetric"])
@pytest.mark.parametrize(
    ("height", "width", "size", "stride"), [(6, 6, 3, 1), (7, 10, 5, 2), (8, 8, 3, 2), (2, 2, 5, 1)]
)
def test_depthwise_equals_a_grouped_convolution(height, width, size, stride, padding):
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(2, height, width, 4)), jnp.float32)
    kernel = jnp.asarray(rng.normal(size=(size, size, 4)), jnp.float32)
    pads = tuple(convolution._pads(padding, n, size, stride) for n in (height, width))

    @jax.jit
    def outputs_and_gradients(x, kernel):
        y, pull = jax.vjp(lambda a, b: convolution.depthwise(a, b, stride, pads), x, kernel)
        expected, reference_pull = jax.vjp(lambda a, b: reference(a, b, stride, pads), x, kernel)
        g = jnp.cos(jnp.arange(y.size, dtype=jnp.float32)).reshape(y.shape)
        return (y, *pull(g)), (expected, *reference_pull(g))

    for ours, theirs in zip(*outputs_and_gradients(x, kernel), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_relu6_and_its_slope():
    x = jnp.asarray([-1.0, 0.0, 2.0, 6.0, 7.0])
    np.testing.assert_array_equal(convolution.relu6(x), [0, 0, 2, 6, 6])
    np.testing.assert_array_equal(jax.grad(lambda v: convolution.relu6(v).sum())(x), [0, 0, 1, 0, 0])


def test_an_unknown_batch_norm_mode_is_named():
    with pytest.raises(ValueError, match="batch_norm='thawed' is neither"):
        convolution.BatchNorm(4, epsilon=1e-3, mode="thawed")


@pytest.mark.parametrize("name", ["efficientnet_lite0", "resnet50"])
def test_norms_that_are_folded_for_good_change_nothing(name):
    model = models.create(name)
    draw = np.random.default_rng(0)
    for _, module in nnx.iter_graph(model):
        if isinstance(module, convolution.BatchNorm):
            for variable in (module.scale, module.bias, module.mean, module.variance):
                variable[...] = jnp.asarray(draw.uniform(0.5, 1.5, variable.shape), jnp.float32)
    images = jnp.asarray(draw.normal(size=(2, 32, 32, 3)), jnp.float32)
    before = model(images)
    folded = convolution.fold_norms(model)
    np.testing.assert_allclose(folded(images), before, rtol=1e-5)
    assert not nnx.to_pure_dict(nnx.state(folded, nnx.BatchStat))
