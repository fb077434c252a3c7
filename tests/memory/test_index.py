import numpy as np
import pytest

from rac_jax.memory import index


@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_cosine_equals_numpy(config, keys, kind):
    config.memory.index = kind
    queries = keys[::7] * 3 + 0.05  # length does not matter for cosine
    rows, similarities = index.search(index.build(keys, index.spec(config)), queries, 5, 64)
    cosine = index.unit(queries) @ index.unit(keys).T
    np.testing.assert_array_equal(rows, np.argsort(-cosine, axis=1)[:, :5])
    np.testing.assert_allclose(similarities, -np.sort(-cosine, axis=1)[:, :5], rtol=1e-5)


@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_l2_equals_numpy(config, keys, kind):
    config.memory.index, config.memory.metric = kind, "l2"
    queries = keys[::7] * 3 + 0.05
    rows, similarities = index.search(index.build(keys, index.spec(config)), queries, 5, 64)
    squares = ((queries[:, None] - keys[None]) ** 2).sum(axis=-1)
    np.testing.assert_array_equal(rows, np.argsort(squares, axis=1)[:, :5])
    np.testing.assert_allclose(similarities, -np.sort(squares, axis=1)[:, :5], rtol=1e-4)


def test_links_and_candidates_are_those_of_the_config(config, keys):
    config.memory.hnsw_m, config.memory.ef_construction = 16, 77
    built = index.build(keys, index.spec(config))
    assert built.hnsw.nb_neighbors(1) == 16 and built.hnsw.efConstruction == 77
    assert index.ef_search(config) == 64
    config.memory.k = 30
    assert index.ef_search(config) == 120
    config.memory.ef_search = 16
    assert index.ef_search(config) == 16


def test_too_few_keys_come_back_as_minus_one(config, keys):
    rows, _ = index.search(index.build(keys[:3], index.spec(config)), keys[:2], 5, 64)
    assert (rows[:, 3:] == -1).all() and (rows[:, :3] >= 0).all()


def test_a_query_of_another_width_is_refused(config, keys):
    with pytest.raises(ValueError, match=r"7 numbers but the memory's keys have 8"):
        index.search(index.build(keys, index.spec(config)), keys[:, :7], 5, 64)


def test_a_zero_vector_stays_zero():
    assert (index.unit(np.zeros((1, 4))) == 0).all()


@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_rows_that_are_not_allowed_never_come_back(config, keys, kind, tmp_path):
    config.memory.index = kind
    built = index.add(index.build(keys[:25], index.spec(config)), keys[25:].astype(np.float16))
    index.write(built, tmp_path / "index")
    allowed = np.arange(40) % 3 == 0
    mapped = index.read(tmp_path / "index", keys, index.spec(config))
    rows, similarities = index.search(mapped, keys, 5, 64, allowed)
    cosine = np.where(allowed, index.unit(keys) @ index.unit(keys).T, -2)
    np.testing.assert_array_equal(rows, np.argsort(-cosine, axis=1)[:, :5])
    np.testing.assert_allclose(similarities, -np.sort(-cosine, axis=1)[:, :5], atol=1e-3)
    assert index.rows(mapped) == 40
