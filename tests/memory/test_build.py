"""What a memory is built from."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pytest

from rac_jax import config as configs
from rac_jax import sharding
from rac_jax.config import ConfigError
from rac_jax.data.sets import digits
from rac_jax.memory import build, check, columns, edit, manifest, sources, store
from rac_jax.models.preprocessing import HALF
from rac_jax.retrieval.encoder import Encoder
from tests.memory.conftest import add


def encode(parameters, images):
    return images.astype(jnp.float32).mean(axis=(2, 3)) * parameters["scale"]


def open_or_build(dataset, folder, *, function=encode, **changes):
    config, encoder, mesh = prepared(function, changes)
    return build.open_or_build(config, dataset, encoder, folder=folder, mesh=mesh)


def open_existing(dataset, folder, **changes):
    config, encoder, _ = prepared(encode, changes)
    return build.open_existing(config, dataset.name, dataset.fingerprint("train"), encoder, folder=folder)


def add_keys(folder, name, keys, function=encode):
    """Add keys made elsewhere, as the command does."""
    config, encoder, mesh = prepared(function, {})
    table = columns.make(pa.array(["x"] * len(keys)), ["i"] * len(keys))
    content = sources.Content("test", "", f"of {name}", table, keys=keys)
    recipe = manifest.read(folder).recipe if manifest.exists(folder) else build.make_recipe(config, encoder)
    build.add(config, recipe, name, content, encoder, folder=folder, mesh=mesh)


def prepared(function, changes):
    config = configs.default()
    config.data.image_size = 16
    with config.unlocked():
        for name, value in changes.items():
            config.memory[name] = value
    mesh = sharding.make_mesh(config)
    parameters = sharding.put_replicated(mesh, {"scale": jnp.float32(1)})
    return config, Encoder(function, parameters, HALF, 16), mesh


def test_keys_of_images_that_were_resized_otherwise_are_refused(tmp_path, monkeypatch):
    dataset = digits.load(0)
    with monkeypatch.context() as earlier:
        earlier.setattr(build.transforms, "RESIZE", 1)
        open_or_build(dataset, tmp_path / "m")
    with pytest.raises(manifest.BadMemory, match=r"preprocessing\.resize: 1 there, 2 wanted"):
        open_existing(dataset, tmp_path / "m")


def test_a_row_for_each_training_image_with_its_classs_text(tmp_path):
    dataset = digits.load(0)
    memory = open_or_build(dataset, tmp_path / "m")
    assert len(memory) == 466 and memory.keys.shape == (466, 16)
    labels = dataset.split("train").labels
    assert [memory.texts[t] for t in memory.text_of[:9]] == [digits.WORDS[label] for label in labels[:9]]
    assert memory.images[465] == "digits/train/465"
    written = (tmp_path / "m" / "manifest.json").stat().st_mtime_ns
    open_or_build(dataset, tmp_path / "m", encode_batch=56)  # reused: the batch changes nothing
    assert (tmp_path / "m" / "manifest.json").stat().st_mtime_ns == written


def test_keys_do_not_depend_on_the_batch(tmp_path):
    dataset = digits.load(0)
    one, other = (open_or_build(dataset, tmp_path / str(b), encode_batch=b) for b in (128, 50))
    np.testing.assert_allclose(one.keys, other.keys, rtol=1e-6)


def test_captions_are_stored_in_place_of_the_classs_text(tmp_path):
    dataset = digits.load(0)
    train = dataset.split("train")
    captions = [f"a {digits.WORDS[label]}" + (" in ink" if i % 2 else "") for i, label in enumerate(train.labels)]
    captioned = dataclasses.replace(train, captions=captions)
    dataset = dataclasses.replace(dataset, splits={**dataset.splits, "train": captioned})
    memory = open_or_build(dataset, tmp_path / "m")
    assert [memory.texts[t] for t in memory.text_of] == captions
    assert len(memory.texts) < 25


@dataclasses.dataclass(frozen=True)
class Counted:
    """Images that note how often each was read."""

    images: object
    positions: np.ndarray
    reads: np.ndarray

    def __len__(self):
        return len(self.positions)

    def __getitem__(self, position):
        self.reads[self.positions[position]] += 1
        return self.images[self.positions[position]]

    def select(self, positions):
        return dataclasses.replace(self, positions=self.positions[positions])

    def references(self):
        return self.images.references()

    def fingerprint(self):
        return self.images.fingerprint()


def counted_digits():
    dataset = digits.load(0)
    train = dataset.split("train")
    images = Counted(train.images, np.arange(len(train)), np.zeros(len(train), int))
    train = dataclasses.replace(train, images=images)
    return dataclasses.replace(dataset, splits={**dataset.splits, "train": train}), images


def test_no_finished_shard_is_encoded_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "SHARD", 64)
    dataset, images = counted_digits()
    append = build._append
    rows = []

    def interrupted(editor, keys, content, done):
        if len(rows) == 3:
            raise KeyboardInterrupt
        append(editor, keys, content, done)
        rows.append(len(keys))

    monkeypatch.setattr(build, "_append", interrupted)
    with pytest.raises(KeyboardInterrupt):
        open_or_build(dataset, tmp_path / "m", encode_batch=32)
    monkeypatch.setattr(build, "_append", append)
    assert rows == [64, 64, 64]
    images.reads[:] = 0
    memory = open_or_build(dataset, tmp_path / "m", encode_batch=32)
    assert (images.reads[:192] == 0).all() and (images.reads[192:] >= 1).all()
    undisturbed = open_or_build(dataset, tmp_path / "other", encode_batch=32)
    np.testing.assert_array_equal(memory.keys, undisturbed.keys)


def test_a_memory_with_further_sources_is_accepted_and_training_images_stay_known(tmp_path):
    dataset = digits.load(0)
    memory = open_or_build(dataset, tmp_path / "m")
    add(memory.folder, "more", np.asarray(memory.keys[:50]) + 1)
    grown = open_or_build(dataset, tmp_path / "m")
    assert len(grown) == 516 and grown.fingerprint != memory.fingerprint
    ids = np.array([0, 465], np.int32)
    assert grown.row_of(dataset.fingerprint("train"), ids).tolist() == [0, 465]


def test_k_larger_than_what_is_enabled(tmp_path):
    dataset = digits.load(0)
    memory = open_or_build(dataset, tmp_path / "m")
    add(memory.folder, "more", np.asarray(memory.keys[:20]) + 1)
    with edit.editing(memory.folder) as editor:
        editor.set_state("train", manifest.DISABLED)
    message = r"config\.memory\.k is 30, but the memory has 20 images \(a further 466 are disabled.*at most 19"
    with pytest.raises(ConfigError, match=message):
        open_or_build(dataset, tmp_path / "m")
    assert open_or_build(dataset, tmp_path / "m", k=19).enabled == 20


def test_commands_that_read_do_not_build(tmp_path, caplog):
    with pytest.raises(FileNotFoundError, match=r"there is no memory in .*typo; check --memory"):
        open_existing(digits.load(0), tmp_path / "typo")
    assert not (tmp_path / "typo").exists()
    built = open_or_build(digits.load(0), tmp_path / "m")
    assert open_existing(digits.load(0), tmp_path / "m").fingerprint == built.fingerprint
    assert "does not hold the training split" not in caplog.text
    assert open_existing(digits.load(1), tmp_path / "m").fingerprint == built.fingerprint  # as for a part of the data
    assert "does not hold the training split of digits" in caplog.text


def test_a_memory_for_other_data_is_refused(tmp_path):
    open_or_build(digits.load(0), tmp_path / "m")
    with pytest.raises(manifest.BadMemory, match="its source 'train' is digits, train, 466 images, and not"):
        open_or_build(digits.load(1), tmp_path / "m")


def test_a_memory_without_the_training_split_is_used_as_it_is_with_a_warning(tmp_path, caplog):
    memory = open_or_build(digits.load(0), tmp_path / "m")
    add(memory.folder, "more", np.asarray(memory.keys[:50]) + 1)
    with edit.editing(memory.folder) as editor:
        editor.set_state("train", manifest.DISABLED)
    assert len(open_or_build(digits.load(0), tmp_path / "m")) == 516 and "not hold" not in caplog.text
    with edit.editing(memory.folder) as editor:
        editor.set_state("train", manifest.REMOVED)
        assert len(open_or_build(digits.load(0), tmp_path / "m")) == 516
        assert "does not hold the training split of digits: training leaves out the rows with the keys" in caplog.text
        caplog.clear()
        editor.compact()
    alone = open_or_build(digits.load(0), tmp_path / "m", duplicates=0.0)
    assert len(alone) == 50 and "no row of an image is left out" in caplog.text
    assert alone.row_of(digits.load(0).fingerprint("train"), np.array([3], np.int32)).tolist() == [-1]


def test_a_key_that_is_not_finite_names_its_image(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "SHARD", 64)

    def sometimes_nan(parameters, images):
        dark = images.astype(jnp.float32).mean(axis=(1, 2, 3), keepdims=False) < jnp.float32(52)
        return jnp.where(dark[:, None], jnp.nan, encode(parameters, images))

    dataset = digits.load(0)
    dark = np.flatnonzero(dataset.split("train").images.pixels.mean(axis=(1, 2, 3)) < 50)
    with pytest.raises(ValueError, match=rf"the key of digits/train/{dark[0]} is not finite"):
        open_or_build(dataset, tmp_path / "m", function=sometimes_nan)


@pytest.mark.parametrize("wrong", ["width", "not finite", "no images"])
def test_an_add_that_fails_leaves_the_memory_as_it_was(tmp_path, wrong):
    before = open_or_build(digits.load(0), tmp_path / "m")
    keys = np.random.default_rng(0).normal(size=(9, 16)).astype(np.float32)
    bad = {"width": keys[:, :5], "not finite": np.where(keys > 1, np.nan, keys), "no images": keys[:0]}[wrong]
    with pytest.raises(ValueError, match=r"keys of 5 numbers|is not finite|has no images"):
        add_keys(tmp_path / "m", "bad", bad)
    after = store.read(tmp_path / "m")
    assert after.manifest.sources == before.manifest.sources and check.problems(tmp_path / "m") == []
    assert (tmp_path / "m" / after.manifest.keys).stat().st_size == before.keys.nbytes
    add_keys(tmp_path / "m", "good", keys)  # nothing is in the way
    assert len(store.read(tmp_path / "m")) == 466 + 9


def test_a_first_add_that_fails_leaves_no_memory(tmp_path):
    keys = np.ones((9, 16), np.float32)
    with pytest.raises(ValueError, match="is not finite"):
        add_keys(tmp_path / "m", "bad", keys * np.nan)
    assert not manifest.exists(tmp_path / "m")
    add_keys(tmp_path / "m", "good", keys)
    assert len(store.read(tmp_path / "m")) == 9


def test_a_bad_image_does_not_block_other_adds(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "SHARD", 64)
    dataset, _ = counted_digits()
    memory = open_or_build(dataset, tmp_path / "m")
    config, encoder, mesh = prepared(encode, {"encode_batch": 32})
    content = sources.of_split(digits.load(0), "test")

    class Bad(type(content.split.images)):
        def __getitem__(self, position):
            if position == 200:
                raise ValueError("a bad image")
            return super().__getitem__(position)

    bad = Bad(**vars(content.split.images))
    content = dataclasses.replace(content, split=dataclasses.replace(content.split, images=bad))
    with pytest.raises(Exception, match="a bad image"):
        build.add(config, memory.recipe, "test", content, encoder, folder=tmp_path / "m", mesh=mesh)
    assert manifest.read(tmp_path / "m").sources == memory.manifest.sources
    add_keys(tmp_path / "m", "good", np.ones((3, 16), np.float32))


def test_an_add_that_is_refused_does_not_touch_what_another_left_unfinished(tmp_path):
    open_or_build(digits.load(0), tmp_path / "m")
    keys = np.ones((5, 16), np.float32)
    with edit.editing(tmp_path / "m") as editor:
        editor.start("interrupted", rows=9, fingerprint="g", origin="test")
        editor.append(keys)
    with pytest.raises(manifest.BadMemory, match="'interrupted' is not finished: 5 of 9 images are encoded"):
        add_keys(tmp_path / "m", "other", keys)
    assert manifest.read(tmp_path / "m").unfinished().encoded == 5
