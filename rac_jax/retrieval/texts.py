"""The texts of a memory as tokens, which are kept beside it: to tokenise millions of captions takes minutes.

There is a file for each source with many texts, found by the digest of its texts, of the tokenizer and of the cut. So
an edit of the memory needs no other file than that of a new source.
"""

from pathlib import Path

import numpy as np

from rac_jax.memory.columns import Strings
from rac_jax.memory.store import TOKENS, Memory
from rac_jax.retrieval import cached
from rac_jax.retrieval.snippets import CHUNK, Snippets
from rac_jax.retrieval.tokenizers import Tokenizer

FEW = CHUNK  # texts of a source that are tokenised at every start


def tokenised(memory: Memory, tokenizer: Tokenizer, cut: str) -> Snippets:
    """All texts of a memory, those of each source read from its file or tokenised now."""
    parts = [_of_source(texts, tokenizer, cut, memory.folder / TOKENS) for texts in memory.texts.parts()]
    lengths = np.concatenate([*(part["lengths"] for part in parts), np.zeros(0, np.int32)])
    return Snippets.of_tokens([part["tokens"] for part in parts], lengths, tokenizer, cut)


def _of_source(texts: Strings, tokenizer: Tokenizer, cut: str, folder: Path) -> cached.Arrays:
    def tokenise() -> cached.Arrays:
        tokens, lengths = Snippets.ids(texts, tokenizer, cut)
        return {"tokens": tokens, "lengths": lengths}

    if len(texts) <= FEW:
        return tokenise()
    made_of = {"texts": texts.sha256(), "tokenizer": tokenizer.fingerprint, "length": tokenizer.length, "cut": cut}
    return cached.open_or_make(folder, "tokens", made_of, tokenise, must_keep=False)
