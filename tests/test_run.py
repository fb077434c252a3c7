import time

import numpy as np
import pytest

from configs import places
from rac_jax import config as configs
from rac_jax import data, optimizer, train
from rac_jax.config import ConfigError
from rac_jax.memory import build, edit, manifest
from rac_jax.retrieval import feed, reliability
from rac_jax.run import Run
from rac_jax.start import values
from tests import tiny
from tests.memory.conftest import add
from tests.retrieval.test_views import config as shared_blocks
from tests.test_configs import images_of


@pytest.mark.parametrize("role", ["base", "encoder", "text"])
def test_missing_weights_are_named_within_seconds(role, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "load", lambda config: images_of("places_lt"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    config = places.get_config()
    wanted = config.model[role].weights
    config.model.base.weights = config.model.encoder.weights = config.model.text.weights = ""
    config.model[role].weights, config.weights_dir = wanted, str(tmp_path)
    started = time.monotonic()
    with pytest.raises(FileNotFoundError, match=f"{wanted} were not found(.|\n)*download(.|\n)*{tmp_path}"):
        Run.from_config(config, tmp_path)
    assert time.monotonic() - started < 20


def test_a_base_only_model_asks_for_no_other_weights(tmp_path):
    config = tiny.config("base")
    config.model.encoder.weights = config.model.text.weights = "nowhere"
    assert Run.from_config(config, tmp_path).retriever is None


def test_an_option_that_a_model_does_not_take_is_refused(tmp_path):
    config = tiny.config("base")
    config.model.base.batch_norm = "update"
    with pytest.raises(
        ConfigError, match=r"config\.model\.base\.batch_norm .* vit_ti16 has no such option; it has .*depth"
    ):
        Run.from_config(config, tmp_path)


def test_a_batch_comes_with_what_the_memory_says_and_without_the_image_itself(tmp_path):
    parts = Run.from_config(tiny.config(), tmp_path)
    images = np.zeros((16, 32, 32, 3), np.uint8)
    ids = np.arange(16, dtype=np.int32)
    transform = data.eval_transform(parts.config)
    for i in range(16):
        images[i] = transform(parts.dataset.split("train").images[i], np.random.default_rng(0))
    batch = {"image": images, "id": ids, "label": ids, "mask": np.ones(16, bool)}
    rows = {training: np.asarray(parts.put(batch, training=training)[1]["rows"]) for training in (True, False)}
    parts.check()
    np.testing.assert_array_equal(rows[False][:, 0], ids)  # the nearest of a known image is itself
    assert not (rows[True] == ids[:, None]).any()
    np.testing.assert_array_equal(rows[True][:, :-1], rows[False][:, 1:])


def test_images_in_the_memory_under_another_name_are_left_out_in_training(tmp_path, caplog):
    """The source `train` is gone, and another one has the same images, as folder:DIR/train of a folder has."""
    config = tiny.config(devices=1)
    configs.instant(config)
    config.memory.k = 5
    parts = Run.from_config(config, tmp_path)
    memory, dataset = parts.retriever.memory, parts.dataset
    labels = dataset.split("train").labels
    with edit.editing(memory.folder) as editor:
        editor.set_state("train", manifest.REMOVED)
    add(memory.folder, "again", np.asarray(memory.keys), classes=dataset.class_names, labels=labels)
    add(memory.folder, "untold", np.asarray(memory.keys[:50]))
    again = Run.from_config(config, tmp_path)
    ids, first = np.arange(len(labels), dtype=np.int32), len(labels)
    own = again.retriever.own_rows(ids, training=True)
    np.testing.assert_array_equal(own, first + ids)
    assert "466 of the training images have copies in other sources" in caplog.text
    left_out = again.retriever.left_out(own)
    assert (left_out["inside"] == 1).all()  # with its label; rows without one are in no mean
    np.testing.assert_array_equal(left_out["own_label"], labels)
    keys = feed.keys_of(config, again.retriever, again.mesh, dataset, "train")
    rows = feed.neighbours_of(again.retriever, dataset, "train", keys, training=True)["rows"]
    assert (rows >= 0).all() and not (rows == own[:, None]).any() and not (rows == own[:, None] + first).any()
    config.memory.duplicates = 0.0
    found = feed.neighbours_of(Run.from_config(config, tmp_path).retriever, dataset, "train", keys, training=True)
    assert (found["rows"] == own[:, None]).any(axis=1).all()  # as was asked for


def test_a_head_of_means_starts_at_random_for_classes_without_rows(tmp_path, caplog):
    config = shared_blocks(devices=1)
    config.memory.keep.classes = 0.8
    run = Run.from_config(config, tmp_path)
    kernel, counts = values.given(run)["base_head.kernel"], run.retriever.memory.class_counts()
    absent = counts == 0
    assert absent.sum() == 2
    assert "2 of 10 classes have no rows in the memory and start at random, as " in caplog.text
    np.testing.assert_allclose(np.linalg.norm(kernel[:, absent], axis=0), 1.0, atol=0.5)
    means = run.retriever.memory.class_sums()[~absent] / counts[~absent, None]
    np.testing.assert_allclose(kernel[:, ~absent], means.T, rtol=1e-5)
    assert np.isfinite(kernel).all() and values.given(run)["base_head.kernel"].tolist() == kernel.tolist()


def test_without_a_base_voice_there_is_no_head_to_start(tmp_path):
    """As in the rows of `reproduce voices` that leave out base."""
    config = shared_blocks(devices=1)
    config.model.voices, config.model.fusion = "vote+prototype", "sum"
    assert config.model.head_start == "means"
    run = Run.from_config(config, tmp_path)
    assert values.given(run) == {}
    state = train.initial_state(run, optimizer.from_config(config, len(run.dataset.split("train"))))
    assert "base_head" not in state.params


def test_damaged_weights_of_b_are_noticed_before_the_memory_is_built(tmp_path):
    (tmp_path / "b.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0not a header")
    config = tiny.config(devices=1)
    config.model.base.weights = str(tmp_path / "b.safetensors")
    with pytest.raises(ValueError, match=r"b\.safetensors"):
        Run.from_config(config, tmp_path / "run")
    assert not (tmp_path / "run" / "memory").exists()


def test_an_edit_weighs_the_rows_again_and_leaves_no_file(tmp_path, monkeypatch):
    config = tiny.config(devices=1)
    configs.instant(config)
    config.model.vote.reliability = 3
    run = Run.from_config(config, tmp_path)
    memory, kept = run.retriever.memory, list((tmp_path / "neighbours").glob("reliability-*"))
    assert len(kept) == 1
    labels = np.roll(run.dataset.split("train").labels[:50], 7)
    add(memory.folder, "wrong", np.asarray(memory.keys[:50]), classes=run.dataset.class_names, labels=labels)
    after = run.with_memory(build.opened(config, memory.folder, memory))
    wrong = reliability.wrong_neighbours(after.retriever.memory, 3, 200)
    np.testing.assert_allclose(after.knowledge.row_weight, 1 / (1 + wrong), rtol=1e-6)
    assert list((tmp_path / "neighbours").glob("reliability-*")) == kept
    monkeypatch.setattr(reliability, "wrong_neighbours", None)  # other images to evaluate on need no new weights
    again = after.with_dataset(after.dataset).knowledge
    np.testing.assert_array_equal(again.row_weight, after.knowledge.row_weight)
    np.testing.assert_allclose(again.class_weight, after.knowledge.class_weight)
