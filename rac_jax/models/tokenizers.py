"""Text -> token ids, as each text encoder wants them."""

import dataclasses
import gzip
import importlib.util
import itertools
import os
from collections.abc import Callable
from pathlib import Path

CLIP_MERGES = 49152 - 256 - 2  # the file holds more; CLIP's vocabulary stops here
CLIP_LENGTH = 77


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """Turns snippets into ids. A sequence is start, snippets with separators between, end, padding."""

    encode: Callable[[list[str]], list[list[int]]]  # without start and end
    vocab_size: int
    length: int  # of a sequence, start and end included
    start: int
    end: int
    separator: tuple[int, ...]  # what ", " between two snippets becomes
    pad: int = 0


def create(name: str) -> Tokenizer:
    """The tokenizer of the text encoder `name`."""
    if name == "clip_text":
        return clip()
    raise ValueError(f"config.model.text is {name!r}; known: clip_text")


def clip() -> Tokenizer:
    """CLIP's byte-pair encoding, from the vocabulary file inside the package openai-clip."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # that there is no torch is meant
    from transformers import CLIPTokenizer  # seconds to import: only where text is tokenised

    vocabulary, merges = _clip_vocabulary(_clip_file())
    tokenizer = CLIPTokenizer(vocab=vocabulary, merges=merges)  # type: ignore[arg-type]

    def encode(texts: list[str]) -> list[list[int]]:
        return tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []

    end = vocabulary["<|endoftext|>"]
    separator = tuple(encode([","])[0])
    return Tokenizer(encode, len(vocabulary), CLIP_LENGTH, end - 1, end, separator)


def _clip_file() -> Path:
    package = importlib.util.find_spec("clip")  # not imported: it would ask for torch
    for folder in (package.submodule_search_locations or []) if package else []:
        file = Path(folder) / "bpe_simple_vocab_16e6.txt.gz"
        if file.exists():
            return file
    raise FileNotFoundError(
        "CLIP's vocabulary (bpe_simple_vocab_16e6.txt.gz) was not found; pip install openai-clip==1.0.1"
    )


def _clip_vocabulary(file: Path) -> tuple[dict[str, int], list[tuple[str, str]]]:
    lines = gzip.decompress(file.read_bytes()).decode().split("\n")
    merges = [(left, right) for left, right in map(str.split, lines[1 : CLIP_MERGES + 1])]
    letters = _byte_letters()
    words = [letter + "</w>" for letter in letters]
    joined = [left + right for left, right in merges]
    specials = ["<|startoftext|>", "<|endoftext|>"]
    tokens = itertools.chain(letters, words, joined, specials)
    return {token: i for i, token in enumerate(tokens)}, merges


def _byte_letters() -> list[str]:
    """A visible letter for each byte, in the vocabulary's order: printable ones stand for themselves."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [chr(b) for b in printable] + [chr(256 + i) for i in range(256 - len(printable))]
