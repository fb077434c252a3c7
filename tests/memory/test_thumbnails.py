"""Thumbnails: of each row, whatever is done to the memory."""

import dataclasses
import json
import os

import numpy as np
import pyarrow as pa
import pytest

from rac_jax import config as configs
from rac_jax.data.decode import decode
from rac_jax.data.sets import digits
from rac_jax.export.folder import _copy_memory
from rac_jax.memory import build, check, columns, edit, manifest, store, thumbnails
from rac_jax.memory.manifest import BadMemory
from rac_jax.memory.view import MemoryView
from tests.memory.conftest import RECIPE, add
from tests.memory.test_build import open_or_build, prepared


def jpeg(grey):
    return thumbnails.encode(np.full((8, 8, 3), grey, np.uint8), 96)


def add_grey(folder, name, greys, *, stop_after=None):
    """A source with one grey image per row; it is left unfinished after `stop_after` rows."""
    keys = np.random.default_rng(len(name)).normal(size=(len(greys), 4)).astype(np.float32)
    edit.create(folder, RECIPE, width=4)
    with edit.editing(folder) as editor:
        done = editor.start(name, rows=len(greys), fingerprint=name, origin="", thumbnails=True)
        end = len(greys) if stop_after is None else stop_after
        for row in range(done, end):
            editor.append(keys[row : row + 1], [jpeg(greys[row])])
        if end == len(greys):
            editor.finish(columns.make(pa.array(["x"] * len(greys)), ["i"] * len(greys)))
    return done


def greys(memory):
    """The mean grey value of each row's thumbnail, None where there is none."""
    small = [memory.thumbnail(row) for row in range(len(memory))]
    return [s and round(decode(s, "").mean()) for s in small]


def test_a_build_keeps_the_square_that_e_sees(tmp_path):
    dataset = digits.load(0)
    memory = open_or_build(dataset, tmp_path / "m", encode_batch=50)
    batch = next(
        build.pipeline.eval_batches(dataset.split("train"), build.data.eval_transform(_config()), batch_size=466)
    )
    for row in (0, 49, 50, 465):
        shown = decode(memory.thumbnail(row), "")
        assert shown.shape == (16, 16, 3)  # not enlarged
        assert np.abs(shown.astype(int) - batch["image"][row]).mean() < 12
    assert MemoryView(memory).thumbnail(-1) == memory.thumbnail(465)
    assert MemoryView(memory).image(3).size == (16, 16)


def _config():
    config = configs.default()
    config.data.image_size = 16
    return config


def test_the_keys_are_the_same_without_thumbnails(tmp_path):
    dataset = digits.load(0)
    with_, without = (open_or_build(dataset, tmp_path / str(side), thumbnails=side) for side in (8, 0))
    assert with_.keys.tobytes() == without.keys.tobytes() and with_.fingerprint == without.fingerprint
    assert decode(with_.thumbnail(0), "").shape == (8, 8, 3)
    assert without.thumbnail(0) is None and not list((tmp_path / "0").glob("thumb*"))


def test_by_default_a_memory_of_up_to_a_million_rows_has_them():
    config = configs.default()
    assert thumbnails.side_for(config, 10**6) == 96 and thumbnails.side_for(config, 10**6 + 1) == 0
    config.memory.thumbnails = 64
    assert thumbnails.side_for(config, 10**8) == 64
    config.memory.thumbnails = 0
    assert thumbnails.side_for(config, 1) == 0


def test_each_row_has_its_own_after_add_remove_and_compact(tmp_path):
    folder = tmp_path / "m"
    add_grey(folder, "a", [10, 20, 30])
    add(folder, "keys", np.eye(4, dtype=np.float32)[:2])
    add_grey(folder, "b", [40, 50])
    assert greys(store.read(folder)) == [10, 20, 30, None, None, 40, 50]
    with edit.editing(folder) as editor:
        editor.set_state("a", manifest.DISABLED)
    before = store.read(folder)
    assert greys(before) == [10, 20, 30, None, None, 40, 50]
    with edit.editing(folder) as editor:
        editor.set_state("a", manifest.REMOVED)
        editor.compact()
    assert greys(store.read(folder)) == [None, None, 40, 50]
    assert greys(before) == [10, 20, 30, None, None, 40, 50]  # a snapshot
    assert len(list(folder.glob("thumbnails-*"))) == 1 and check.problems(folder) == []
    _copy_memory(folder, tmp_path / "copy", tmp_path)
    assert greys(store.read(tmp_path / "copy")) == [None, None, 40, 50]


