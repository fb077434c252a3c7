"""Strings are read from Arrow's buffers by number."""

import numpy as np
import pyarrow as pa
import pytest

from rac_jax.memory.columns import Strings

WORDS = ["apple", "", "Güneş 🍊", "a\nb", "pear", "x" * 1000]


@pytest.mark.parametrize(
    "chunks",
    [
        [WORDS],
        [WORDS[:2], [], WORDS[2:]],
        [[word] for word in WORDS],
    ],
    ids=["one", "with an empty one", "one a string"],
)
def test_strings_are_taken_as_arrow_takes_them(chunks):
    strings = Strings([pa.array(chunk, pa.large_string()) for chunk in chunks])
    for numbers in ([], [5], [0, 5, 0, 2, 3, 1], np.arange(6)):
        assert strings.take(np.asarray(numbers, np.int32)) == [WORDS[number] for number in numbers]


def test_parts_of_a_larger_array_are_taken():
    whole = pa.array(WORDS * 2, pa.large_string())
    strings = Strings([whole.slice(2, 3), whole.slice(7)])
    assert strings.take(np.array([2, 0, 3, 7])) == ["pear", "Güneş 🍊", "", "x" * 1000]


def test_a_number_beyond_the_last_is_an_error():
    with pytest.raises(IndexError):
        Strings([pa.array(WORDS, pa.large_string())]).take(np.array([6]))
