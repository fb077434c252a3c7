"""Blocks that compute only some rows, or compute twice to keep less: the same outputs and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from rac_jax import models
from rac_jax.models import transformer


def test_picked_rows_and_their_gradients_equal_those_of_all_rows():
    block = transformer.Block(
        16, 2, 32, activation="gelu", epsilon=1e-6, layer_scale=0.5, drop=0.3, dtype=jnp.float32, rngs=nnx.Rngs(0)
    )
    graph, params = nnx.split(block)
    params = jax.tree.map(lambda p: p * 3, nnx.to_pure_dict(params))  # far from linear
    rng = np.random.default_rng(0)
    x, bias = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((4, 5, 16), (4, 5, 5)))
    rows = jnp.asarray([3, 0, 4, 1])

    def cut(values):
        return jnp.take_along_axis(values, rows[:, None, None], axis=1)

    def picked(params, x):
        return nnx.merge(graph, params)(x, bias=cut(bias), keys=jax.random.split(jax.random.key(1), 4), pick=cut)

    def all_rows(params, x):
        return cut(nnx.merge(graph, params)(x, bias=bias, keys=jax.random.split(jax.random.key(1), 4)))

    @jax.jit
    def both(params, x):
        results = []
        for f in (picked, all_rows):
            y, pull = jax.vjp(f, params, x)
            results.append((y, pull(jnp.cos(y))))
        return results

    ours, expected = both(params, x)
    assert ours[0].shape == (4, 1, 16)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), ours, expected)


def test_remat_halves_the_memory_of_the_gradient_and_changes_no_number():
    """XLA's own count, on one device."""
    images = jnp.asarray(np.random.default_rng(0).normal(size=(32, 32, 32, 3)), jnp.float32)
    temporary, gradients = [], []
    for remat in (False, True):
        model = models.create(
            "vit_ti16", patch=8, width=32, depth=4, heads=2, drop_path=0.5, image_size=32, remat=remat
        )
        graph, params = nnx.split(model)

        def loss(params, graph=graph):
            return jnp.sum(
                nnx.merge(graph, params)(images, train=True, keys=jax.random.split(jax.random.key(0), len(images))) ** 2
            )

        params = nnx.to_pure_dict(params)
        compiled = jax.jit(jax.grad(loss)).lower(params).compile()
        temporary.append(compiled.memory_analysis().temp_size_in_bytes)
        gradients.append(compiled(params))
    assert temporary[1] < 0.5 * temporary[0]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), *gradients)


def test_adapters_start_at_nothing_and_then_change_the_output():
    options = {"width": 16, "depth": 2, "heads": 2, "patch": 8, "image_size": 16}
    plain = models.create("vit_ti16", rngs=nnx.Rngs(0), **options)
    adapted = models.create("vit_ti16", rngs=nnx.Rngs(0), adapter=3, **options)
    shared = {path: value for path, value in nnx.to_flat_state(nnx.state(plain))}
    nnx.update(adapted, nnx.from_flat_state(list(shared.items())))
    images = jax.random.normal(jax.random.key(0), (2, 16, 16, 3))
    np.testing.assert_array_equal(adapted(images), plain(images))
    adapted.blocks[0].adapter.up.bias[...] = jnp.zeros(16).at[0].set(1.0)
    assert np.abs(adapted(images) - plain(images)).max() > 0.01
