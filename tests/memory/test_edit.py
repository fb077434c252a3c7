"""Changing a memory, against a model of it in plain Python."""

import dataclasses
import multiprocessing
import os
import time

import numpy as np
import pyarrow as pa
import pytest

from rac_jax.memory import check, columns, edit, index, manifest, store
from rac_jax.memory.manifest import BadMemory
from rac_jax.retrieval.lookup import Lookup
from rac_jax.retrieval.snippets import Snippets
from rac_jax.runtime import files
from tests.memory.conftest import RECIPE, add, make

FLAT = {**RECIPE, "index": {"kind": "flat", "metric": "cosine"}}
WIDTH = 8


@dataclasses.dataclass
class Model:
    """What a memory should hold: for each source its keys and whether it is enabled."""

    sources: dict[str, tuple[np.ndarray, bool]] = dataclasses.field(default_factory=dict)

    def nearest(self, queries, k):
        """The references of the k nearest enabled images, by brute force; fewer if there are fewer."""
        names = [f"{name}{i}" for name, (keys, on) in self.sources.items() if on for i in range(len(keys))]
        if not names:
            return [[] for _ in queries]
        keys = np.concatenate([keys for keys, on in self.sources.values() if on])
        order = np.argsort(-(index.unit(queries) @ index.unit(keys).T), axis=1, kind="stable")[:, :k]
        return [[names[i] for i in row] for row in order]


def found(memory, queries, k):
    rows, _ = index.search(memory.index, queries, k, 64, memory.allowed())
    return [[memory.images[row] for row in mine if row >= 0] for mine in rows]


def random_step(random, folder, model, number):
    """One change, made to both."""
    names = list(model.sources)
    choice = random.choice(["add", "add", "remove", "disable", "enable", "compact"])
    if choice == "add" or not names:
        name, keys = f"source{number}_", random.normal(size=(random.integers(1, 40), WIDTH)).astype(np.float32)
        add(folder, name, keys)
        model.sources[name] = (keys, True)
        return
    name = str(random.choice(names))
    with edit.editing(folder) as editor:
        if choice == "compact":
            editor.compact()
        elif choice == "remove":
            editor.set_state(name, manifest.REMOVED)
            del model.sources[name]
        else:
            editor.set_state(name, {"disable": manifest.DISABLED, "enable": manifest.ENABLED}[choice])
            model.sources[name] = (model.sources[name][0], choice == "enable")


CASES = [(kind, seed) for kind in ("flat", "hnsw") for seed in range(5)]
CASES += [("hnsw_sq", 5), ("ivf_sq", 6), ("auto", 7), ("ivf_rabitq", 8)]


@pytest.mark.parametrize("kind, seed", CASES)
def test_any_sequence_of_changes_is_what_brute_force_says(tmp_path, kind, seed):
    random = np.random.default_rng(seed)
    folder, model = tmp_path / "m", Model()
    edit.create(folder, {**RECIPE, "index": {**RECIPE["index"], "kind": kind}}, width=WIDTH)
    queries = random.normal(size=(5, WIDTH)).astype(np.float32)
    for number in range(12):
        random_step(random, folder, model, number)
        if manifest.read(folder).index is None:
            continue
        memory = store.read(folder)
        enabled = sum(len(keys) for keys, on in model.sources.values() if on)
        assert memory.enabled == enabled
        for k in (1, 7, enabled + 3):
            near, nearest = found(memory, queries, k), model.nearest(queries, k)
            if kind == "ivf_sq":  # it compares in half precision, where two may change places
                near, nearest = list(map(set, near)), list(map(set, nearest))
            assert near == nearest
        assert [s.name for s in memory.manifest.sources if s.state != manifest.REMOVED] == list(model.sources)
    assert check.problems(folder) == []


@pytest.mark.parametrize("recipe", [RECIPE, FLAT, {**RECIPE, "keys": "float16"}], ids=["hnsw", "flat", "float16"])
def test_add_then_remove_then_compact_is_never_having_added(tmp_path, keys, recipe):
    memory = make(tmp_path / "m", keys, recipe)
    before = found(memory, keys + 0.1, 7)
    add(memory.folder, "more", keys[::-1] + 0.05)
    with edit.editing(memory.folder) as editor:
        editor.set_state("more", manifest.REMOVED)
    hidden = store.read(memory.folder)
    assert found(hidden, keys + 0.1, 7) == before and len(hidden) == 80
    with edit.editing(memory.folder) as editor:
        assert editor.compact() == 40
        assert editor.compact() == 0
    after = store.read(memory.folder)
    assert found(after, keys + 0.1, 7) == before and len(after) == 40
    np.testing.assert_array_equal(after.keys, memory.keys)
    assert hidden.fingerprint == after.fingerprint == memory.fingerprint
    assert after.version > memory.version


