"""The texts of neighbours as one token sequence per image, without touching a string."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from rac_jax.models.tokenizers import Tokenizer


@dataclasses.dataclass(frozen=True)
class Snippets:
    """Every text of a memory, tokenised once, each followed by the separator."""

    tokens: np.ndarray  # [U, W] int32: a text's ids, the separator's, zeros
    lengths: np.ndarray  # [U] int32: ids of the text and the separator
    tokenizer: Tokenizer

    @classmethod
    def tokenise(cls, texts: Sequence[str], tokenizer: Tokenizer) -> "Snippets":
        """The table for the distinct texts of a memory."""
        room = tokenizer.length - 2
        separator = list(tokenizer.separator)
        ids = [row[:room] + separator for row in tokenizer.encode(list(texts))]
        lengths = np.array([len(row) for row in ids], np.int32)
        tokens = np.zeros((len(ids), lengths.max(initial=1)), np.int32)
        for row, values in zip(tokens, ids, strict=True):
            row[: len(values)] = values
        return cls(tokens, lengths, tokenizer)

    def join(self, texts: np.ndarray) -> np.ndarray:
        """Sequences [B, length] int32 from text numbers [B, k], nearest first; −1 is no text.

        Equal to tokenising the joined string: what does not fit is cut, and the end token closes.
        """
        t = self.tokenizer
        room = t.length - 2
        present = texts >= 0
        lengths = np.where(present, self.lengths[texts], 0)  # −1 reads some row, and is masked
        starts = np.cumsum(lengths, axis=1) - lengths
        # No separator follows the last text.
        used = np.minimum(np.maximum(lengths.sum(axis=1) - len(t.separator), 0), room)
        place = starts[:, :, None] + np.arange(self.tokens.shape[1])
        inside = np.arange(self.tokens.shape[1]) < lengths[:, :, None]
        row, rank, column = np.nonzero(inside & (place < used[:, None, None]))
        result = np.full((len(texts), t.length), t.pad, np.int32)
        result[:, 0] = t.start
        result[row, 1 + place[row, rank, column]] = self.tokens[texts[row, rank], column]
        result[np.arange(len(texts)), 1 + used] = t.end
        return result
