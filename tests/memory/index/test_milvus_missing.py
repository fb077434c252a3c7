"""Where pymilvus is not installed."""

import sys

import pytest

from rac_jax.memory import index
from rac_jax.memory.index import milvus


def test_the_command_that_installs_it_is_named(monkeypatch, tmp_path, keys):
    monkeypatch.setitem(sys.modules, "pymilvus", None)  # as if it were not there
    spec = {"kind": "milvus", "metric": "cosine", "m": 32, "ef_construction": 40, "uri": "http://127.0.0.1:9"}
    with pytest.raises(milvus.MilvusFailed, match=r"pip install -r requirements-milvus\.txt"):
        index.build(keys, spec)
    (tmp_path / "index").write_text('{"collection": "x"}')
    with pytest.raises(milvus.MilvusFailed, match=r"pip install -r requirements-milvus\.txt"):
        index.read(tmp_path / "index", keys, spec)
