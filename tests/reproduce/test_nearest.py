"""The nearest neighbour of every image, beside a search by hand over the same keys."""

import numpy as np
import pytest

from rac_jax import data
from rac_jax.memory import build
from rac_jax.reproduce import nearest
from tests import tiny


@pytest.fixture(scope="module")
def config():
    c = tiny.config()
    c.memory.index, c.memory.metric = "flat", "l2"
    return c


@pytest.fixture(scope="module")
def dataset(config):
    return data.load(config)


@pytest.fixture(scope="module")
def folder(config, dataset, tmp_path_factory):
    """With the keys inside."""
    folder = tmp_path_factory.mktemp("keys")
    nearest.open_or_encode(config, dataset, folder)
    return folder


@pytest.fixture
def encoded_before(monkeypatch):
    def again(*_):
        raise AssertionError("the keys are there")

    monkeypatch.setattr(build, "encode_images", again)


def by_hand(queries, keys, metric):
    """Row numbers [M, N], nearest first."""
    queries, keys = queries.astype(np.float64), keys.astype(np.float64)
    if metric == "cosine":
        queries, keys = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (queries, keys))
    distances = np.square(queries).sum(axis=1)[:, None] + np.square(keys).sum(axis=1) - 2 * queries @ keys.T
    return np.argsort(distances, axis=1)


@pytest.mark.parametrize("metric", ["l2", "cosine"])
def test_an_exact_index_says_what_a_search_by_hand_says(config, dataset, folder, encoded_before, metric):
    config.memory.metric = metric
    found = nearest.measure(config, folder)
    keys = nearest.open_or_encode(config, dataset, folder)
    classes, labels = dataset.split("train").labels, dataset.split("test").labels
    named = classes[by_hand(keys.queries, keys.train, metric)]
    right = named[:, 0] == labels
    few = dataset.class_counts[labels] < 20
    assert found["accuracy"]["test"]["all"] == pytest.approx(right.mean())
    assert found["accuracy"]["test"]["few"] == pytest.approx(right[few].mean())
    assert found["accuracy"]["test"]["top5"] == pytest.approx((named[:, :5] == labels[:, None]).any(axis=1).mean())
    others = by_hand(keys.train, keys.train, metric)
    assert (others[:, 0] == np.arange(466)).all()  # no two are alike
    assert found["accuracy"]["train"]["all"] == pytest.approx((classes[others[:, 1]] == classes).mean())
    assert found["accuracy"]["train, itself in"]["all"] == 1
    assert found["rows"] == 466


def test_a_graph_finds_nearly_the_same(config, dataset, folder, encoded_before):
    config.memory.index = "flat"
    exact = nearest.measure(config, folder)["figures"]
    config.memory.index = "hnsw"
    graph = nearest.measure(config, folder)["figures"]
    for column in ("all", "train: all", "train: itself in"):
        assert graph[column] == pytest.approx(exact[column], abs=1)
    assert graph["built in, s"] - graph["indexed in, s"] == pytest.approx(exact["built in, s"] - exact["indexed in, s"])
    assert graph["ms with E"] > graph["ms a query"] > 0


def test_keys_of_another_encoder_are_not_taken(config, dataset, folder, encoded_before):
    config = config.copy_and_resolve_references()
    config.data.crop = 0.9
    with pytest.raises(AssertionError, match="the keys are there"):
        nearest.open_or_encode(config, dataset, folder)


def test_a_larger_index_is_timed_only(config, dataset, folder, encoded_before):
    found = nearest.measure(config, folder, up_to=1400)
    assert found["figures"]["rows"] == found["rows"] == 1400
    assert found["figures"]["ms a query"] > 0 and "all" not in found["figures"]


@pytest.mark.parametrize("index, rows", [("flat", 1000), ("hnsw", 468)])
def test_a_larger_index_is_as_large_as_half_of_the_free_memory(
    config, dataset, folder, encoded_before, monkeypatch, index, rows
):
    """Of a graph there are two copies of each key while it is built, and links."""
    config.memory.index = index
    width = nearest.open_or_encode(config, dataset, folder).train.shape[1]
    monkeypatch.setattr(nearest, "free_memory", lambda: 2 * 1000 * 4 * width)
    found = nearest.measure(config, folder, up_to=11_200_000)["rows"]
    assert found == max(466, min(rows, 1000 * 4 * width // nearest.bytes_a_row(config, width)))
    assert nearest.bytes_a_row(config, width) == (4 * width if index == "flat" else 8 * width + 4 * 72)


def test_rows_are_filled_up_in_parts_like_the_real_ones(config, monkeypatch):
    monkeypatch.setattr(nearest, "PART", 70)
    keys = np.random.default_rng(0).normal(3, 1, (50, 8)).astype(np.float32)
    config.memory.metric = "l2"
    stored = nearest.filled(config, keys, 250)
    assert stored.shape == (250, 8) and stored.dtype == np.float32
    np.testing.assert_array_equal(stored[:50], keys)
    assert len(np.unique(stored, axis=0)) == 250 and stored[50:].mean() == pytest.approx(3, abs=0.3)
    np.testing.assert_array_equal(nearest.filled(config, keys, 10), keys)


def test_free_memory_is_positive():
    assert 2**20 < nearest.free_memory() < 2**50
