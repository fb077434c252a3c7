"""CLIP's tokens, equal to the reference tokenizer's."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rac_jax import config as configs
from rac_jax.retrieval import tokenizers
from rac_jax.retrieval.snippets import Snippets
from rac_jax.run import keep_vocabulary, with_own_files

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "tokens.json").read_text())


@pytest.fixture(scope="module")
def clip():
    return tokenizers.from_config(configs.default())


def test_vocabulary(clip):
    assert (clip.vocab_size, clip.start, clip.end, clip.length) == (49408, 49406, 49407, 77)
    assert len(clip.separator) == 1


def test_names_of_places_and_species(clip):
    texts = [place["text"] for place in GOLDEN["places"]]
    assert clip.encode(texts) == [place["ids"][1:-1] for place in GOLDEN["places"]]
    names = [species["text"] for species in GOLDEN["inat"]]
    assert clip.encode(names) == [species["ids"][1:-1] for species in GOLDEN["inat"]]


@pytest.mark.parametrize("case", GOLDEN["joined"] + GOLDEN["joined_short"], ids=lambda c: c["text"][:20])
def test_joining_snippets_equals_tokenising_the_joined_text(clip, case):
    texts = case["text"].split(", ")
    distinct = sorted(set(texts))
    joined = Snippets.tokenise(distinct, clip, cut="token").join(np.array([[distinct.index(t) for t in texts]]))
    assert joined[0].tolist() == case["ids"]
    assert joined.dtype == np.int32


ODD = [
    "",
    " ",
    "It's  a\tcafé\n№ 7",
    "Ünïcödé ﬁ İ",
    "日本語 テキスト",
    "a_b-c...!!",
    "<|endoftext|> inside",
    "🍎🍐 12.5%",
    "x" * 200,
]


def test_any_text_has_the_ids_that_transformers_gives_it(clip):
    from transformers import CLIPTokenizer

    vocabulary, merges = tokenizers._clip_vocabulary(tokenizers.clip_file())
    theirs = CLIPTokenizer(vocab=vocabulary, merges=merges)
    random = np.random.default_rng(0)
    letters = [*"abcXYZ  ',.’é0123-_<|>\n", *map(chr, range(0x20, 0x2100, 7))]
    texts = [*ODD, *("".join(random.choice(letters, size=12)) for _ in range(300))]
    assert clip.encode(texts) == theirs(texts, add_special_tokens=False)["input_ids"]
    assert clip.encode([]) == []


def test_an_unknown_text_encoder_is_refused():
    config = configs.default()
    config.model.text.name = "word2vec"
    with pytest.raises(ValueError, match="clip_text"):
        tokenizers.from_config(config)


PIECES = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "red", "fox", ","]


@pytest.mark.parametrize("kind", ["bert", "glove file", "glove folder"])
def test_a_run_keeps_its_vocabulary_and_needs_no_weights_of_t(kind, tmp_path):
    weights, workdir = tmp_path / "weights", tmp_path / "run"
    weights.mkdir()
    workdir.mkdir()
    (weights / "model.safetensors").touch()
    if kind == "bert":
        (weights / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    elif kind == "glove file":
        weights = weights / "glove.txt"
        weights.write_text("red 0.1 0.2\nfox 0.3 0.4\n. . 0.5 0.6\n")
    else:
        pq.write_table(pa.table({"index": ["red", "fox"]}), weights / "small_index.parquet")
    config = configs.default()
    config.model.text.update(name=kind.split()[0], weights=str(weights))
    expected = tokenizers.from_config(config)
    for _ in range(2):  # a run that is continued
        keep_vocabulary(config, workdir)
    weights.rename(tmp_path / "gone")
    own = with_own_files(config, workdir)
    found = tokenizers.from_config(own)
    assert found.encode(["red fox"]) == expected.encode(["red fox"]) and found.encode(["fox"])[0]
    assert found.fingerprint == expected.fingerprint
    assert [path.name for path in workdir.iterdir()] == ["vocabulary"]
    assert sum(path.stat().st_size for path in (workdir / "vocabulary").iterdir()) < 2000


def test_the_vocabulary_of_clip_is_not_kept(tmp_path):
    keep_vocabulary(configs.default(), tmp_path)
    assert not list(tmp_path.iterdir())