def test_an_interrupted_source_goes_on_with_its_own(tmp_path):
    folder, wanted = tmp_path / "m", [10, 20, 30, 40]
    add_grey(folder, "a", wanted, stop_after=2)
    file = next(folder.glob("thumbnails-*"))
    with file.open("ab") as end:
        end.write(thumbnails.message([jpeg(99)]))  # written, not committed
    assert add_grey(folder, "a", wanted) == 2
    assert greys(store.read(folder)) == wanted and check.problems(folder) == []


@pytest.mark.parametrize("lost", ["keys", "thumbnails"])
def test_a_source_that_lost_rows_begins_again(tmp_path, lost):
    folder, wanted = tmp_path / "m", [10, 20, 30, 40]
    add_grey(folder, "a", wanted, stop_after=3)
    file = next(folder.glob(f"{lost}-*"))
    os.truncate(file, file.stat().st_size - 16)
    assert add_grey(folder, "a", wanted) == 0
    assert greys(store.read(folder)) == wanted


def test_a_source_that_was_begun_without_them_ends_without(tmp_path):
    dataset, folder = digits.load(0), tmp_path / "m"
    config, encoder, _ = prepared(lambda p, x: x.mean(axis=(2, 3)) * p["scale"], {"thumbnails": 0})
    content = build.sources.of_split(dataset, "train")
    edit.create(folder, build.make_recipe(config, encoder), width=16)
    with edit.editing(folder) as editor:
        build._start(config, editor, "train", content)
        editor.append(np.ones((7, 16), np.float32))
    memory = open_or_build(dataset, folder)
    assert len(memory) == 466 and memory.thumbnail(9) is None


def test_a_memory_from_before_there_were_any_is_opened(tmp_path):
    folder = tmp_path / "m"
    edit.create(folder, RECIPE, width=4)
    add(folder, "a", np.eye(4, dtype=np.float32))
    document = json.loads((folder / "manifest.json").read_text())
    for source in document["memory"]["sources"]:
        assert source.pop("thumbnails") is None
    document["sha256"] = manifest._digest(document["memory"])
    (folder / "manifest.json").write_text(json.dumps(document))
    assert store.read(folder).thumbnail(3) is None
    add_grey(folder, "b", [5])
    assert greys(store.read(folder)) == [None] * 4 + [5]


def test_damage_is_noticed(tmp_path):
    folder = tmp_path / "m"
    add_grey(folder, "a", [10, 20])
    file = next(folder.glob("thumbnails-*"))
    content = bytearray(file.read_bytes())
    content[-20] ^= 1
    file.write_bytes(content)
    assert "checksum" in check.problems(folder)[0]
    with pytest.raises(BadMemory, match=r"thumbnails-\d.arrow is damaged"):
        store.read(folder)
    file.unlink()
    with pytest.raises(FileNotFoundError, match="thumbnails"):
        store.read(folder)


def test_a_wrong_number_is_refused(tmp_path):
    edit.create(tmp_path, RECIPE, width=4)
    with edit.editing(tmp_path) as editor:
        editor.start("a", rows=2, fingerprint="a", origin="", thumbnails=True)
        with pytest.raises(ValueError, match="1 thumbnails for 2 keys of a"):
            editor.append(np.eye(4, dtype=np.float32)[:2], [jpeg(1)])
        source = editor.manifest.unfinished()
        assert dataclasses.replace(source.thumbnails, name="") == manifest.File("", len(thumbnails.START), "")
