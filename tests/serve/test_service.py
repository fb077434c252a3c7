"""Batches are as large as pays."""

import pytest

from rac_jax.serve.service import worthwhile


@pytest.mark.parametrize(
    ("seconds", "sizes"),
    [
        ({1: 8.0, 2: 14.0, 4: 42.0, 8: 119.0}, [1, 2]),  # a CPU
        ({1: 8.0, 2: 8.1, 4: 9.0, 8: 12.0}, [1, 2, 4, 8]),  # an accelerator
        ({8: 3.0}, [8]),
        ({1: 1.0, 2: 2.02, 4: 4.1}, [1, 2, 4]),  # all about the same
    ],
)
def test_sizes_end_where_images_a_second_are_most(seconds, sizes):
    assert worthwhile(seconds) == sizes
