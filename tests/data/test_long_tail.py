"""The standard counts, and draws that are seeded and leave no class without training images."""

import numpy as np
import pytest

from rac_jax.data import long_tail


@pytest.mark.parametrize(
    ("classes", "most", "imbalance", "total"),
    [(100, 500, 100, 10_847), (100, 500, 50, 12_608), (100, 500, 10, 19_573), (10, 5000, 100, 12_406)],
)
def test_published_totals_of_cifar(classes: int, most: int, imbalance: float, total: int):
    counts = long_tail.exponential_counts(classes, most, imbalance)
    assert counts.sum() == total
    assert counts[0] == most
    assert counts[-1] == most // imbalance


def test_long_tailed_is_seeded_and_in_order():
    labels = np.tile(np.arange(10), 50)
    chosen = long_tail.long_tailed(labels, 10, 10, seed=1)
    assert np.bincount(labels[chosen]).tolist() == long_tail.exponential_counts(10, 50, 10).tolist()
    assert (np.diff(chosen) > 0).all()
    np.testing.assert_array_equal(chosen, long_tail.long_tailed(labels, 10, 10, seed=1))
    assert (chosen != long_tail.long_tailed(labels, 10, 10, seed=2)).any()


def test_held_out_shares_of_every_class():
    labels = np.repeat([0, 1, 2], [100, 10, 1])
    parts = long_tail.held_out(labels, {"val": 0.1, "test": 0.2}, seed=0)
    counts = {name: np.bincount(labels[chosen], minlength=3).tolist() for name, chosen in parts.items()}
    assert counts == {"train": [70, 7, 1], "val": [10, 1, 0], "test": [20, 2, 0]}
    everything = np.concatenate(list(parts.values()))
    assert sorted(everything) == list(range(111))


def test_counts_of_a_total_at_any_imbalance():
    available = np.array([20, 500, 100, 50, 200])
    even = long_tail.counts_of(available, 100, 1.0)
    assert even.tolist() == [20] * 5
    tailed = long_tail.counts_of(available, 100, 16.0)
    assert tailed.tolist() == [3, 52, 13, 6, 26]  # the class with most images comes first
    with pytest.raises(
        ValueError, match=r"config\.data\.images is 101: there are too few at config\.data\.imbalance=1"
    ):
        long_tail.counts_of(available, 101, 1.0)
