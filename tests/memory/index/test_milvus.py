"""A memory in Milvus, against the embedded milvus-lite; skipped where requirements-milvus.txt is not installed."""

import dataclasses
import warnings

import numpy as np
import pytest

with warnings.catch_warnings(action="ignore"):  # its imports warn of their own affairs
    pytest.importorskip("pymilvus", reason="pip install -r requirements-milvus.txt")
    pytest.importorskip("milvus_lite", reason="pip install -r requirements-milvus.txt")
    import pymilvus

from rac_jax.memory import edit, index, manifest, store
from rac_jax.memory.index import milvus
from rac_jax.retrieval.lookup import Lookup
from tests.memory.conftest import RECIPE, add, make

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def recipe(tmp_path):
    uri = str(tmp_path / "server.db")
    return {**RECIPE, "index": {"kind": "milvus", "metric": "cosine", "m": 32, "ef_construction": 40, "uri": uri}}


@pytest.mark.parametrize("metric", ["cosine", "l2"])
def test_it_finds_what_numpy_finds(keys, recipe, metric):
    keys = index.unit(keys) if metric == "cosine" else keys
    built = index.add(index.build(keys[:25], recipe["index"] | {"metric": metric}), keys)
    squares = ((keys[:, None] - keys[None]) ** 2).sum(axis=-1)
    expected = keys @ keys.T if metric == "cosine" else -squares
    rows, similarities = index.search(built, keys, 6, 64)
    np.testing.assert_array_equal(rows, np.argsort(-expected, axis=1)[:, :6])
    np.testing.assert_allclose(similarities, -np.sort(-expected, axis=1)[:, :6], rtol=1e-4, atol=1e-5)


def test_a_memory_with_sources_that_come_and_go(tmp_path, keys, recipe, snippets, exact):
    make(tmp_path / "m", keys, recipe)
    add(tmp_path / "m", "more", keys + 0.01)
    memory = store.read(tmp_path / "m")
    assert len(memory.index) == 80
    assert (index.search(memory.index, keys, 5, 64)[0] >= 40).any()
    with edit.editing(tmp_path / "m") as editor:
        editor.set_state("more", manifest.DISABLED)
    memory = store.read(tmp_path / "m")
    found = Lookup(memory, snippets, 5, 64, "id").search(keys, np.arange(40, dtype=np.int32))
    np.testing.assert_array_equal(found.rows, exact(keys, 6)[:, 1:])


def test_rows_of_a_change_that_was_never_finished_are_not_found(tmp_path, keys, recipe):
    keys = index.unit(keys)
    built = index.build(keys[:30], recipe["index"])
    built.write(tmp_path / "index")
    index.add(built, keys)  # and the memory's manifest still says 30
    opened = index.read(tmp_path / "index", keys[:30], recipe["index"])
    assert len(opened) == 30
    rows, _ = index.search(opened, keys, 6, 64)
    assert rows.min() >= 0 and rows.max() < 30
    index.add(opened, keys)  # the change, made again
    assert index.search(opened, keys, 1, 64)[0][:, 0].tolist() == list(range(40))


def test_fewer_rows_than_the_memory_has_is_an_error(tmp_path, keys, recipe):
    index.build(keys[:30], recipe["index"]).write(tmp_path / "index")
    with pytest.raises(milvus.MilvusFailed, match="holds 30 of the 40 rows"):
        index.read(tmp_path / "index", keys, recipe["index"])


def test_ranges_of_rows():
    allowed = np.array([1, 1, 0, 0, 1], bool)
    assert milvus.within(allowed, 2) == "(row >= 0 and row < 2) or (row >= 4 and row < 5)"
    assert milvus.within(allowed, 1) is None
    assert milvus.within(np.zeros(3, bool), 2) == "row < 0"


@pytest.mark.parametrize("metric", ["cosine", "l2"])
def test_the_same_neighbours_as_faiss_whatever_rows_are_kept_by_short_expressions(keys, recipe, metric, monkeypatch):
    monkeypatch.setattr(milvus, "MOST_RANGES", 2)
    monkeypatch.setattr(milvus, "ANSWERED", 50)  # several calls
    random = np.random.default_rng(0)
    keys = np.concatenate([keys, random.normal(size=(300, 8)).astype(np.float32)])
    keys = index.unit(keys) if metric == "cosine" else keys
    built = index.add(index.build(keys[:100], recipe["index"] | {"metric": metric}), keys)
    flat = index.build(keys, {"kind": "flat", "metric": metric})
    expressions = []
    ask = built._ask
    monkeypatch.setattr(built, "_ask", lambda method, **a: expressions.append(a["filter"]) or ask(method, **a))
    sources = (np.arange(340) < 100) | (np.arange(340) > 200)
    for allowed in (None, sources, random.random(340) < 0.5, random.random(340) < 0.02, np.arange(340) % 100 == 3):
        for k in (1, 9):
            (rows, near), (expected, nearest) = (
                index.search(i, keys[:23] + 0.01, k, 64, allowed) for i in (built, flat)
            )
            np.testing.assert_array_equal(rows, expected)
            there = expected >= 0
            np.testing.assert_allclose(near[there], nearest[there], rtol=1e-4, atol=1e-5)
    assert max(map(len, expressions)) < 100


def test_a_request_that_is_wrong_is_not_made_again(monkeypatch, keys, recipe):
    built = index.build(index.unit(keys), recipe["index"])

    class Refusing:
        asked = 0

        def search(self, **arguments):
            self.asked += 1
            raise pymilvus.MilvusException(code=1100, message="invalid parameter")

    refusing = dataclasses.replace(built, client=Refusing())
    with pytest.raises(milvus.MilvusFailed, match=r"refuses a request .*invalid parameter"):
        index.search(refusing, keys, 1, 64)
    assert refusing.client.asked == 1


def test_a_server_that_is_gone_is_named(monkeypatch, keys, recipe):
    monkeypatch.setattr(milvus, "WAITS", (0.01,))
    with pytest.raises(milvus.MilvusFailed, match=r"http://127\.0\.0\.1:9 does not answer"):
        index.build(keys, recipe["index"] | {"uri": "http://127.0.0.1:9"})


def test_a_server_that_stumbles_is_asked_again(monkeypatch, keys, recipe):
    monkeypatch.setattr(milvus, "WAITS", (0.01, 0.01))
    built = index.build(index.unit(keys), recipe["index"])

    class Stumbling:
        failures = 2

        def search(self, **arguments):
            self.failures -= 1
            if self.failures >= 0:
                raise pymilvus.MilvusException(code=1, message="busy")
            return built.client.search(**arguments)

    stumbling = dataclasses.replace(built, client=Stumbling())
    rows, _ = index.search(stumbling, keys, 1, 64)
    np.testing.assert_array_equal(rows[:, 0], np.arange(40))
    stumbling.client.failures = 3
    with pytest.raises(milvus.MilvusFailed, match="busy"):
        index.search(stumbling, keys, 1, 64)
