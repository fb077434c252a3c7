"""Which neighbours are of the true class: tests of evaluate.share_of_true_class."""

import jax.numpy as jnp
import pytest

from rac_jax import evaluate


def test_padding_and_missing_neighbours_do_not_count():
    row_class = jnp.array([0, 1, 1, -1], jnp.int32)
    rows = jnp.array([[0, 1], [1, -1], [1, 2]], jnp.int32)
    labels = jnp.array([0, 1, 1], jnp.int32)
    share = evaluate.share_of_true_class(row_class, rows, labels, jnp.array([True, True, False]))
    assert float(share) == pytest.approx(2 / 3)
