"""What the memory's benchmark measures with."""

import dataclasses

import numpy as np
import pytest

from rac_jax.bench import memory as bench
from rac_jax.memory import made, manifest


def test_made_keys_have_near_neighbours():
    """Unlike noise: the nearest of 3,000 keys is far nearer than the others."""
    keys, queries = made.keys(3000, 128), made.keys(50, 128, seed=1)
    np.testing.assert_allclose(np.linalg.norm(keys, axis=1), 1, rtol=1e-5)
    cosines = np.sort(queries @ keys.T, axis=1)
    assert cosines[:, -1].mean() > 0.75 and cosines.mean() < 0.3
    np.testing.assert_array_equal(keys, made.keys(3000, 128))


def test_agreement_counts_the_true_neighbours_that_were_found():
    assert bench.agreement(np.array([[1, 2, 3], [4, 5, 6]]), np.array([[3, 2, 9], [6, 5, 4]])) == pytest.approx(5 / 6)


def test_a_memory_of_two_sources_is_opened(tmp_path, capsys):
    bench.print_opening(dataclasses.replace(bench.QUICK, opened=1000, rounds=1), tmp_path / "memory")
    assert "1,000 made keys × 16" in capsys.readouterr().out
    assert [source.rows for source in manifest.read(tmp_path / "memory").sources] == [900, 100]
