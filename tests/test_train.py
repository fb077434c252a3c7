"""A whole run, made small: the same numbers on any number of devices and after any interruption."""

import itertools
import json
import logging
import shutil
import warnings

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rac_jax import evaluate, optimizer, train
from rac_jax.checkpoints import Checkpoints
from rac_jax.config import ConfigError
from rac_jax.memory.store import BadMemory
from rac_jax.memory.store import read as read_memory
from rac_jax.retrieval.lookup import LookupFailed
from rac_jax.run import Run
from tests import tiny
from tests.memory.conftest import add


def events(workdir):
    accumulator = EventAccumulator(str(workdir / "tensorboard"))
    accumulator.Reload()
    return accumulator


def run(config, workdir):
    train.train(config, workdir)
    return losses_of(workdir)


def losses_of(workdir):
    return [point.value for point in events(workdir).Scalars("train/loss")]


def saved_state(config, workdir, step):
    """Everything a checkpoint holds, as numpy arrays."""
    state_only = ocp.args.Composite(state=ocp.args.PyTreeRestore())
    # It warns that arrays are placed as they were saved, which is meant.
    with Checkpoints.open(workdir, config) as checkpoints, warnings.catch_warnings(action="ignore"):
        return jax.tree.map(np.asarray, checkpoints.manager.restore(step, args=state_only)["state"])


def latest(config, workdir):
    with Checkpoints.open(workdir, config) as checkpoints:
        return checkpoints.latest()


@pytest.fixture(scope="module")
def eight(trained):
    """20 steps on 8 devices, with augmentation and stochastic depth: (losses, workdir)."""
    return losses_of(trained), trained


MESHES = [
    (2, 4, 2),
    (3, 1, 1),
    *(pytest.param(*mesh, marks=pytest.mark.slow) for mesh in [(1, 1, 4), (2, 1, 1), (5, 1, 3)]),
]


@pytest.mark.parametrize("data, fsdp, accumulate", MESHES)
def test_the_same_losses_on_other_meshes_and_in_parts(eight, tmp_path, data, fsdp, accumulate):
    """A batch of 16 is filled up to 18 rows for 3 devices, and to 30 for 5 in 3 parts."""
    config = tiny.config(devices=data)
    config.mesh.fsdp, config.train.accumulate = fsdp, accumulate
    config.memory.dir = str(eight[1] / "memory")
    config.train.steps = 20
    losses = run(config, tmp_path)
    assert len(losses) == 20
    np.testing.assert_allclose(losses, eight[0], rtol=1e-4)
    found = json.loads((tmp_path / "eval" / "test.json").read_text())
    expected = json.loads((eight[1] / "eval" / "test.json").read_text())
    # one image of 250 may fall to the other side of a tie
    for voice, accuracy in expected["voices"].items():
        assert found["voices"][voice]["all"] == pytest.approx(accuracy["all"], abs=0.0041)


def test_losses_of_the_voices_are_added_with_their_weight(tmp_path):
    first = {}
    for weight in (0.0, 0.5, 1.0):
        config = tiny.config(devices=1)
        config.loss.own, config.train.steps = weight, 1
        config.memory.dir = str(tmp_path / "memory")
        (first[weight],) = run(config, tmp_path / str(weight))
    assert first[1.0] - first[0.0] == pytest.approx(2 * (first[0.5] - first[0.0]), rel=1e-4)
    assert first[1.0] > first[0.0] + 2  # two losses of about ln 10


def test_the_loss_falls(eight):
    assert np.mean(eight[0][-5:]) < np.mean(eight[0][:5]) - 0.1


def test_a_checkpoint_of_eight_devices_evaluates_on_one_with_the_same_table(eight, tmp_path):
    workdir = shutil.copytree(eight[1], tmp_path / "run")
    before = json.loads((workdir / "eval" / "test.json").read_text())
    counts = (workdir / "eval" / "test_classes.json").read_text()
    evaluate.evaluate_checkpoint(tiny.config(devices=1), workdir, step=20, split="test")
    after = json.loads((workdir / "eval" / "test.json").read_text())
    assert after.pop("calibration_error") == pytest.approx(before.pop("calibration_error"), abs=1e-5)
    assert after == before
    assert (workdir / "eval" / "test_classes.json").read_text() == counts


