"""A block that is asked for some rows computes what it would compute for all, gradients included."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

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
        return nnx.merge(graph, params)(x, bias=cut(bias), key=jax.random.key(1), pick=cut)

    def all_rows(params, x):
        return cut(nnx.merge(graph, params)(x, bias=bias, key=jax.random.key(1)))

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
