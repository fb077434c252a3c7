"""Every kind of index finds what comparing with all keys finds, for both metrics and whatever rows are allowed."""

import numpy as np
import pytest

from rac_jax.memory import index
from rac_jax.memory.index import faiss_index

KINDS = ["flat", "hnsw", "hnsw_sq", "ivf_sq", "ivf_rabitq", "auto"]
ROWS, WIDTH = 900, 16


@pytest.fixture(scope="module")
def vectors():
    """Keys around 30 centres, of different lengths."""
    random = np.random.default_rng(0)
    centres = random.normal(size=(30, WIDTH))
    return (centres[np.arange(ROWS) % 30] + 0.3 * random.normal(size=(ROWS, WIDTH))).astype(np.float32)


def spec_of(config, kind, metric):
    config.memory.index, config.memory.metric = kind, metric
    return index.spec(config)


def stored(vectors, config):
    """Keys as a memory keeps them."""
    keys = index.unit(vectors) if config.memory.metric == "cosine" else vectors
    return keys.astype(index.precision(config))


def similarities_of(queries, keys, metric):
    keys = keys.astype(np.float32)
    if metric == "cosine":
        return index.unit(queries) @ keys.T
    return -((queries[:, None] - keys[None]) ** 2).sum(axis=-1)


@pytest.fixture(params=[(kind, metric) for kind in KINDS for metric in ("cosine", "l2")], ids=":".join)
def case(request, config, vectors, tmp_path):
    """(an index that was built, grew, was written and read again; its keys; its metric)."""
    kind, metric = request.param
    spec = spec_of(config, kind, metric)
    keys = stored(vectors, config)
    built = index.add(index.build(keys[:600], spec), keys)
    built.write(tmp_path / "index")
    np.save(tmp_path / "keys.npy", keys)
    mapped = np.load(tmp_path / "keys.npy", mmap_mode="r")
    return index.read(tmp_path / "index", mapped, spec), keys, metric


def recall(rows, similarities, k):
    best = np.argsort(-similarities, axis=1)[:, :k]
    return np.mean([len(set(a) & set(b)) / k for a, b in zip(rows, best, strict=True)])


def test_neighbours_are_those_of_numpy(case, vectors):
    opened, keys, metric = case
    queries = vectors[::7] * 3 + 0.05  # length does not matter for cosine
    rows, similarities = index.search(opened, queries, 10, 128)
    every = similarities_of(queries, keys, metric)
    wanted = 0.9 if isinstance(opened.finder, faiss_index.faiss.IndexIVF) else 0.995
    assert recall(rows, every, 10) >= wanted
    np.testing.assert_allclose(similarities, np.take_along_axis(every, rows, axis=1), rtol=1e-3, atol=1e-4)
    assert (np.diff(similarities, axis=1) <= 0).all()


@pytest.mark.parametrize("share", [0.7, 0.2, 0.02, 0.005, 0])
def test_only_allowed_rows_come_back_and_as_many_as_there_are(case, vectors, share):
    opened, keys, metric = case
    allowed = np.random.default_rng(1).random(ROWS) < share
    rows, _ = index.search(opened, vectors[::9], 10, 64, allowed)
    assert allowed[rows[rows >= 0]].all()
    assert ((rows >= 0).sum(axis=1) == min(10, allowed.sum())).all()
    if allowed.sum() >= 10:
        every = np.where(allowed, similarities_of(vectors[::9], keys, metric), -np.inf)
        assert recall(rows, every, 10) >= 0.9


def test_another_mask_counts_at_once(case, vectors):
    opened, _, _ = case
    for half in (np.arange(ROWS) < 450, np.arange(ROWS) >= 450, None):
        rows, _ = index.search(opened, vectors[:20], 5, 64, half)
        assert half is None or half[rows].all()


def test_an_index_grows_after_it_was_read(config, vectors, tmp_path):
    for kind in KINDS:
        spec = spec_of(config, kind, "cosine")
        keys = stored(vectors, config)
        index.build(keys[:700], spec).write(tmp_path / kind)
        grown = index.add(index.read(tmp_path / kind, keys[:700], spec, writable=True), keys)
        assert len(grown) == ROWS
        rows, _ = index.search(grown, vectors[690:710], 1, 64)
        np.testing.assert_array_equal(rows[:, 0], np.arange(690, 710))