def test_fsdp_splits_parameters_and_optimiser_state(tmp_path):
    from rac_jax import optimizer

    config = tiny.config(devices=2)
    config.mesh.fsdp = 4
    parts = Run.from_config(config, tmp_path)
    state = train.initial_state(parts, optimizer.from_config(config, 466))
    embedding = state.params["text"]["token_embedding"]
    assert embedding.addressable_shards[0].data.shape == (49408 // 4, 32)
    moments = [leaf for leaf in jax.tree.leaves(state.opt_state) if leaf.shape == embedding.shape]
    assert len(moments) == 2
    assert all(m.addressable_shards[0].data.shape == (49408 // 4, 32) for m in moments)
    head = state.params["base_head"]["kernel"]  # [32, 10]: too small, and the classes are never split
    assert head.addressable_shards[0].data.shape == (32, 10)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """9 steps on one device without interruption: the state and the losses."""
    workdir = tmp_path_factory.mktemp("whole")
    config = tiny.config(devices=1)
    config.train.steps, config.checkpoint.every = 9, 4
    losses = run(config, workdir)
    return saved_state(config, workdir, 9), losses, workdir


def assert_same(found, expected):
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_a_capped_run_continues_to_the_same_parameters_bit_for_bit(whole, tmp_path):
    config = tiny.config(devices=1)
    config.train.steps = 5
    train.train(config, tmp_path)
    config.train.steps = 9
    train.train(config, tmp_path)
    assert_same(saved_state(config, tmp_path, 9), whole[0])
    losses = {p.step: p.value for p in events(tmp_path).Scalars("train/loss")}
    assert [losses[step] for step in range(1, 10)] == whole[1]


def test_pipelined_lookups_end_with_the_callbacks_parameters_bit_for_bit_also_when_interrupted(whole, tmp_path):
    config = tiny.config(devices=1)
    config.memory.lookup, config.train.steps = "pipelined", 5
    train.train(config, tmp_path)
    config.train.steps = 9
    train.train(config, tmp_path)
    assert_same(saved_state(config, tmp_path, 9), whole[0])


def test_cached_lookups_are_the_same_after_an_interruption(whole, tmp_path):
    config = tiny.config(devices=1)
    config.memory.lookup, config.memory.dir = "cached", str(whole[2] / "memory")
    ends = []
    for workdir, stops in ((tmp_path / "one", (4,)), (tmp_path / "two", (2, 4))):
        for config.train.steps in stops:
            train.train(config, workdir)
        ends.append(saved_state(config, workdir, 4))
    assert_same(*ends)
    kept = sorted(path.name.partition("-")[0] for path in (tmp_path / "two" / "neighbours").iterdir())
    assert kept == ["eval_test", "eval_val", "train", "view0_test", "view0_val"]


def test_prototypes_learn_the_same_from_every_lookup_if_images_are_not_augmented(tmp_path):
    c = tiny.config(devices=2)
    c.model.voices, c.model.fusion, c.model.prototype.rank = "vote+prototype", "sum", 4
    c.data.update(crop_scale=(1.0, 1.0), crop_ratio=(1.0, 1.0), flip=0.0, randaugment_layers=0)
    c.data.train_interpolation = c.data.interpolation
    c.memory.index, c.optim.learning_rate = "flat", 0.05
    made, tx, found = Run.from_config(c, tmp_path), optimizer.from_config(c, 466), {}
    step = train.compiled_step(made, tx)
    for lookup in ("callback", "pipelined", "cached"):
        made.config.memory.lookup = lookup
        state = train.initial_state(made, tx)
        for batch, near in itertools.islice(made.feed(train._batches(made, 0), split="train", training=True), 4):
            state, metrics = step(state, batch, near, made.knowledge)
            found.setdefault(lookup, []).append(float(metrics["loss"]))
    assert found["callback"] == found["pipelined"] and found["callback"][3] != found["callback"][0]
    np.testing.assert_allclose(found["cached"], found["callback"], rtol=1e-4)


def test_a_run_that_dies_between_checkpoints_ends_with_the_same_parameters(whole, tmp_path, monkeypatch):
    config = tiny.config(devices=1)
    config.train.steps, config.checkpoint.every = 9, 4
    original = train.pipeline.train_batches

    class Dies(RuntimeError):
        pass

    def dying(*args, **kwargs):
        batches = original(*args, **kwargs)

        yield from itertools.islice(batches, 6)
        raise Dies

    with monkeypatch.context() as patch:
        patch.setattr(train.pipeline, "train_batches", dying)
        with pytest.raises(Dies):
            train.train(config, tmp_path)
    assert latest(config, tmp_path) == 4
    train.train(config, tmp_path)
    assert_same(saved_state(config, tmp_path, 9), whole[0])


def test_a_finished_run_is_only_evaluated_again(whole, capsys):
    _, losses, workdir = whole
    config = tiny.config(devices=1)
    config.train.steps, config.checkpoint.every = 9, 4
    (workdir / "eval" / "test.json").unlink()
    train.train(config, workdir)
    assert len(events(workdir).Scalars("train/loss")) == len(losses)
    assert json.loads((workdir / "eval" / "test.json").read_text())["step"] == 9
    assert "voice" in capsys.readouterr().out


def test_a_memory_that_has_changed_is_used_as_it_is_and_the_run_says_so(eight, tmp_path, caplog):
    workdir = tmp_path / "run"
    shutil.copytree(eight[1], workdir)
    before = json.loads((workdir / "eval" / "test.json").read_text())
    config = tiny.config(devices=1)
    keys = np.asarray(read_memory(workdir / "memory").keys[:20])
    add(workdir / "memory", "more", keys + np.float32(0.001), texts=("a digit",))
    caplog.set_level(logging.WARNING, logger="absl")
    evaluate.evaluate_checkpoint(config, workdir, step=20, split="test")
    assert "step 20 was trained with train 466" in caplog.text and "now it has train 466, more 20" in caplog.text
    after = json.loads((workdir / "eval" / "test.json").read_text())
    assert before["sources"] == {"train": 466}
    assert after["sources"] == {"train": 466, "more": 20} and after["memory"] != before["memory"]


def test_a_folder_of_a_run_with_other_settings_is_refused(whole):
    config = tiny.config(devices=1)
    config.loss.name = "ce"
    with pytest.raises(ConfigError, match=r"loss\.name: 'lace' there, 'ce' now"):
        train.train(config, whole[2])


def test_a_memory_of_another_encoder_is_refused(whole, tmp_path):
    config = tiny.config(devices=1)
    config.memory.dir = str(whole[2] / "memory")
    config.model.encoder.weights = ""
    with pytest.raises(BadMemory, match=r"encoder\.weights: '[0-9a-f]{64}' there, 'random' wanted"):
        train.train(config, tmp_path)


def test_k_larger_than_the_memory_is_refused(tmp_path):
    config = tiny.config(devices=1)
    config.memory.k = 466
    with pytest.raises(ConfigError, match=r"config\.memory\.k is 466.*at most 465"):
        train.train(config, tmp_path)


def test_a_failing_lookup_stops_the_run_with_its_message_and_saves_nothing(tmp_path, monkeypatch):
    from rac_jax.memory import index

    config = tiny.config()
    config.train.steps = 5

    original, calls = index.search, itertools.count()

    def breaking(*arguments):
        if next(calls) > 0:  # the first is the run's own, at its start
            raise OSError("the index is gone")
        return original(*arguments)

    monkeypatch.setattr(index, "search", breaking)
    with pytest.raises(LookupFailed, match="the index is gone"):
        train.train(config, tmp_path)
    assert latest(config, tmp_path) is None


@pytest.mark.parametrize("variant, voices", [("base", ["base"]), ("text", ["text"])])
def test_single_voices(tmp_path, variant, voices):
    config = tiny.config(variant)
    config.train.steps = 2
    train.train(config, tmp_path)
    result = json.loads((tmp_path / "eval" / "test.json").read_text())
    assert list(result["voices"]) == voices
    assert (tmp_path / "memory").exists() == (variant == "text")


def test_what_a_run_writes(eight):
    _, workdir = eight
    result = json.loads((workdir / "eval" / "test.json").read_text())
    assert {k: result[k] for k in ("split", "step", "images", "classes")} == {
        "split": "test", "step": 20, "images": 250, "classes": 10
    }  # fmt: skip
    assert list(result["voices"]) == ["rac", "base", "text"]
    classes = json.loads((workdir / "eval" / "test_classes.json").read_text())
    assert classes["images"] == [25] * 10 and classes["train_images"][0] == 150
    for branch, accuracy in result["voices"].items():
        assert list(accuracy) == ["all", "many", "medium", "few", "top5"]
        right = classes[branch]["correct"]
        assert accuracy["all"] == sum(right) / 250
        assert accuracy["many"] == sum(right[:2]) / 50
        assert accuracy["medium"] == sum(right[2:6]) / 100
        assert accuracy["few"] == sum(right[6:]) / 100
        assert accuracy["top5"] == sum(classes[branch]["correct_top5"]) / 250 >= accuracy["all"]
    assert 100 < sum(classes["nearest"]["correct"]) < 220  # E alone: far above chance, far below right
    stored = json.loads((workdir / "config.json").read_text())
    assert stored["train"]["batch_size"] == 16


def test_tensorboard_events(eight):
    _, workdir = eight
    board = events(workdir)
    tags = board.Tags()
    for name in ("loss", "learning_rate", "gradient_norm", "images_per_second", "lookup_ms", "accuracy_rac",
                 "accuracy_base", "accuracy_text", "neighbours_of_true_class"):  # fmt: skip
        assert len(board.Scalars(f"train/{name}")) == 20
    for branch in ("rac", "base", "text"):
        for group in ("all", "many", "medium", "few", "top5"):
            assert 0 <= board.Scalars(f"test/{branch}/{group}")[0].value <= 1
    shares = [point.value for point in board.Scalars("train/neighbours_of_true_class")]
    assert 0.1 < np.mean(shares) < 0.95  # the memory knows something, and not the query itself
    assert len(tags["images"]) == 8
    assert max(board.Images(tag)[0].width for tag in tags["images"]) > 9 * 96  # an image beside its neighbours
    text = board.Tensors("config")[0].tensor_proto.string_val[0].decode()
    assert '"batch_size": 16' in text
    assert "_hparams_/session_start_info" in tags["tensors"]
    assert board.Scalars("train/learning_rate")[0].value == pytest.approx(1e-7)


@pytest.mark.parametrize("devices, parts", [(1, 4), (2, 2), (4, 3)])
def test_an_example_has_the_same_key_in_every_part_and_stays_on_its_device(devices, parts):
    keys = jax.random.key_data(train.example_keys(3, np.int32(7), 48))
    longer = jax.random.key_data(train.example_keys(3, np.int32(7), 51))  # filled up for other devices
    np.testing.assert_array_equal(longer[:48], keys)
    assert len(np.unique(np.asarray(keys), axis=0)) == 48
    positions = np.arange(48)
    mine = [train.part_of(positions, part, parts, devices) for part in range(parts)]
    assert sorted(np.concatenate(mine)) == list(range(48))
    for part in range(parts):
        np.testing.assert_array_equal(train.part_of(keys, part, parts, devices), keys[mine[part]])
        of_first_device = [i for i in mine[part] if i < 48 // devices]
        assert len(of_first_device) == 48 // devices // parts
