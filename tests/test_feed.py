"""Every way to look up feeds the step with the same neighbours."""

import itertools

import jax
import numpy as np
import pytest

from rac_jax import data, feed, system
from rac_jax.data import pipeline
from rac_jax.memory.lookup import LookupFailed
from tests import tiny


@pytest.fixture(scope="module", params=[1, 8])
def parts(request, tmp_path_factory):
    return system.create(tiny.config(devices=request.param), tmp_path_factory.mktemp("feed"))


def train_batches(parts, number, start=0):
    split, transform = parts.dataset.split("train"), data.train_transform(parts.config)
    batches = pipeline.train_batches(split, transform, batch_size=16, seed=0, workers=0, start=start)
    return list(itertools.islice(batches, number))


def fed(parts, lookup, batches, training=True):
    parts.config.memory.lookup = lookup
    return [jax.device_get(pair) for pair in feed.feed(parts, batches, training=training)]


@pytest.mark.parametrize("training", [True, False])
def test_pipelined_finds_exactly_what_the_callback_finds(parts, training):
    batches = train_batches(parts, 6)
    expected = fed(parts, "callback", batches, training)
    found = fed(parts, "pipelined", batches, training)
    assert len(found) == len(expected) == 6
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert len({pair[1]["rows"].tobytes() for pair in found}) == 6  # each batch has neighbours of its own


def test_a_failure_in_the_thread_is_raised_by_check(parts, monkeypatch):
    monkeypatch.setattr(parts.retrieval.lookup, "search", lambda *_: 1 / 0)
    (_, found), *_ = fed(parts, "pipelined", train_batches(parts, 2))
    assert (found["rows"] == -1).all()
    with pytest.raises(LookupFailed, match="division by zero"):
        parts.check()


def test_a_feed_that_is_left_early_ends_its_thread(parts):
    parts.config.memory.lookup = "pipelined"
    batches = feed.feed(parts, iter(train_batches(parts, 5)), training=True)
    next(batches)
    batches.close()
    assert list(batches) == []
