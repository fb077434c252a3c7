import json
import re

import numpy as np
import pytest

from rac_jax.memory import store
from tests.memory.conftest import RECIPE, TEXTS


def test_what_was_written_is_read(memory, keys):
    np.testing.assert_array_equal(memory.keys, keys)
    assert memory.texts == TEXTS
    assert [memory.texts[t] for t in memory.text_of[[0, 10, 39]]] == ["a", "b", "d"]
    assert memory.images[17].as_py() == "image17"
    assert len(memory) == memory.index.ntotal == 40
    assert memory.fingerprint == store.fingerprint(RECIPE)


def test_nothing_temporary_is_left(memory):
    assert sorted(path.name for path in memory.folder.iterdir()) == [
        "index.faiss", "keys.npy", "manifest.json", "rows.arrow"
    ]  # fmt: skip
    assert [path.name for path in memory.folder.parent.iterdir()] == ["memory"]


def test_rows_of_a_split_that_is_inside_and_of_one_that_is_not(memory):
    ids = np.array([3, 4], np.int32)
    assert memory.row_of("f", ids).tolist() == [3, 4]
    assert memory.row_of("other", ids).tolist() == [-1, -1]


def test_a_memory_is_reused_when_the_recipe_matches(memory, tmp_path):
    assert store.matches(memory.folder, json.loads(json.dumps(RECIPE)))
    assert not store.matches(tmp_path / "none", RECIPE)


def test_a_memory_of_another_recipe_is_refused_with_the_difference(memory):
    wanted = {**RECIPE, "encoder": {"name": "test", "weights": "others"}}
    with pytest.raises(store.BadMemory, match=r"encoder\.weights: 'none' there, 'others' wanted"):
        store.matches(memory.folder, wanted)


def test_a_folder_of_something_else_is_not_overwritten(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(store.BadMemory, match="not a memory"):
        store.matches(tmp_path, RECIPE)


@pytest.mark.parametrize("name", store.FILES)
def test_damage_names_the_file(memory, name):
    path = memory.folder / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(store.BadMemory, match=rf"{re.escape(name)} is damaged"):
        store.read(memory.folder)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=rf"{re.escape(name)} is missing"):
        store.read(memory.folder)


@pytest.mark.parametrize(
    "manifest, message",
    [
        ("{", "not a memory's manifest"),
        ("[]", "not a memory's manifest"),
        ('{"version": 99}', "version 99"),
        ('{"version": 1, "fingerprint": "x", "recipe": {}}', "was edited"),
    ],
)
def test_bad_manifests(memory, manifest, message):
    (memory.folder / "manifest.json").write_text(manifest)
    with pytest.raises(store.BadMemory, match=message):
        store.read(memory.folder)
    (memory.folder / "manifest.json").unlink()
    with pytest.raises(FileNotFoundError, match="no memory"):
        store.read(memory.folder)
