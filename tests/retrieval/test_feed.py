"""Every way to look up feeds the step with the same neighbours."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest
from flax import nnx

from rac_jax import config as configs
from rac_jax import data
from rac_jax.data import pipeline
from rac_jax.memory import build, edit, index, rows, thumbnails
from rac_jax.models.clip_text import ClipText
from rac_jax.retrieval import feed
from rac_jax.retrieval.lookup import KEEP_ALL, LookupFailed
from rac_jax.retrieval.snippets import Snippets
from rac_jax.run import Run
from tests import tiny


@pytest.fixture(scope="module", params=[1, 8])
def parts(request, tmp_path_factory):
    config = tiny.config(devices=request.param)
    config.eval.batch_size = 16  # E rounds alike in all batches of a size
    return Run.from_config(config, tmp_path_factory.mktemp("feed"))


def train_batches(parts, number, start=0):
    split, transform = parts.dataset.split("train"), data.train_transform(parts.config)
    batches = pipeline.train_batches(split, transform, batch_size=16, seed=0, workers=0, start=start)
    return list(itertools.islice(batches, number))


def fed(parts, lookup, batches, training=True):
    parts.config.memory.lookup = lookup
    return [jax.device_get(pair) for pair in parts.feed(batches, split="train", training=training)]


def assert_same_neighbours(found, expected):
    """Keys from the memory have unit length, those of E have not: directions are compared."""
    for (batch, mine), (other, theirs) in zip(found, expected, strict=True):
        jax.tree.map(np.testing.assert_array_equal, batch, other)
        keys = [side["key"] / np.linalg.norm(side["key"], axis=1, keepdims=True) for side in (mine, theirs)]
        np.testing.assert_allclose(*keys, atol=1e-4)
        for name in ("rows", "inside"):
            np.testing.assert_array_equal(mine[name], theirs[name])
        tokens, whole = mine["tokens"], theirs["tokens"]
        np.testing.assert_array_equal(np.pad(tokens, ((0, 0), (0, whole.shape[1] - tokens.shape[1]))), whole)
        np.testing.assert_allclose(mine["similarities"], theirs["similarities"], atol=1e-5)


@pytest.mark.parametrize(
    "backend, index, expected",
    [
        ("cpu", "hnsw", "callback"),
        ("gpu", "hnsw", "pipelined"),
        ("tpu", "flat", "pipelined"),
        ("gpu", "device", "callback"),
    ],
)
def test_auto_is_pipelined_where_a_callback_would_stall_the_device(backend, index, expected, monkeypatch):
    config = configs.default()
    config.memory.index = index
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    assert feed.lookup_of(config) == expected
    config.memory.lookup = "cached"
    assert feed.lookup_of(config) == "cached"


def test_an_augmented_image_comes_with_the_key_of_its_own_row_if_a_voice_needs_it(parts):
    needing = dataclasses.replace(parts, retriever=dataclasses.replace(parts.retriever, own_keys=True))
    batches, memory = train_batches(parts, 2), parts.retriever.memory
    for lookup in ("callback", "pipelined"):
        for batch, found in fed(needing, lookup, batches):
            np.testing.assert_array_equal(found["own_key"], memory.keys[batch["id"]])
            assert np.abs(found["own_key"] - index.unit(found["key"])).max() > 0.01
    for run, lookup, training in ((parts, "callback", True), (needing, "callback", False), (needing, "cached", True)):
        assert all("own_key" not in found for _, found in fed(run, lookup, batches, training))


def test_every_batch_of_training_has_the_same_arrays_also_without_an_own_row(parts):
    """A step is compiled for these arrays, on each of several processes."""
    needing = dataclasses.replace(parts.retriever, own_keys=True)
    some, none = (needing.left_out(np.array(own, np.int32)) for own in ([3, -1], [-1, -1]))
    assert some.keys() == none.keys() and "own_key" in none
    assert none["inside"].tolist() == [0, 0] and none["own_label"].tolist() == [-1, -1]
    assert "own_key" not in needing.left_out(needing.own_rows(np.array([3, 4], np.int32), training=False))


@pytest.mark.parametrize("exclude", ["id", "first", "none"])
def test_counts_and_means_leave_out_the_image_however_its_row_is_left_out_of_the_neighbours(parts, exclude):
    lookup = dataclasses.replace(parts.retriever.lookup, exclude=exclude)
    found = dataclasses.replace(parts.retriever, lookup=lookup).left_out(np.array([3, -1, 7], np.int32))
    labels = np.asarray(parts.retriever.knowledge.row_label)
    assert found["inside"].tolist() == found["own_weight"].tolist() == [1, 0, 1]
    assert found["own_label"].tolist() == [labels[3], -1, labels[7]]


@pytest.mark.parametrize("training", [True, False])
def test_pipelined_finds_exactly_what_the_callback_finds(parts, training):
    batches = train_batches(parts, 6)
    expected = fed(parts, "callback", batches, training)
    found = fed(parts, "pipelined", batches, training)
    assert len(found) == len(expected) == 6
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert len({pair[1]["rows"].tobytes() for pair in found}) == 6  # each batch has neighbours of its own


def test_a_failure_in_the_thread_is_raised_by_check(parts, monkeypatch):
    monkeypatch.setattr(parts.retriever.lookup, "search", lambda *_: 1 / 0)
    (_, found), *_ = fed(parts, "pipelined", train_batches(parts, 2))
    assert (found["rows"] == -1).all()
    with pytest.raises(LookupFailed, match="division by zero"):
        parts.check()


def test_a_feed_that_is_left_early_ends_its_thread(parts):
    parts.config.memory.lookup = "pipelined"
    batches = parts.feed(iter(train_batches(parts, 5)), split="train", training=True)
    next(batches)
    batches.close()
    assert list(batches) == []


def plain_batch(parts, ids):
    split, transform = parts.dataset.split("train"), data.eval_transform(parts.config)
    images = np.stack([transform(split.images[i], np.random.default_rng(0)) for i in ids])
    ids = np.array(ids, np.int32)
    return {"image": images, "label": split.labels[ids], "id": ids, "mask": np.ones(len(ids), bool)}


def test_cached_neighbours_are_those_of_the_plain_images_and_are_found_once(parts, monkeypatch):
    plain = [plain_batch(parts, range(start, start + 16)) for start in (0, 450)]
    expected = fed(parts, "callback", plain)
    found = fed(parts, "cached", plain)
    assert_same_neighbours(found, expected)
    monkeypatch.setattr(parts.retriever.lookup, "search", lambda *_: 1 / 0)  # the index is not asked again
    augmented = fed(parts, "cached", train_batches(parts, 2))
    for batch, neighbours in augmented:
        assert not (neighbours["rows"] == batch["id"][:, None]).any()
    (_, again), *_ = fed(parts, "cached", plain)
    np.testing.assert_array_equal(again["rows"], expected[0][1]["rows"])


def test_cached_neighbours_for_evaluation_are_others_than_for_training(parts):
    plain = [plain_batch(parts, range(16))]
    expected = fed(parts, "callback", plain, training=False)
    found = fed(parts, "cached", plain, training=False)
    assert_same_neighbours(found, expected)
    np.testing.assert_array_equal(found[0][1]["rows"][:, 0], np.arange(16))


def test_what_is_padding_in_every_cached_sequence_is_not_fed(tmp_path):
    config = tiny.config(devices=1)
    config.memory.k = 3
    parts = Run.from_config(config, tmp_path)
    plain = [plain_batch(parts, range(16))]
    (_, whole), (_, cut) = *fed(parts, "callback", plain), *fed(parts, "cached", plain)
    assert whole["tokens"].shape == (16, 77)
    assert cut["tokens"].shape == (16, feed.ROUNDED)  # start, "seven, seven, seven", end
    t = ClipText(**tiny.TINY_TEXT, rngs=nnx.Rngs(0))
    np.testing.assert_allclose(*(t(found["tokens"]) for found in (whole, cut)), atol=1e-6)


def test_longer_texts_in_the_memory_widen_what_is_fed(tmp_path, monkeypatch):
    config = tiny.config(devices=1)
    config.memory.k = 3
    parts = Run.from_config(config, tmp_path)
    longer = Snippets.tokenise(["seven of nine" + " or ten" * 6] * 10, parts.retriever.lookup.snippets.tokenizer)
    monkeypatch.setattr(parts.retriever.lookup, "snippets", longer)
    (_, found), *_ = fed(parts, "cached", [plain_batch(parts, range(16))])
    expected = longer.join(np.zeros((16, 3), int))
    assert found["tokens"].shape == (16, 64)  # 3 × 15 ids, two commas, start and end
    np.testing.assert_array_equal(found["tokens"], expected[:, :64])
    assert not expected[:, 64:].any()


def test_on_the_devices_the_same_neighbours_are_found_as_by_a_flat_index(tmp_path):
    found = {}
    for kind in ("flat", "device"):
        config = tiny.config()
        config.memory.index, config.memory.device_dtype = kind, "float32"
        config.memory.dir = str(tmp_path / "memory")  # the devices want no index of their own: it is the same memory
        parts = Run.from_config(config, tmp_path)
        found[kind] = fed(parts, "callback", train_batches(parts, 2))
    for (_, device), (_, flat) in zip(found["device"], found["flat"], strict=True):
        np.testing.assert_array_equal(device["rows"], flat["rows"])
        np.testing.assert_array_equal(device["tokens"], flat["tokens"])
        np.testing.assert_allclose(device["similarities"], flat["similarities"], rtol=1e-5)


def test_cached_neighbours_after_compacting_are_those_of_the_rows_that_are_left(tmp_path):
    """The taught rows have the keys of test images 0, 1 and 2; the first two are removed again."""
    config = tiny.config(devices=1)
    config.memory.index = "flat"
    parts = Run.from_config(config, tmp_path)
    keys = feed.keys_of(config, parts.retriever, parts.mesh, parts.dataset, "test")
    first = len(parts.retriever.memory)

    def edited(change):
        with edit.editing(tmp_path / "memory") as editor:
            change(editor)
        run = parts.with_memory(build.opened(config, tmp_path / "memory"))
        found = feed.neighbours_of(run.retriever, run.dataset, "test", keys[:9], training=False)
        assert found["rows"].tolist() == run.retriever.lookup.search(keys[:9], np.full(9, KEEP_ALL)).rows.tolist()
        return found["rows"][:3, 0] - first

    for number in range(3):
        jpeg = thumbnails.encode(np.zeros((8, 8, 3), np.uint8), 8)
        row = rows.Row(keys[number], "seven", "seven", f"image{number}", jpeg)
        nearest = edited(lambda editor, row=row: rows.add(editor, "taught", row))
    assert nearest.tolist() == [0, 1, 2]
    assert edited(lambda editor: rows.remove(editor, first))[2] == 2
    assert edited(lambda editor: rows.remove(editor, first + 1))[2] == 2
    assert edited(lambda editor: editor.compact())[2] == 0