@pytest.mark.parametrize("kind", ["flat", "hnsw", "ivf_sq", "ivf_rabitq"])
def test_a_memory_whose_sources_were_all_removed_is_compacted_and_takes_others(tmp_path, keys, kind):
    recipe = {**RECIPE, "keys": "float16", "index": {"kind": kind, "metric": "cosine", "m": 32, "ef_construction": 40}}
    memory = make(tmp_path / "m", keys, recipe)
    with edit.editing(memory.folder) as editor:
        editor.set_state("train", manifest.REMOVED)
        assert editor.compact() == 40
    assert len(store.read(memory.folder)) == 0
    add(memory.folder, "train", keys[::-1], fingerprint="g")
    expected = make(tmp_path / "anew", keys[::-1], recipe)
    assert found(store.read(memory.folder), keys, 5) == found(expected, keys, 5)


def test_the_fingerprint_is_of_what_can_be_found(memory, keys):
    add(memory.folder, "more", keys + 1)
    more = store.read(memory.folder)
    assert more.fingerprint != memory.fingerprint
    with edit.editing(memory.folder) as editor:
        editor.set_state("more", manifest.DISABLED)
    assert store.read(memory.folder).fingerprint == memory.fingerprint
    with edit.editing(memory.folder) as editor:
        editor.set_state("more", manifest.ENABLED)
    assert store.read(memory.folder).fingerprint == more.fingerprint


def test_a_name_and_images_are_there_once(memory, keys):
    with pytest.raises(BadMemory, match="there is a source 'train' already"):
        add(memory.folder, "train", keys)
    with pytest.raises(BadMemory, match="these images are in the memory already, as source 'train'"):
        add(memory.folder, "again", keys, fingerprint="f")
    with edit.editing(memory.folder) as editor:
        editor.set_state("train", manifest.REMOVED)
    add(memory.folder, "train", keys[:30], fingerprint="f")
    assert store.read(memory.folder).row_of("f", np.array([2], np.int32)).tolist() == [42]
    with edit.editing(memory.folder) as editor, pytest.raises(BadMemory, match="no source 'web'; there are: train"):
        editor.set_state("web", manifest.DISABLED)


def test_an_interrupted_source_is_not_there_and_goes_on(memory, keys):
    more = {"rows": 40, "fingerprint": "g", "origin": "test"}
    with edit.editing(memory.folder) as editor:
        assert editor.start("more", **more) == 0
        editor.append(keys[:15] + 1)
    with (memory.folder / "keys-0.bin").open("ab") as file:
        file.write(b"half a key")
    assert len(store.read(memory.folder)) == 40  # as before
    with edit.editing(memory.folder) as editor:
        with pytest.raises(BadMemory, match="source 'more' is not finished: 15 of 40"):
            editor.start("other", rows=3, fingerprint="h", origin="test")
        with pytest.raises(BadMemory, match="not finished"):
            editor.compact()
        with pytest.raises(BadMemory, match="not finished"):
            editor.set_state("more", manifest.ENABLED)
        assert editor.start("more", **more) == 15
        editor.append(keys[15:] + 1)
        with pytest.raises(ValueError, match="40 keys and 39 texts for 40 rows"):
            editor.finish(columns.make(pa.array(["a"] * 39), ["i"] * 39))
        editor.finish(columns.make(pa.array(["a"] * 40), ["i"] * 40))
    grown = store.read(memory.folder)
    np.testing.assert_array_equal(grown.keys, index.unit(np.concatenate([keys, keys + 1])))
    assert check.problems(memory.folder) == []


def test_an_interrupted_source_can_be_dropped(memory, keys):
    with edit.editing(memory.folder) as editor:
        editor.start("more", rows=40, fingerprint="g", origin="test")
        editor.append(keys + 1)
        editor.set_state("more", manifest.REMOVED)
    add(memory.folder, "more", keys[:7] + 2)
    assert len(store.read(memory.folder)) == 47


def test_keys_that_are_not_numbers_or_of_another_width_are_refused(memory, keys):
    with edit.editing(memory.folder) as editor:
        editor.start("more", rows=40, fingerprint="g", origin="test")
        bad = keys.copy()
        bad[7, 3] = np.nan
        with pytest.raises(edit.NotFinite, match="key 7"):
            editor.append(bad)
        with pytest.raises(BadMemory, match="keys of 5 numbers; this memory's have 8"):
            editor.append(keys[:, :5])
    assert len(store.read(memory.folder)) == 40


def _hold(folder, ready, seconds):
    with edit.editing(folder) as editor:
        ready.set()
        time.sleep(seconds)
        editor.set_state("train", manifest.DISABLED)


def test_one_writer_at_a_time(memory):
    spawn = multiprocessing.get_context("spawn")
    ready = spawn.Event()
    other = spawn.Process(target=_hold, args=(memory.folder, ready, 3))
    other.start()
    assert ready.wait(60)
    with pytest.raises(BadMemory, match="another process is changing the memory"), edit.editing(memory.folder):
        pass
    assert len(store.read(memory.folder)) == 40  # readers are not disturbed
    with edit.editing(memory.folder, wait=True) as editor:
        assert editor.manifest.source("train").state == manifest.DISABLED  # it sees what the other one did
    other.join()


