"""Joining, with a tokenizer of one id a letter: a = 1, b = 2, …"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rac_jax.retrieval.snippets import Snippets
from rac_jax.retrieval.tokenizers import Tokenizer

START, END, COMMA = 90, 91, 99


def letters(length: int = 10) -> Tokenizer:
    """Spaces separate words and have no id."""

    def encode(texts):
        return [[ord(letter) - ord("a") + 1 for letter in text if letter != " "] for text in texts]

    return Tokenizer(encode, 100, length, START, END, (COMMA,))


TEXTS = ["ab", "c", "defghijklmnop", "abc def ghi jk"]


def join(*texts: int, length: int = 10, cut: str = "snippet") -> list[int]:
    return Snippets.tokenise(TEXTS, letters(length), cut).join(np.array([texts]))[0].tolist()


@pytest.mark.parametrize(
    "texts, expected",
    [
        ([0, 1], [START, 1, 2, COMMA, 3, END, 0, 0, 0, 0]),
        ([1], [START, 3, END, 0, 0, 0, 0, 0, 0, 0]),
        ([0, 0, 1], [START, 1, 2, COMMA, 1, 2, COMMA, 3, END, 0]),
        ([0, 0, 0], [START, 1, 2, COMMA, 1, 2, COMMA, 1, 2, END]),  # fits to the last place
        ([1, 0, 0, 0], [START, 3, COMMA, 1, 2, COMMA, 1, 2, END, 0]),  # the fourth would not
        ([2], [START, 4, 5, 6, 7, 8, 9, 10, 11, END]),  # one word alone is too long
        ([1, 2], [START, 3, END, 0, 0, 0, 0, 0, 0, 0]),
        ([3], [START, 1, 2, 3, 4, 5, 6, END, 0, 0]),  # "abc def" is left of a text that is too long
        ([3, 1], [START, 1, 2, 3, 4, 5, 6, COMMA, 3, END]),
    ],
)
def test_whole_snippets_are_joined(texts, expected):
    assert join(*texts) == expected


@pytest.mark.parametrize(
    "texts, expected",
    [
        ([0, 0, 0], [START, 1, 2, COMMA, 1, 2, COMMA, 1, 2, END]),
        ([1, 0, 0, 0], [START, 3, COMMA, 1, 2, COMMA, 1, 2, COMMA, END]),
        ([1, 2], [START, 3, COMMA, 4, 5, 6, 7, 8, 9, END]),
        ([3], [START, 1, 2, 3, 4, 5, 6, 7, 8, END]),
    ],
)
def test_cut_by_token_the_window_is_filled(texts, expected):
    assert join(*texts, cut="token") == expected


def test_missing_texts_leave_no_trace():
    assert join(-1, 0, -1, 1, -1) == join(0, 1)
    assert join(-1, -1) == [START, END, 0, 0, 0, 0, 0, 0, 0, 0]


def test_texts_without_any_id_leave_no_trace():
    tokenizer = dataclasses.replace(letters(), separator=())
    snippets = Snippets.tokenise(["", "ab", ""], tokenizer)
    assert snippets.join(np.array([[2, 1, 0], [2, 2, 2]])).tolist() == [
        [START, 1, 2, END, 0, 0, 0, 0, 0, 0], [START, END, 0, 0, 0, 0, 0, 0, 0, 0]
    ]  # fmt: skip


def test_how_many_snippets_survive():
    snippets = Snippets.tokenise(TEXTS, letters())
    texts = np.array([[0, 0, 0, 1], [1, 1, -1, -1], [2, 0, 0, 0], [1, 2, 1, 1]])
    assert snippets.fitting(texts).tolist() == [3, 2, 1, 1]


@pytest.mark.parametrize("cut", ["snippet", "token"])
def test_a_batch_equals_its_rows_and_the_devices_equal_the_host(cut):
    snippets = Snippets.tokenise(TEXTS, letters(), cut)
    texts = np.random.default_rng(0).integers(-1, 4, (50, 6)).astype(np.int32)
    rows = np.concatenate([snippets.join(row[None]) for row in texts])
    joined = snippets.join(texts)
    np.testing.assert_array_equal(joined, rows)
    assert joined.dtype == np.int32

    @jax.jit
    def on_device(tokens, starts, lengths, texts):
        return dataclasses.replace(snippets, tokens=tokens, starts=starts, lengths=lengths).join(texts, jnp)

    found = on_device(*map(jnp.asarray, (snippets.tokens, snippets.starts, snippets.lengths, texts)))
    assert found.dtype == jnp.int32
    np.testing.assert_array_equal(found, joined)


def test_real_captions_are_cut_between_words():
    from rac_jax.retrieval import tokenizers

    clip = tokenizers.clip()
    caption = " ".join(f"photograph{i} of an extraordinarily long caption" for i in range(20))
    table = Snippets.tokenise([caption], clip)
    words = caption.split()
    kept = next(n for n in range(len(words)) if len(clip.encode([" ".join(words[: n + 1])])[0]) > 75)
    assert table.tokens[: table.lengths[0] - 1].tolist() == clip.encode([" ".join(words[:kept])])[0]


@pytest.mark.parametrize("cut", ["snippet", "token"])
@pytest.mark.parametrize("texts", [[0, 1], [1, 2], [3, 1], [1, 0, 0, 0], [2], [-1], [1, -1]])
def test_the_longest_sequence_is_as_long_as_the_joined_one(texts, cut):
    snippets = Snippets.tokenise(TEXTS, letters(), cut)
    numbers = np.array([texts, [-1] * len(texts)])
    assert snippets.longest(numbers) == 1 + np.flatnonzero(snippets.join(numbers)[0] == END)[0]
