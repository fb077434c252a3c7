"""An index with a tail finds what exact search over all keys finds."""

import numpy as np
import pytest

from rac_jax.memory import index
from rac_jax.memory.index.tail import WithTail, longest


@pytest.mark.parametrize("metric", ["cosine", "l2"])
@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_the_tail_is_searched_too(kind, metric):
    random = np.random.default_rng(0)
    keys = random.normal(size=(60, 8)).astype(np.float32)
    keys = index.unit(keys) if metric == "cosine" else keys
    spec = {"kind": kind, "metric": metric, "m": 8, "ef_construction": 40}
    found = WithTail(index.build(keys[:45], spec), keys[45:])
    exact = index.build(keys, {"kind": "flat", "metric": metric})
    queries = random.normal(size=(20, 8)).astype(np.float32)
    assert (len(found), found.width, found.spec) == (60, 8, spec)
    some = random.random(60) < 0.5
    few = np.zeros(60, bool)
    few[[3, 50]] = True
    for allowed in (None, some, few, some):
        rows, near = index.search(found, queries, 7, 64, allowed)
        expected, similar = index.search(exact, queries, 7, 64, allowed)
        np.testing.assert_array_equal(rows, expected)
        there = rows >= 0
        np.testing.assert_allclose(near[there], similar[there], rtol=1e-4, atol=1e-5)


def test_a_long_index_may_have_a_long_tail():
    assert longest(100) == 1024 and longest(6_400_000) == 100_000
