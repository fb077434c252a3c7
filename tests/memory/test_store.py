"""Opening a memory, and what is wrong with one."""

import dataclasses
import re
import shutil

import numpy as np
import pyarrow as pa
import pytest

from rac_jax.memory import check, columns, edit, index, manifest, store
from tests.memory.conftest import RECIPE, TEXTS, add, make


def test_what_was_written_is_read(memory, keys):
    np.testing.assert_array_equal(memory.keys, index.unit(keys))
    assert tuple(memory.texts) == TEXTS
    assert memory.texts.take(memory.text_of[[0, 10, 39]]) == ["a", "b", "d"]
    assert memory.images[17] == "train17" and memory.images[38:] == ["train38", "train39"]
    assert len(memory) == len(memory.index) == memory.enabled == 40
    assert memory.allowed() is None


def test_keys_are_stored_in_half_precision_if_asked(tmp_path, keys):
    memory = make(tmp_path / "m", keys, {**RECIPE, "keys": "float16"})
    np.testing.assert_array_equal(memory.keys, index.unit(keys).astype(np.float16))
    assert (memory.folder / memory.manifest.keys).stat().st_size == 40 * 8 * 2


def test_keys_for_l2_keep_their_length(tmp_path, keys):
    recipe = {**RECIPE, "index": {**RECIPE["index"], "metric": "l2"}}
    np.testing.assert_array_equal(make(tmp_path / "m", keys, recipe).keys, keys)


def test_nothing_but_the_memory_is_left(memory):
    names = sorted(path.name.partition("-")[0] for path in memory.folder.iterdir())
    assert names == ["classes", "index", "keys", "lock", "manifest.json", "reserve", "rows"]
    assert [path.name for path in memory.folder.parent.iterdir()] == ["memory"]


def test_rows_of_a_split_that_is_inside_and_of_one_that_is_not(memory, keys):
    add(memory.folder, "more", keys[::2] + 1, fingerprint="g")
    memory = store.read(memory.folder)
    ids = np.array([3, 4], np.int32)
    assert memory.row_of("f", ids).tolist() == [3, 4]
    assert memory.row_of("g", ids).tolist() == [43, 44]
    assert memory.row_of("other", ids).tolist() == [-1, -1]
    assert memory.source_of(44) == (memory.manifest.source("more"), 4)
    assert memory.images[44] == "more4" and memory.texts[memory.text_of[44]] == "a"


def test_a_memory_of_another_recipe_is_refused_with_the_difference(memory):
    wanted = {**RECIPE, "encoder": {"name": "test", "weights": "others"}}
    with pytest.raises(manifest.BadMemory, match=r"encoder\.weights: 'none' there, 'others' wanted"):
        manifest.require_recipe(memory.folder, memory.recipe, wanted)
    manifest.require_recipe(memory.folder, memory.recipe, RECIPE)


def test_a_folder_of_something_else_is_not_overwritten(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(manifest.BadMemory, match="not a memory"):
        manifest.exists(tmp_path)
    with pytest.raises(manifest.BadMemory, match="not a memory"):
        edit.create(tmp_path, RECIPE, width=8)


FILES = ["keys-0.bin", "rows-*.arrow", "classes-*.arrow", "index-*.faiss"]


@pytest.mark.parametrize("pattern", FILES)
def test_a_file_that_is_cut_short_or_missing_is_named(memory, pattern):
    (path,) = memory.folder.glob(pattern)
    content = path.read_bytes()
    path.write_bytes(content[:-10])
    with pytest.raises(manifest.BadMemory, match=rf"{re.escape(path.name)} (is damaged|was cut short)"):
        store.read(memory.folder)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=rf"{re.escape(path.name)} is missing"):
        store.read(memory.folder)


@pytest.mark.parametrize("pattern", FILES)
def test_a_foreign_file_of_the_same_length_is_named(memory, pattern):
    (path,) = memory.folder.glob(pattern)
    path.write_bytes(bytes(7 for _ in range(path.stat().st_size)))
    with pytest.raises(manifest.BadMemory, match=re.escape(path.name)):
        store.read(memory.folder)


def _replaced(memory, pattern, write):
    """The memory with another file, which its manifest describes rightly."""
    (path,) = memory.folder.glob(pattern)
    write(path)
    found, described = manifest.read(memory.folder), store.described(path)
    source = manifest.dataclasses.replace(found.sources[0], columns=described)
    changes = {"sources": (source,)} if pattern.startswith("rows") else {"index": described}
    manifest.write(memory.folder, manifest.dataclasses.replace(found, **changes))


