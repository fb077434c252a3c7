"""Tokens that are kept beside the memory are those of its texts, whatever edits there were in between."""

import dataclasses

import numpy as np
import pytest

from rac_jax.memory import edit, manifest, store
from rac_jax.retrieval import texts, tokenizers
from rac_jax.retrieval.snippets import Snippets
from tests.memory.conftest import RECIPE, add, make


@pytest.fixture
def asked(monkeypatch):
    """A tokenizer, and the texts that it was asked for."""
    monkeypatch.setattr(texts, "FEW", 0)
    plain, seen = tokenizers.any_words(), []

    def encode(some):
        seen.extend(some)
        return plain.encode(some)

    return dataclasses.replace(plain, encode=encode), seen


@pytest.fixture
def keys():
    return np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)


def same(a: Snippets, b: Snippets) -> None:
    for name in ("tokens", "starts", "lengths"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))


def test_texts_are_tokenised_once_and_exactly_after_every_edit(tmp_path, keys, asked):
    tokenizer, seen = asked
    memory = make(tmp_path / "m", keys, RECIPE)
    same(texts.tokenised(memory, tokenizer, "snippet"), Snippets.tokenise(memory.texts, tokenizers.any_words()))
    first = list(seen)
    assert first == list(memory.texts)
    same(
        texts.tokenised(store.read(tmp_path / "m"), tokenizer, "snippet"), texts.tokenised(memory, tokenizer, "snippet")
    )
    assert seen == first
    add(tmp_path / "m", "more", keys + 0.1)
    grown = store.read(tmp_path / "m")
    known = len(seen)
    for state in (manifest.ENABLED, manifest.DISABLED, manifest.REMOVED):
        with edit.editing(tmp_path / "m") as editor:
            editor.set_state("more", state)
        now = store.read(tmp_path / "m")
        same(texts.tokenised(now, tokenizer, "snippet"), Snippets.tokenise(now.texts, tokenizers.any_words()))
    assert len(seen) <= known + len(grown.texts) - len(memory.texts)
    with edit.editing(tmp_path / "m") as editor:
        editor.compact()
    assert not (tmp_path / "m" / store.TOKENS).exists()
    now = store.read(tmp_path / "m")
    same(texts.tokenised(now, tokenizer, "snippet"), Snippets.tokenise(memory.texts, tokenizers.any_words()))


def test_another_tokenizer_or_cut_or_a_damaged_file_is_no_hit(tmp_path, keys, asked):
    tokenizer, seen = asked
    memory = make(tmp_path / "m", keys, RECIPE)
    each = len(memory.texts)
    for other in (
        tokenizer,
        dataclasses.replace(tokenizer, fingerprint="another"),
        dataclasses.replace(tokenizer, length=9),
    ):
        for cut in ("snippet", "token"):
            texts.tokenised(memory, other, cut)
            texts.tokenised(memory, other, cut)
    assert len(seen) == 6 * each
    for file in (tmp_path / "m" / store.TOKENS).iterdir():
        file.write_bytes(file.read_bytes()[:100])
    texts.tokenised(memory, tokenizer, "snippet")
    assert len(seen) == 7 * each


def test_a_memory_that_cannot_be_written_is_tokenised_at_every_start(tmp_path, keys, asked, caplog):
    tokenizer, seen = asked
    memory = make(tmp_path / "m", keys, RECIPE)
    (tmp_path / "m" / store.TOKENS).write_text("a file where the folder should be")
    for _ in range(2):
        texts.tokenised(memory, tokenizer, "snippet")
    assert len(seen) == 2 * len(memory.texts)
    assert "cannot be written" in caplog.text


def test_fingerprints_tell_vocabularies_apart():
    some = [tokenizers.any_words(), tokenizers.known_words(["a", "b"]), tokenizers.known_words(["a", "c"])]
    assert len({tokenizer.fingerprint for tokenizer in some}) == 3
    assert tokenizers.known_words(["a", "b"]).fingerprint == some[1].fingerprint
