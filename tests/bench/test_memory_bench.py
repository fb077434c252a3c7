"""What the memory's benchmark measures with."""

import time

import numpy as np
import pytest

from rac_jax.bench import memory as bench


def test_contenders_take_turns_and_their_ratio_is_that_of_their_times():
    order = []

    def spend(name, seconds):
        order.append(name)
        time.sleep(seconds)

    times = bench.race({"a": lambda: spend("a", 0.004), "b": lambda: spend("b", 0.012)}, 5, "test")
    assert order == ["a", "b"] * 6 and len(times["a"]) == 5  # the first turn is not counted
    assert bench.ratio(times, "b", "a") == pytest.approx(3, rel=0.4)


def test_made_keys_have_near_neighbours():
    """Unlike noise: the nearest of 3,000 keys is of the query's cluster, and far nearer than the others."""
    keys, queries = bench.made_keys(3000, 128), bench.made_keys(50, 128, seed=1)
    np.testing.assert_allclose(np.linalg.norm(keys, axis=1), 1, rtol=1e-5)
    cosines = np.sort(queries @ keys.T, axis=1)
    assert cosines[:, -1].mean() > 0.7 and abs(cosines.mean()) < 0.05
    np.testing.assert_array_equal(keys, bench.made_keys(3000, 128))


def test_agreement_counts_the_true_neighbours_that_were_found():
    assert bench.agreement(np.array([[1, 2, 3], [4, 5, 6]]), np.array([[3, 2, 9], [6, 5, 4]])) == pytest.approx(5 / 6)