def test_texts_of_the_wrong_number(memory):
    table = columns.make(pa.array(["a"] * 39), ["image"] * 39)
    _replaced(memory, "rows-*.arrow", lambda path: columns.write(path, table))
    with pytest.raises(manifest.BadMemory, match="has 39 texts, but its source has 40 rows"):
        store.read(memory.folder)


def test_an_arrow_file_of_something_else(memory):
    table = pa.table({"price": list(range(40))})
    _replaced(memory, "rows-*.arrow", lambda path: columns.write(path, table))
    with pytest.raises(manifest.BadMemory, match="has the columns"):
        store.read(memory.folder)


def test_an_index_of_other_keys(memory, keys):
    other = index.build(keys[:30], RECIPE["index"])
    _replaced(memory, "index-*.faiss", lambda path: other.write(path))
    with pytest.raises(manifest.BadMemory, match=r"30 .*but the memory's keys are 40 × 8"):
        store.read(memory.folder)


@pytest.mark.parametrize(
    "content, message",
    [
        ("{", "not a memory's manifest"),
        ("[]", "not a memory's manifest"),
        ('{"format": 99}', "format 99"),
        ('{"format": 2, "sha256": "x", "memory": {}}', "has format 2; this code reads 3. Delete .* to rebuild it"),
        ('{"format": 3, "sha256": "x", "memory": {}}', "was edited"),
    ],
)
def test_bad_manifests(memory, content, message):
    (memory.folder / "manifest.json").write_text(content)
    with pytest.raises(manifest.BadMemory, match=message):
        store.read(memory.folder)
    (memory.folder / "manifest.json").unlink()
    with pytest.raises(FileNotFoundError, match="no memory"):
        store.read(memory.folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda m, s: {"keys": "../victim"},
        lambda m, s: {"keys": "/etc/passwd"},
        lambda m, s: {"index": dataclasses.replace(m.index, name="../victim")},
        lambda m, s: {"sources": (dataclasses.replace(s, columns=manifest.File("a/b", 1, "")),)},
        lambda m, s: {"sources": (dataclasses.replace(s, classes=manifest.File("keys-0.bin", 1, "")),)},
    ],
    ids=["keys", "absolute", "index", "rows", "classes"],
)
def test_a_manifest_that_names_files_elsewhere_is_refused_before_anything_is_written(memory, keys, change):
    victim = memory.folder.parent / "victim"
    victim.write_bytes(bytes(100_000))
    found = manifest.read(memory.folder)
    manifest.write(memory.folder, dataclasses.replace(found, **change(found, found.sources[0])))
    for use in (store.read, lambda folder: add(folder, "more", keys + 1), check.problems):
        with pytest.raises(manifest.BadMemory, match="it must be a file in this folder"):
            use(memory.folder)
    assert victim.read_bytes() == bytes(100_000)


def test_a_file_is_no_memory(tmp_path):
    (tmp_path / "m").write_text("x")
    for use in (manifest.exists, lambda path: edit.create(path, RECIPE, width=8)):
        with pytest.raises(manifest.BadMemory, match="is a file; a memory is a folder"):
            use(tmp_path / "m")
    with pytest.raises(FileNotFoundError, match="there is no memory in"):
        store.read(tmp_path / "m")


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="cannot be written: Not a directory"):
        edit.create(tmp_path / "file" / "m", RECIPE, width=8)


def test_large_damaged_columns_are_named_on_opening(memory, monkeypatch):
    monkeypatch.setattr(store, "VERIFIED_UP_TO", 0)  # as if the files were too large for checksums
    (path,) = memory.folder.glob("rows-*.arrow")
    content, ended = path.read_bytes(), 0
    for place in range(0, len(content), 5):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :])
        try:
            opened = store.read(memory.folder)
            opened.texts.take(opened.text_of), list(opened.images)
        except manifest.BadMemory as error:
            assert path.name in str(error)
            ended += 1
    assert ended > 50


def test_an_open_memory_does_not_notice_changes(memory, keys, tmp_path):
    found = index.search(memory.index, keys, 3, 64)[0]
    with edit.editing(memory.folder) as editor:
        editor.set_state("train", "removed")
        editor.compact()
    np.testing.assert_array_equal(memory.keys, index.unit(keys))
    assert memory.images[39] == "train39" and memory.allowed() is None
    np.testing.assert_array_equal(index.search(memory.index, keys, 3, 64)[0], found)
    assert len(store.read(memory.folder)) == 0


def test_a_copy_elsewhere_is_the_same_memory(memory, tmp_path):
    shutil.copytree(memory.folder, tmp_path / "copy")
    assert store.read(tmp_path / "copy").fingerprint == memory.fingerprint