def test_keys_are_stored_once(config, vectors, tmp_path):
    """The file of a graph holds its links alone, that of flat nothing: FAISS reads the memory's keys where they are."""
    spec = spec_of(config, "hnsw", "cosine")
    keys = stored(vectors, config)
    index.build(keys, spec).write(tmp_path / "index")
    links = 2 * 32 * 4 * ROWS  # 2m links of 4 bytes
    assert links < (tmp_path / "index").stat().st_size < links + 40 * ROWS + 1000 < links + keys.nbytes
    opened = index.read(tmp_path / "index", keys, spec)
    keys[5] = keys[17]  # seen by the index, for it has no copy
    np.testing.assert_array_equal(opened.exact.reconstruct(5), keys[17])
    index.build(keys, spec_of(config, "flat", "cosine")).write(tmp_path / "index")
    assert (tmp_path / "index").stat().st_size < 100


def test_auto_is_exact_while_small_and_becomes_a_graph(config, vectors, tmp_path, monkeypatch):
    monkeypatch.setattr(index, "FLAT_UP_TO", 500)
    spec = spec_of(config, "auto", "cosine")
    keys = stored(vectors, config)
    small = index.build(keys[:500], spec)
    assert small.finder is small.exact
    grown = index.add(small, keys)
    assert isinstance(grown.finder, faiss_index.faiss.IndexHNSW) and len(grown) == ROWS
    grown.write(tmp_path / "index")
    opened = index.read(tmp_path / "index", keys, spec)
    np.testing.assert_array_equal(index.search(opened, vectors, 1, 64)[0][:, 0], np.arange(ROWS))


def test_a_small_graph_is_the_same_each_time(config, vectors, tmp_path):
    spec = spec_of(config, "hnsw", "cosine")
    for name in ("one", "other"):
        index.build(stored(vectors, config), spec).write(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


def test_what_an_index_is_made_of(config):
    assert spec_of(config, "device", "l2") == {"kind": "flat", "metric": "l2"}
    assert spec_of(config, "hnsw", "cosine") == {"kind": "hnsw", "metric": "cosine", "m": 32, "ef_construction": 40}
    assert [index.precision(config) for config.memory.index in ("hnsw", "hnsw_sq", "ivf_sq")] == [
        "float32", "float16", "float16"
    ]  # fmt: skip
    config.memory.precision = "float16"
    assert [index.precision(config) for config.memory.index in ("hnsw", "flat")] == ["float16"] * 2


def test_links_and_candidates_are_those_of_the_config(config, vectors):
    config.memory.hnsw_m, config.memory.ef_construction = 16, 77
    built = index.build(index.unit(vectors), index.spec(config))
    assert built.finder.hnsw.nb_neighbors(1) == 16 and built.finder.hnsw.efConstruction == 77
    assert index.ef_search(config) == 64
    config.memory.k = 30
    assert index.ef_search(config) == 120
    config.memory.ef_search = 16
    assert index.ef_search(config) == 16


def test_few_candidates_find_less_and_are_faiss_default(config, vectors):
    """The paper's setting, with which FAISS is asked as it comes: fewer candidates than neighbours."""
    built = index.build(index.unit(vectors), index.spec(config))
    few, _ = index.search(built, vectors, 31, 16)
    assert built.finder.hnsw.efSearch == 16
    np.testing.assert_array_equal(few, built.finder.search(index.unit(vectors), 31)[1])
    every = similarities_of(vectors, index.unit(vectors), "cosine")
    assert recall(few, every, 31) < recall(index.search(built, vectors, 31, 124)[0], every, 31)


def test_too_few_keys_come_back_as_minus_one(config, keys):
    for kind in KINDS:
        spec = spec_of(config, kind, "cosine")
        rows, _ = index.search(index.build(stored(keys[:3], config), spec), keys[:2], 5, 64)
        assert (rows[:, 3:] == -1).all() and (rows[:, :3] >= 0).all()


def test_a_query_of_another_width_is_refused(config, keys):
    with pytest.raises(ValueError, match=r"7 numbers but the memory's keys have 8"):
        index.search(index.build(keys, index.spec(config)), keys[:, :7], 5, 64)


def test_a_zero_vector_stays_zero():
    assert (index.unit(np.zeros((1, 4))) == 0).all()
