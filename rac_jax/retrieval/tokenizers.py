"""Text -> token ids, in the form that each text encoder needs."""

import dataclasses
import gzip
import hashlib
import importlib.metadata
import importlib.util
import itertools
import json
import os
import re
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import tokenizers
from ml_collections import ConfigDict
from tokenizers import models, normalizers, pre_tokenizers

from rac_jax.config import ConfigError
from rac_jax.runtime.files import write_text
from rac_jax.weights import catalogue, glove

CLIP_MERGES = 49152 - 256 - 2  # the file holds more; CLIP's vocabulary stops here
CLIP_LENGTH = 77
CLIP_FILE = "bpe_simple_vocab_16e6.txt.gz"
CLIP_SPECIALS = ("<|startoftext|>", "<|endoftext|>")
CLIP_WORDS = r"""'s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+"""  # contractions, words, digits, other signs
WORD_END = "</w>"
BERT_LENGTH = 256  # BERT reads up to 512; attention's cost grows with the square
WORDS_LENGTH = 128
ANY_WORDS = 2**31 - 1
GLOVE = "glove:6b_300d"  # without config.model.text.weights
WORD_PIECES = ("vocab.txt", "tokenizer.json")


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
    fingerprint: str = ""  # the same for tokenizers that give the same ids


def from_config(config: ConfigDict) -> Tokenizer:
    """The tokenizer of T. The vocabularies of BERT and GloVe are stored beside their weights.

    An exported run brings its vocabulary along; then config.model.text.weights is its path (run.with_own_files).
    """
    name, weights = config.model.text.name, config.model.text.weights
    if name == "clip_text":
        own = Path(weights) if Path(weights).name == CLIP_FILE else Path(weights, CLIP_FILE)
        return clip(own if weights and own.is_file() else None)
    if name in ("bert", "minilm"):
        return word_pieces(catalogue.resolve(weights or name, config.weights_dir))
    if name == "glove":
        return known_words(glove.words(catalogue.resolve(weights or GLOVE, config.weights_dir)))
    if name == "random_words":
        return any_words()
    known = "clip_text, bert, minilm, glove, random_words"
    raise ConfigError(f"config.model.text.name is {name!r}; known: {known}")


def keep(config: ConfigDict, folder: Path) -> None:
    """Copy T's vocabulary to a new folder, which serves as config.model.text.weights wherever only tokens are made."""
    name, weights = config.model.text.name, config.model.text.weights
    if name == "clip_text":
        files = [clip_file()]
    elif name in ("bert", "minilm"):
        path = catalogue.resolve(weights or name, config.weights_dir)
        beside = path if path.is_dir() else path.parent
        files = [beside / file for file in WORD_PIECES if (beside / file).is_file()]
    elif name == "glove":
        path = catalogue.resolve(weights or GLOVE, config.weights_dir)
        files = list(path.glob(glove.INDEX)) if path.is_dir() else [path]
    else:
        return
    folder.mkdir(parents=True)
    for file in files:
        if name == "glove" and file.suffix != ".parquet":  # the words alone: the vectors need a gigabyte
            write_text(folder / file.name, "\n".join(glove.words(file)) + "\n")
        else:
            shutil.copyfile(file, folder / file.name)


def clip(file: Path | None = None) -> Tokenizer:
    """CLIP's byte-pair encoding, from its vocabulary file; by default the one inside the package openai-clip.

    It is put together here because importing transformers for it takes a second, at every start.
    """
    vocabulary, merges = _clip_vocabulary(file or clip_file())
    suffix = {"continuing_subword_prefix": "", "end_of_word_suffix": WORD_END}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, merges, unk_token=CLIP_SPECIALS[1], **suffix))
    spaces = normalizers.Replace(tokenizers.Regex(r"\s+"), " ")
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), spaces, normalizers.Lowercase()])
    words = pre_tokenizers.Split(tokenizers.Regex(CLIP_WORDS), behavior="removed", invert=True)
    to_letters = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, to_letters])
    tokenizer.add_special_tokens(list(CLIP_SPECIALS))

    def encode(texts: list[str]) -> list[list[int]]:
        return [found.ids for found in tokenizer.encode_batch(texts, add_special_tokens=False)]

    start, end = (vocabulary[name] for name in CLIP_SPECIALS)
    fingerprint = _fingerprint("clip", "tokenizers", *vocabulary)
    separator = tuple(encode([","])[0])
    return Tokenizer(encode, len(vocabulary), CLIP_LENGTH, start, end, separator, fingerprint=fingerprint)