@pytest.mark.parametrize("pattern", ["keys-0.bin", "rows-*.arrow", "classes-*.arrow", "index-*.faiss"])
def test_check_finds_a_flipped_bit(memory, pattern):
    (path,) = memory.folder.glob(pattern)
    assert check.problems(memory.folder) == []
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    (problem,) = check.problems(memory.folder)
    assert path.name in problem and "damaged" in problem


def test_quality_counts_what_the_index_misses(memory, keys):
    good = check.quality(memory, k=5, ef_search=64, queries=40)
    assert (good.recall, good.found_itself, good.queries, good.k) == (1.0, 1.0, 40, 5)
    wrong = dataclasses.replace(memory, index=index.build(index.unit(np.roll(keys, 20, axis=0)), RECIPE["index"]))
    bad = check.quality(wrong, k=5, ef_search=64, queries=40)
    assert (bad.recall, bad.found_itself) == (0.0, 0.0)


@pytest.mark.parametrize("metric", ["cosine", "l2"])
def test_exact_search_of_the_enabled_rows(tmp_path, keys, metric, monkeypatch):
    monkeypatch.setattr(check, "CHUNK", 13)
    memory = make(tmp_path / "m", keys, {**RECIPE, "index": {**RECIPE["index"], "metric": metric}})
    add(memory.folder, "more", keys * 1.5 + 0.01)
    with edit.editing(memory.folder) as editor:
        editor.set_state("train", manifest.DISABLED)
    memory = store.read(memory.folder)
    queries = index.unit(keys[:6]) if metric == "cosine" else keys[:6]
    rows = check.exact(memory, queries, 4)
    stored = np.asarray(memory.keys[40:])
    expected = 40 + np.argsort(((queries[:, None] - stored) ** 2).sum(axis=-1), axis=1)[:, :4]
    np.testing.assert_array_equal(rows, expected)


def test_a_training_image_is_left_out_wherever_its_source_lies(tmp_path, keys, snippets):
    """Twins of the training images come first in the memory, then the images themselves, then hidden twins."""
    edit.create(tmp_path / "m", RECIPE, width=8)
    add(tmp_path / "m", "twins", keys)
    add(tmp_path / "m", "train", keys, fingerprint="f")
    add(tmp_path / "m", "hidden", keys + np.float32(1e-4))
    with edit.editing(tmp_path / "m") as editor:
        editor.set_state("hidden", manifest.DISABLED)
    memory = store.read(tmp_path / "m")
    own = memory.row_of("f", np.arange(40, dtype=np.int32))
    assert own.tolist() == list(range(40, 80))
    snippets = Snippets.tokenise(memory.texts, snippets.tokenizer)
    found = Lookup(memory, snippets, 5, 64, "id").search(keys, own)
    assert not (found.rows == own[:, None]).any()
    np.testing.assert_array_equal(found.rows[:, 0], np.arange(40))  # the twin is no reason to leave anything out
    assert (found.rows < 80).all() and (found.rows >= 0).all()


class FullDisk:
    """Files cannot be written until some bytes are free."""

    def __init__(self, monkeypatch, folder):
        self.folder, self.used = folder, self.bytes(folder)
        write = files.write_text
        monkeypatch.setattr(files, "write_text", lambda path, text: self.check() or write(path, text))

    @staticmethod
    def bytes(folder):
        return sum(path.stat().st_size for path in folder.iterdir())

    def check(self):
        if self.bytes(self.folder) >= self.used:
            raise OSError("cannot be written: No space left on device")


def test_on_a_full_disk_a_source_can_be_removed(memory, monkeypatch):
    FullDisk(monkeypatch, memory.folder)
    with edit.editing(memory.folder) as editor:
        editor.set_state("train", manifest.REMOVED)
    assert store.read(memory.folder).enabled == 0


def test_on_a_full_disk_an_unfinished_source_can_be_removed(memory, keys, monkeypatch):
    with edit.editing(memory.folder) as editor:
        editor.start("more", rows=80, fingerprint="g", origin="test")
        editor.append(keys)
    (memory.folder / manifest.RESERVE).unlink()
    FullDisk(monkeypatch, memory.folder)
    with edit.editing(memory.folder) as editor:
        editor.set_state("more", manifest.REMOVED)
    assert [source.name for source in store.read(memory.folder).manifest.sources] == ["train"]


def test_keys_that_were_cut_off_before_their_source_was_forgotten_are_encoded_again(memory, keys):
    with edit.editing(memory.folder) as editor:
        editor.start("more", rows=40, fingerprint="g", origin="test")
        editor.append(keys[:30])
        path = memory.folder / editor.manifest.keys
    os.truncate(path, path.stat().st_size - 20 * 8 * 4 - 3)
    with edit.editing(memory.folder) as editor:
        assert editor.start("more", rows=40, fingerprint="g", origin="test") == 9
        editor.append(keys[9:])
        editor.finish(columns.make(pa.array(["a"] * 40), ["i"] * 40))
    np.testing.assert_array_equal(store.read(memory.folder).keys[40:], index.unit(keys))
