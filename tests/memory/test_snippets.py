"""Joining, with a tokenizer of one id a letter: a = 1, b = 2, …"""

import numpy as np
import pytest

from rac_jax.memory.snippets import Snippets
from rac_jax.models.tokenizers import Tokenizer

START, END, COMMA = 90, 91, 99


def letters(length: int = 10) -> Tokenizer:
    def encode(texts):
        return [[ord(letter) - ord("a") + 1 for letter in text] for text in texts]

    return Tokenizer(encode, 100, length, START, END, (COMMA,))


TEXTS = ["ab", "c", "defghijklmnop"]


def join(*texts: int, length: int = 10) -> list[int]:
    return Snippets.tokenise(TEXTS, letters(length)).join(np.array([texts]))[0].tolist()


@pytest.mark.parametrize(
    "texts, expected",
    [
        ([0, 1], [START, 1, 2, COMMA, 3, END, 0, 0, 0, 0]),
        ([1], [START, 3, END, 0, 0, 0, 0, 0, 0, 0]),
        ([0, 0, 1], [START, 1, 2, COMMA, 1, 2, COMMA, 3, END, 0]),
        ([0, 0, 0], [START, 1, 2, COMMA, 1, 2, COMMA, 1, 2, END]),  # fits to the last place
        ([1, 0, 0, 0], [START, 3, COMMA, 1, 2, COMMA, 1, 2, COMMA, END]),  # cut
        ([2], [START, 4, 5, 6, 7, 8, 9, 10, 11, END]),  # one text alone is too long
        ([1, 2], [START, 3, COMMA, 4, 5, 6, 7, 8, 9, END]),
    ],
)
def test_join(texts, expected):
    assert join(*texts) == expected


def test_missing_texts_leave_no_trace():
    assert join(-1, 0, -1, 1, -1) == join(0, 1)
    assert join(-1, -1) == [START, END, 0, 0, 0, 0, 0, 0, 0, 0]


def test_a_batch_equals_its_rows():
    snippets = Snippets.tokenise(TEXTS, letters())
    texts = np.random.default_rng(0).integers(-1, 3, (50, 6))
    rows = np.concatenate([snippets.join(row[None]) for row in texts])
    np.testing.assert_array_equal(snippets.join(texts), rows)
