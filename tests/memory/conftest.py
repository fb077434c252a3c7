"""A small memory: 40 keys around 4 centres, whose texts are the centres' letters."""

import faiss
import numpy as np
import pytest

from rac_jax import config as configs
from rac_jax.memory import index, store
from rac_jax.memory.snippets import Snippets
from rac_jax.models.tokenizers import Tokenizer

TEXTS = ("a", "b", "c", "d")
RECIPE = {"encoder": {"name": "test", "weights": "none"}, "data": {"fingerprint": "f", "name": "test"}}


@pytest.fixture
def keys():
    random = np.random.default_rng(0)
    return (np.repeat(np.eye(4, 8), 10, axis=0) + 0.1 * random.normal(size=(40, 8))).astype(np.float32)


@pytest.fixture
def config():
    config = configs.default()
    config.memory.k = 5
    return config


@pytest.fixture
def memory(tmp_path, keys, config):
    text_of = np.repeat(np.arange(4), 10)
    images = [f"image{i}" for i in range(40)]
    store.write(tmp_path / "memory", RECIPE, keys, TEXTS, text_of, images, index.build(keys, index.spec(config)))
    return store.read(tmp_path / "memory")


@pytest.fixture
def snippets():
    def encode(texts):
        return [[ord(letter) - ord("a") + 1 for letter in text] for text in texts]

    return Snippets.tokenise(TEXTS, Tokenizer(encode, 100, 12, 90, 91, (99,)))


@pytest.fixture
def exact(keys):
    """Exact cosine neighbours of queries, as a function (queries, k) -> rows."""

    def search(queries, k):
        flat = faiss.IndexFlatIP(keys.shape[1])
        flat.add(index.unit(keys))
        return flat.search(index.unit(queries), k)[1]

    return search
