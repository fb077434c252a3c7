import numpy as np
import pytest

from rac_jax.memory import edit, store
from rac_jax.memory.manifest import DISABLED
from rac_jax.retrieval.lookup import KEEP_ALL, NO_ROW, Lookup, LookupFailed

NOBODY = np.full(40, NO_ROW, np.int32)
EVALUATION = np.full(40, KEEP_ALL, np.int32)
EVERYBODY = np.arange(40, dtype=np.int32)


def lookup(memory, snippets, exclude, k=5):
    return Lookup(memory, snippets, k, 64, exclude)


def test_without_exclusion_the_nearest_is_the_image_itself(memory, snippets, keys, exact):
    found = lookup(memory, snippets, "none").search(keys, NOBODY)
    np.testing.assert_array_equal(found.rows, exact(keys, 5))
    np.testing.assert_array_equal(found.rows[:, 0], EVERYBODY)
    np.testing.assert_allclose(found.similarities[:, 0], 1, rtol=1e-6)


def test_exclusion_by_id_removes_the_image_and_keeps_the_others_in_order(memory, snippets, keys, exact):
    found = lookup(memory, snippets, "id").search(keys, EVERYBODY)
    np.testing.assert_array_equal(found.rows, exact(keys, 6)[:, 1:])


def test_exclusion_by_id_drops_the_last_when_the_image_is_not_among_them(memory, snippets, keys, exact):
    found = lookup(memory, snippets, "id").search(keys, np.roll(EVERYBODY, 20))  # ids of far images
    np.testing.assert_array_equal(found.rows, exact(keys, 5))
    found = lookup(memory, snippets, "id").search(keys, NOBODY)
    np.testing.assert_array_equal(found.rows, exact(keys, 5))


def test_exclusion_of_the_first_drops_rank_zero_whatever_it_is(memory, snippets, keys, exact):
    queries = keys + 0.3
    found = lookup(memory, snippets, "first").search(queries, NOBODY)
    np.testing.assert_array_equal(found.rows, exact(queries, 6)[:, 1:])


@pytest.mark.parametrize("exclude", ["id", "first", "none"])
def test_evaluation_leaves_nothing_out(memory, snippets, keys, exact, exclude):
    found = lookup(memory, snippets, exclude).search(keys, EVALUATION)
    np.testing.assert_array_equal(found.rows, exact(keys, 5))


def test_tokens_are_the_neighbours_texts(memory, snippets, keys):
    found = lookup(memory, snippets, "id", k=3).search(keys[[12]], EVERYBODY[[12]])
    assert found.tokens[0].tolist() == [90, 2, 99, 2, 99, 2, 91, 0, 0, 0, 0, 0]  # "b, b, b"


def test_a_memory_without_enabled_rows_has_no_sample(memory, snippets):
    with edit.editing(memory.folder) as editor:
        editor.set_state("train", DISABLED)
    assert lookup(store.read(memory.folder), snippets, "id").some_rows().tolist() == []


def test_missing_neighbours_are_masked(memory, snippets, keys):
    found = lookup(memory, snippets, "none", k=45).search(keys[:2], NOBODY[:2])
    assert (found.rows[:, 40:] == -1).all() and (found.rows[:, :40] >= 0).all()
    assert (found.similarities[:, 40:] == 0).all()


def test_a_failure_in_a_callback_is_kept_and_raised_once_on_the_host(memory, snippets, keys):
    part = lookup(memory, snippets, "none")
    tokens, rows, similarities = part.callback(keys[:3, :4], NOBODY[:3])  # half the width
    assert (rows == -1).all() and (similarities == 0).all() and tokens[0, :2].tolist() == [90, 91]
    with pytest.raises(LookupFailed, match=r"4 numbers but the memory's keys have 8"):
        part.check()
    part.check()  # raised once


def test_time_is_taken(memory, snippets, keys):
    part = lookup(memory, snippets, "none")
    assert part.take_milliseconds() == 0
    part.callback(keys, NOBODY)
    assert part.take_milliseconds() > 0
    assert part.take_milliseconds() == 0
