"""Made keys have the mean and the covariance of those that they are like."""

import numpy as np

from rac_jax.memory import made


def test_keys_like_others_lie_among_them():
    random = np.random.default_rng(0)
    keys = (5 + random.normal(size=(3000, 4)) @ random.normal(size=(4, 4))).astype(np.float32)
    found = made.like(keys, 40_000)
    assert found.shape == (40_000, 4) and found.dtype == np.float32
    np.testing.assert_allclose(found.mean(axis=0), keys.mean(axis=0), atol=0.05)
    np.testing.assert_allclose(np.cov(found.T), np.cov(keys.T), atol=0.12)
    assert (made.like(keys, 10) == made.like(keys, 10)).all()


def test_few_keys_span_what_is_made_of_them():
    keys = np.eye(3, 8, dtype=np.float32)
    found = made.like(keys, 50)
    assert np.abs(found[:, 3:]).max() < 1e-6
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-5)  # the plane of the three
