"""A small memory: 40 keys around 4 centres, whose texts are the centres' letters."""

import faiss
import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pytest

from rac_jax import config as configs
from rac_jax import sharding
from rac_jax.memory import columns, edit, index, store
from rac_jax.models import voices
from rac_jax.retrieval import knowledge
from rac_jax.retrieval.snippets import Snippets
from rac_jax.retrieval.tokenizers import Tokenizer

TEXTS = ("a", "b", "c", "d")
RECIPE = {
    "encoder": {"name": "test", "weights": "none"},
    "keys": "float32",
    "index": {"kind": "hnsw", "metric": "cosine", "m": 32, "ef_construction": 40},
}


def make(folder, keys, recipe=RECIPE):
    """A memory of one source, whose texts are TEXTS in equal parts."""
    edit.create(folder, recipe, width=keys.shape[1])
    add(folder, "train", keys, fingerprint="f")
    return store.read(folder)


def add(folder, name, keys, fingerprint=None, texts=TEXTS, classes=(), labels=None):
    """Another source: images <name>0, <name>1, …; without labels unless they are given."""
    text_of = np.arange(len(keys)) * len(texts) // len(keys)
    with edit.editing(folder) as editor:
        fingerprint = fingerprint or f"of {name}"
        done = editor.start(name, rows=len(keys), fingerprint=fingerprint, origin="test")
        editor.append(keys[done:])
        images = [f"{name}{i}" for i in range(len(keys))]
        editor.finish(columns.make(pa.array([texts[t] for t in text_of]), images, labels), classes)


def votes(memory, rows, similarities):
    """The share of each class in the vote of neighbours [B, k], by name; shapes are padded, so that little compiles."""
    config, known = configs.default(), knowledge.classes_of((), memory)
    config.mesh.data = 1
    mesh = sharding.make_mesh(config)
    read = knowledge.padded(knowledge.read(memory, known, mesh), knowledge.Room(16, 2048), mesh)
    found = voices.Neighbours(rows=jnp.asarray(rows, jnp.int32), similarities=jnp.asarray(similarities, jnp.float32))
    shares = np.asarray(jnp.exp(_vote(found, read))) - VOTE["epsilon"]
    return {name: shares[:, number].tolist() for number, name in enumerate(known.names)}


VOTE = {"temperature": 0.05, "tau": 1.0, "epsilon": 1e-3}
_vote = jax.jit(lambda found, known: voices.vote(found, known, None, **VOTE))


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
def memory(tmp_path, keys):
    return make(tmp_path / "memory", keys)


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
