"""Which neighbours are of the true class: tests of evaluate.share_of_true_class."""

import jax.numpy as jnp

from rac_jax import evaluate


def test_missing_neighbours_do_not_count():
    row_class = jnp.array([0, 1, 1, -1], jnp.int32)
    rows = jnp.array([[0, 1], [1, -1], [1, 2], [-1, -1]], jnp.int32)
    labels = jnp.array([0, 1, 0, 1], jnp.int32)
    assert evaluate.share_of_true_class(row_class, rows, labels).tolist() == [0.5, 1.0, 0.0, 0.0]
