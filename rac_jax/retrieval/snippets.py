"""The texts of neighbours as one token sequence per image, joined from arrays of tokens."""

import dataclasses
import itertools
from collections.abc import Collection
from typing import Any

import numpy as np
from tqdm import tqdm

from rac_jax.retrieval.tokenizers import Tokenizer

CHUNK = 2**14  # texts that are tokenised at once


@dataclasses.dataclass(frozen=True)
class Snippets:
    """Every text of a memory, tokenised once, each followed by the separator.

    A sequence that would be longer than T's window ends after the last text that fits completely (`cut` is
    "snippet"), or wherever the window ends ("token", as CLIP's own tokenizer cuts).
    The arrays may be numpy's or, on the devices, JAX's.
    """

    tokens: Any  # [sum of lengths] int32: every text's ids and the separator's, one after another
    starts: Any  # [U] int32: where a text begins
    lengths: Any  # [U] int32: ids of the text and the separator
    tokenizer: Tokenizer
    cut: str = "snippet"

    @classmethod
    def tokenise(cls, texts: Collection[str], tokenizer: Tokenizer, cut: str = "snippet") -> "Snippets":
        """The table for these texts."""
        tokens, lengths = cls.ids(texts, tokenizer, cut)
        return cls.of_tokens([tokens], lengths, tokenizer, cut)

    @classmethod
    def of_tokens(cls, tokens: list[np.ndarray], lengths: np.ndarray, tokenizer: Tokenizer, cut: str) -> "Snippets":
        """The table of texts that are tokenised: their ids one after another, in parts, and how many each has."""
        starts = np.cumsum(lengths, dtype=np.int32) - lengths
        none = np.zeros(1, np.int32)  # what a text without ids reads
        return cls(np.concatenate([*tokens, none]), starts, lengths, tokenizer, cut)

    @staticmethod
    def ids(texts: Collection[str], tokenizer: Tokenizer, cut: str) -> tuple[np.ndarray, np.ndarray]:
        """Every text's ids and the separator's, one after another, and how many each text has [U]: int32."""
        remaining, tokens, counts = iter(texts), [np.zeros(0, np.int32)], [np.zeros(0, np.int32)]
        with tqdm(total=len(texts), desc="memory: tokenise", unit="text", disable=len(texts) <= CHUNK) as bar:
            while some := list(itertools.islice(remaining, CHUNK)):
                rows = [_shortened(*pair, tokenizer, cut) for pair in zip(some, tokenizer.encode(some), strict=True)]
                tokens.append(np.fromiter(itertools.chain.from_iterable(rows), np.int32))
                counts.append(np.fromiter(map(len, rows), np.int32))
                bar.update(len(some))
        return np.concatenate(tokens), np.concatenate(counts)

    def join(self, texts: Any, xp: Any = np) -> Any:
        """Sequences [B, length] int32 from text numbers [B, k], nearest first; −1 is no text.

        `xp` is numpy, or jax.numpy where the arrays are JAX's.
        """
        t, room = self.tokenizer, self.tokenizer.length - 2
        lengths = self._lengths(texts, xp)
        ends = xp.cumsum(lengths, axis=1, dtype=np.int32)
        used = self._used(lengths, ends, xp)[:, None]
        place = xp.arange(room, dtype=np.int32)[None, :]
        before = xp.minimum(ends, room).astype(np.int16)[:, :, None] <= place.astype(np.int16)[:, None, :]
        rank = xp.sum(before, axis=1, dtype=np.int16)  # of the text at each place: how many end before it
        rank = xp.minimum(rank.astype(np.int32), texts.shape[1] - 1)
        column = place - xp.take_along_axis(ends - lengths, rank, axis=1)
        inside = place < used
        values = self.tokens[self.starts[xp.take_along_axis(texts, rank, axis=1)] + xp.where(inside, column, 0)]
        body = xp.where(inside, values, t.pad)
        first = xp.full((len(texts), 1), t.start, np.int32)
        sequence = xp.concatenate([first, body, xp.full((len(texts), 1), t.pad, np.int32)], axis=1)
        return xp.where(xp.arange(t.length, dtype=np.int32)[None, :] == used + 1, t.end, sequence)

    def fitting(self, texts: np.ndarray) -> np.ndarray:
        """How many of the texts [B, k] a sequence holds uncut, [B]."""
        lengths = self._lengths(texts, np)
        return self._fits(lengths, np.cumsum(lengths, axis=1)).sum(axis=1)

    def longest(self, texts: np.ndarray) -> int:
        """Tokens of the longest sequence of text numbers [B, k], start and end included."""
        lengths = self._lengths(texts, np)
        return 2 + int(self._used(lengths, np.cumsum(lengths, axis=1), np).max(initial=0))

    def _used(self, lengths: Any, ends: Any, xp: Any) -> Any:
        """Tokens between start and end [B], of texts with these lengths and ends [B, k]."""
        total = ends[:, -1]
        if self.cut == "snippet":
            total = xp.max(xp.where(self._fits(lengths, ends), ends, 0), axis=1)
        return xp.clip(total - len(self.tokenizer.separator), 0, self.tokenizer.length - 2)  # none follows the last

    def _lengths(self, texts: Any, xp: Any) -> Any:
        return xp.where(texts >= 0, self.lengths[texts], 0)  # −1 reads some text, and is masked

    def _fits(self, lengths: Any, ends: Any) -> Any:
        """Which texts are there and end within the window."""
        return (lengths > 0) & (ends - len(self.tokenizer.separator) <= self.tokenizer.length - 2)


def _shortened(text: str, ids: list[int], tokenizer: Tokenizer, cut: str) -> list[int]:
    """A text's ids, no more than the window holds, and the separator's.

    Cut by snippet, a text that is too long by itself loses whole words; only a first word that fills the window is cut.
    """
    room = tokenizer.length - 2
    if len(ids) > room and cut == "snippet":
        words = tokenizer.encode(text.split())
        fitting = np.searchsorted(np.cumsum([len(word) for word in words]), room, side="right")
        ids = list(itertools.chain.from_iterable(words[:fitting])) or words[0]
    return [*ids[:room], *tokenizer.separator]
