"""What the benchmark compares does the same work: with the same draws, the same pictures."""

import numpy as np

from rac_jax import config, data
from rac_jax.bench import data as bench
from rac_jax.data.decode import decode


def test_ours_and_plain_pillow_make_the_same_pictures():
    """Resizing differs by a level here and there; posterising and equalising may widen that."""
    ours = data.train_transform(config.default())
    plain = bench.with_pillow(ours)
    encoded = bench.photographs(256, 256)
    differences = []
    for seed in range(60):
        picture = ours(decode(encoded[seed % 2], ""), np.random.default_rng(seed))
        expected = bench.plain_pillow(plain, encoded[seed % 2], np.random.default_rng(seed))
        differences.append(np.abs(picture.astype(int) - expected).mean())
    assert np.median(differences) < 0.25
    assert max(differences) < 1.5


def test_photographs_have_their_size():
    assert [decode(encoded, "").shape for encoded in bench.photographs(500, 375)] == [(375, 500, 3)] * 2


def test_the_race_times_every_contender():
    rates = bench.race({"a": lambda *_: sum(range(2000)), "b": lambda *_: sum(range(40_000))}, [b""], "test")
    assert rates["a"] > 5 * rates["b"] > 0
