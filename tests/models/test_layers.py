"""Hand-written backward passes against automatic ones, attention against its definition, first values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rac_jax.compile import flops
from rac_jax.models import initialisers, layers


def array(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def plain_layer_norm(x, scale, bias, epsilon):
    mean, variance = jnp.mean(x, axis=1, keepdims=True), jnp.var(x, axis=1, keepdims=True)
    return (x - mean) / jnp.sqrt(variance + epsilon) * scale[None] + bias[None]


def test_layer_norm_and_its_gradient():
    inputs, g = (array(5, 8), array(8, seed=1), array(8, seed=2)), array(5, 8, seed=3)

    @jax.jit
    def both():
        y, pull = jax.vjp(lambda *a: layers.layer_norm(*a, 1e-6), *inputs)
        expected, expected_pull = jax.vjp(lambda *a: plain_layer_norm(*a, 1e-6), *inputs)
        return (y, *pull(g)), (expected, *expected_pull(g))

    for ours, theirs in zip(*both(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_layer_norm_of_bfloat16_has_float32_statistics():
    x = (array(4, 64) + 100).astype(jnp.bfloat16)
    y = layers.layer_norm(x, jnp.ones(64), jnp.zeros(64), 1e-6)
    assert y.dtype == jnp.bfloat16
    expected = plain_layer_norm(x.astype(jnp.float32), jnp.ones(64), jnp.zeros(64), 1e-6)
    np.testing.assert_allclose(y.astype(jnp.float32), expected, atol=0.02)


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("gelu", lambda x: jax.nn.gelu(x, approximate=False)),
        ("gelu_tanh", lambda x: jax.nn.gelu(x, approximate=True)),
        ("quick_gelu", lambda x: x * jax.nn.sigmoid(1.702 * x)),
    ],
)
def test_activations_and_their_slopes(name, reference):
    x = jnp.linspace(-6.0, 6.0, 101)
    ours = layers.activation(name)
    np.testing.assert_allclose(ours(x), reference(x), atol=1e-6)
    slope, expected = (jax.jit(jax.vmap(jax.grad(f)))(x) for f in (ours, reference))
    np.testing.assert_allclose(slope, expected, atol=1e-5)


def test_attention_by_its_definition():
    attention = layers.Attention(8, 2, rngs=nnx.Rngs(0))
    attention.qkv.kernel.set_value(array(8, 24))
    x, bias = array(3, 5, 8, seed=1), array(3, 1, 5, seed=2)
    q, k, v = np.split(np.asarray(attention.qkv(x)), 3, axis=-1)
    mixed = np.zeros((3, 5, 8), np.float32)
    for b in range(3):
        for h in range(2):
            part = slice(4 * h, 4 * h + 4)
            scores = q[b, :, part] @ k[b, :, part].T / 2 + np.asarray(bias[b])
            shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
            mixed[b, :, part] = shares @ v[b, :, part]
    np.testing.assert_allclose(attention(x, bias), attention.out(jnp.asarray(mixed)), atol=1e-5)


@pytest.mark.parametrize("bias", [None, array(1, 1, 5, seed=3), jnp.where(np.tri(5, dtype=bool), 0.0, -jnp.inf)[None]])
def test_attention_and_its_gradient_by_its_definition(bias):
    def plain(q, k, v):
        scores = jnp.einsum("nqd,ntd->nqt", q, k) / 2 + (jnp.zeros((1, 1, 1)) if bias is None else bias)
        return jnp.einsum("nqt,ntd->nqd", jax.nn.softmax(scores, axis=-1), v)

    inputs = [3 * array(3, 5, 4, seed=seed) for seed in range(3)]
    ours, pull = jax.vjp(lambda *a: layers.attend(*a, bias), *inputs)
    expected, expected_pull = jax.vjp(plain, *inputs)
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)
    for a, b in zip(pull(jnp.cos(ours)), expected_pull(jnp.cos(ours)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_attention_with_large_scores_and_in_bfloat16():
    q, k, v = (array(3, 5, 4, seed=seed) for seed in range(3))
    sharp, pull = jax.vjp(lambda q: layers.attend(1000 * q, 1000 * k, v, None), q)
    assert np.isfinite(sharp).all() and np.isfinite(pull(sharp)[0]).all()
    rough = layers.attend(*(x.astype(jnp.bfloat16) for x in (q, k, v)), None)
    assert rough.dtype == jnp.bfloat16
    np.testing.assert_allclose(rough.astype(jnp.float32), layers.attend(q, k, v, None), atol=0.03)


def test_stochastic_depth_keeps_the_mean():
    x = jnp.ones((4000, 2))
    dropped = np.asarray(layers.drop_path(x, 0.25, jax.random.split(jax.random.key(0), 4000)))
    assert set(np.unique(dropped.round(4))) == {0.0, np.float32(1.3333)}
    np.testing.assert_array_equal(dropped[:, 0], dropped[:, 1])
    assert dropped.mean() == pytest.approx(1.0, abs=0.03)
    assert layers.drop_path(x, 0.25, None) is x
    assert layers.drop_rates(0.1, 3) == (0.0, 0.05, 0.1)


def test_the_variance_of_first_values():
    key = jax.random.key(0)
    assert float(jnp.std(initialisers.xavier(key, (300, 500)))) == pytest.approx((2 / 800) ** 0.5, rel=0.02)
    assert float(jnp.std(initialisers.fan_out(key, (3, 3, 64, 128)))) == pytest.approx((2 / 1152) ** 0.5, rel=0.02)
    assert float(jnp.std(initialisers.fan_out(key, (5, 5, 1000)))) == pytest.approx((2 / 25) ** 0.5, rel=0.02)


def test_attention_in_bfloat16_has_no_float32_product_and_the_gradient_of_float32():
    q, k, v, g = jax.random.normal(jax.random.key(0), (4, 3, 7, 8))
    bias = jnp.zeros((1, 7, 7))

    def loss(q, k, v):
        return (layers.attend(q, k, v, bias).astype(jnp.float32) * g).sum()

    short = [x.astype(jnp.bfloat16) for x in (q, k, v)]
    expected = jax.grad(loss, argnums=(0, 1, 2))(*(x.astype(jnp.float32) for x in short))
    found = jax.grad(loss, argnums=(0, 1, 2))(*short)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == jnp.bfloat16
        np.testing.assert_allclose(one.astype(jnp.float32), other, atol=0.03 * float(jnp.abs(other).max()))
    program = jax.make_jaxpr(jax.grad(loss, argnums=(0, 1, 2)))(*short)
    products = str(program).split("dot_general")[1:]
    assert len(products) == 6 and set(flops.count(program)) == {"bfloat16"}