def clip_file() -> Path:
    """The vocabulary file inside the package openai-clip."""
    package = importlib.util.find_spec("clip")  # not imported, because it needs torch
    for folder in (package.submodule_search_locations or []) if package else []:
        file = Path(folder) / CLIP_FILE
        if file.exists():
            return file
    raise FileNotFoundError(f"CLIP's vocabulary ({CLIP_FILE}) was not found; pip install openai-clip==1.0.1")


def _clip_vocabulary(file: Path) -> tuple[dict[str, int], list[tuple[str, str]]]:
    lines = gzip.decompress(file.read_bytes()).decode().split("\n")
    merges = [(left, right) for left, right in map(str.split, lines[1 : CLIP_MERGES + 1])]
    letters = _byte_letters()
    words = [letter + WORD_END for letter in letters]
    joined = [left + right for left, right in merges]
    tokens = itertools.chain(letters, words, joined, CLIP_SPECIALS)
    return {token: i for i, token in enumerate(tokens)}, merges


def _byte_letters() -> list[str]:
    """A visible letter for each byte, in the vocabulary's order: printable ones stand for themselves."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [chr(b) for b in printable] + [chr(256 + i) for i in range(256 - len(printable))]


def word_pieces(path: Path, length: int = BERT_LENGTH) -> Tokenizer:
    """BERT's word pieces, from the vocab.txt or else the tokenizer.json in a Hugging Face folder."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # torch is missing on purpose
    from transformers import BertTokenizer  # imported here because it takes a second

    vocabulary, lower_case = _word_pieces(path if path.is_dir() else path.parent)
    tokenizer = BertTokenizer(vocab=vocabulary, do_lower_case=lower_case)

    def encode(texts: list[str]) -> list[list[int]]:
        return tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []

    missing = [piece for piece in ("[CLS]", "[SEP]", "[PAD]") if piece not in vocabulary]
    if missing:
        raise ValueError(f"the vocabulary beside {path} has no {missing[0]}, which BERT needs")
    start, end, pad = (vocabulary[piece] for piece in ("[CLS]", "[SEP]", "[PAD]"))
    numbered = (f"{piece} {i}" for piece, i in vocabulary.items())
    fingerprint = _fingerprint("word pieces", "transformers", str(lower_case), *numbered)
    separator = tuple(encode([","])[0])
    return Tokenizer(encode, len(vocabulary), length, start, end, separator, pad, fingerprint)


def _word_pieces(folder: Path) -> tuple[dict[str, int], bool]:
    """BERT's vocabulary, and whether texts are made lower case."""
    plain, described = (folder / file for file in WORD_PIECES)
    if plain.is_file():
        return {piece: i for i, piece in enumerate(plain.read_text(encoding="utf-8").splitlines())}, True
    if not described.is_file():
        raise FileNotFoundError(f"BERT's vocabulary is not beside its weights: there is no {plain} or {described.name}")
    try:
        found = json.loads(described.read_text(encoding="utf-8"))
        vocabulary = {str(piece): int(number) for piece, number in found["model"]["vocab"].items()}
        lower_case = bool((found.get("normalizer") or {}).get("lowercase", True))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"{described} does not describe word pieces: {error!r}") from error
    return vocabulary, lower_case


def known_words(vocabulary: list[str], length: int = WORDS_LENGTH) -> Tokenizer:
    """Words of a list: word i has id i + 1, other words are left out, and so are start, end and separators."""
    ids = {word: i + 1 for i, word in enumerate(vocabulary)}

    def encode(texts: list[str]) -> list[list[int]]:
        return [[ids[word] for word in _words(text) if word in ids] for text in texts]

    fingerprint = _fingerprint("known words", "", *vocabulary)
    return Tokenizer(encode, len(vocabulary) + 1, length, start=0, end=0, separator=(), fingerprint=fingerprint)


def any_words(length: int = WORDS_LENGTH) -> Tokenizer:
    """Any word: its id is a checksum, so it needs no list and is the same in every run."""

    def encode(texts: list[str]) -> list[list[int]]:
        return [[1 + zlib.crc32(word.encode()) % (ANY_WORDS - 1) for word in _words(text)] for text in texts]

    fingerprint = _fingerprint("any words", "")
    return Tokenizer(encode, ANY_WORDS, length, start=0, end=0, separator=(), fingerprint=fingerprint)


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower().replace("_", " "))


def _fingerprint(kind: str, library: str, *vocabulary: str) -> str:
    """Of a kind of tokenizer, its vocabulary, and the library, if any, whose versions may tokenise differently."""
    version = importlib.metadata.version(library) if library else ""
    content = "\n".join((kind, version, *vocabulary))
    return hashlib.sha256(content.encode(errors="surrogatepass")).hexdigest()
