"""The voices of a whole run: on any number of devices, by any lookup, and after edits of the memory."""

import json
import shutil

import jax
import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from rac_jax import config as configs
from rac_jax import data, evaluate, predict, train
from rac_jax.config import ConfigError
from rac_jax.memory import columns, edit, manifest, store
from rac_jax.memory import index as index_
from rac_jax.retrieval import feed
from rac_jax.runtime import workdirs
from tests import tiny


def instant(devices=1, **fields):
    c = tiny.config(devices=devices)
    configs.instant(c)
    c.memory.k, c.train.batch_size, c.train.epochs = 9, 64, 2.0
    for name, value in fields.items():
        c.memory[name] = value
    return c


def table(workdir, split="test"):
    return json.loads((workdir / "eval" / f"{split}.json").read_text())


def answers(config, workdir):
    """What each voice says about the test images: label and probability."""
    run, params, stats, _ = evaluate.restore(config, workdir, None, split="test")
    _, predicted = evaluate.answers(run, params, stats, "test")
    return {voice: (votes.label, votes.probability) for voice, votes in predicted.votes.items()}, predicted, run


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on keys: its folder, and what its voices say."""
    workdir = tmp_path_factory.mktemp("instant")
    config = instant()
    train.train(config, workdir)
    return workdir, answers(config, workdir)[0]


@pytest.fixture
def copy(trained, tmp_path):
    shutil.copytree(trained[0], tmp_path / "run")
    return tmp_path / "run"


def test_no_image_is_decoded_in_training_and_the_voices_beat_the_nearest_neighbour(trained):
    workdir, said = trained
    result = table(workdir)
    assert list(result["voices"]) == ["rac", "vote", "prototype"] and list(said) == list(result["voices"])
    classes = json.loads((workdir / "eval" / "test_classes.json").read_text())
    nearest = sum(classes["nearest"]["correct"]) / 250
    assert result["voices"]["vote"]["all"] > nearest - 0.02 and result["voices"]["prototype"]["all"] > 0.5
    assert -8 <= result["offset"] <= 2


@pytest.mark.parametrize("lookup", ["pipelined", pytest.param("callback", marks=pytest.mark.slow)])
def test_any_lookup_on_eight_devices_gives_the_same_answers(trained, copy, lookup):
    config, expected = instant(devices=8, lookup=lookup), trained[1]
    workdirs.write_config(config, copy)  # as if it had been trained so
    run, params, stats, _ = evaluate.restore(config, copy, None, split="test")
    _, predicted = evaluate.answers(run, params, stats, "test")
    for voice, (labels, probabilities) in expected.items():
        votes = predicted.votes[voice]
        assert (votes.label == labels).mean() > 0.98, voice
        np.testing.assert_allclose(votes.probability, probabilities, atol=0.02)


SLOW_INDEXES = ("flat", "hnsw_sq", "ivf_sq", "ivf_rabitq")


@pytest.mark.parametrize("index", ["device", *(pytest.param(kind, marks=pytest.mark.slow) for kind in SLOW_INDEXES)])
def test_any_index_gives_the_same_votes_and_prototypes(trained, tmp_path, index):
    config = instant(index=index, device_dtype="float32", lookup="callback")
    config.train.epochs = 0.0
    train.train(config, tmp_path)
    said, _, run = answers(config, tmp_path)
    assert (said["vote"][0] == trained[1]["vote"][0]).mean() > 0.98
    memory, keys = run.retriever.memory, feed.keys_of(config, run.retriever, run.mesh, run.dataset, "test")
    labels, rows = memory.label_of, np.asarray(memory.keys, np.float32)
    means = np.stack([rows[labels == label].mean(axis=0) for label in range(10)])
    unit = [index_.unit(vectors - means.mean(axis=0)) for vectors in (keys, means)]
    assert (said["prototype"][0] == (unit[0] @ unit[1].T).argmax(axis=1)).mean() > 0.98


def test_without_training_a_run_is_saved_and_answers(tmp_path):
    config = instant()
    config.train.epochs, config.model.voices = 0.0, "vote"
    train.train(config, tmp_path)
    result = table(tmp_path)
    assert result["step"] == 0 and list(result["voices"]) == ["vote"]
    assert answers(config, tmp_path)[1].right("vote").mean() == pytest.approx(result["voices"]["vote"]["all"])


def test_a_run_without_training_predicts_and_follows_its_memory(tmp_path):
    config = instant(k=5)
    config.train.epochs = 0.0
    train.train(config, tmp_path, evaluated=False)

    def predicted():
        run, params, stats, step = evaluate.restore(config, tmp_path, None, split="test")
        images = [run.dataset.split("test").images[place] for place in range(0, 250, 50)]
        assert step == 0
        return [answer["label"] for answer in predict.predict(run, params, stats, images)]

    evaluated, _, run = answers(config, tmp_path)
    assert predicted() == [run.classes.names[label] for label in evaluated["rac"][0][::50]]
    memory = store.read(tmp_path / "memory")
    few = np.concatenate([np.flatnonzero(memory.label_of == label)[:5] for label in (0, 1)])
    add_rows(tmp_path / "memory", memory.keys[few], ["0"] * 5 + ["new"] * 5)
    with edit.editing(tmp_path / "memory") as editor:
        editor.set_state("train", manifest.DISABLED)
    assert set(predicted()) <= {"0", "new"}


def test_a_run_without_training_keeps_the_head_that_it_saved_when_its_memory_changes(tmp_path):
    config = instant(k=5)
    config.train.epochs, config.model.voices = 0.0, "base+vote"
    config.model.base.update(name="keys", weights="")
    config.model.head, config.model.head_start = "cosine", "means"
    train.train(config, tmp_path, evaluated=False)
    memory = store.read(tmp_path / "memory")
    add_rows(tmp_path / "memory", memory.keys[:200], [str((int(label) + 1) % 10) for label in memory.label_of[:200]])
    train.train(config, tmp_path)
    _, counts, _ = answers(config, tmp_path)
    assert table(tmp_path)["voices"]["base"]["all"] == pytest.approx(counts.right("base").mean())


def add_rows(folder, keys, labels, source="more"):
    with edit.editing(folder) as editor:
        editor.start(source, rows=len(keys), fingerprint=source, origin="test")
        editor.append(np.asarray(keys, np.float32))
        images, classes = [f"{source}/{i}" for i in range(len(keys))], sorted(set(labels))
        numbers = np.array([classes.index(label) for label in labels], np.int32)
        editor.finish(columns.make(pa.array(labels), images, numbers), classes)


def test_a_class_that_only_the_memory_has_is_answered_and_goes_with_its_rows(trained, copy):
    config, before = instant(), trained[1]
    run, *_ = evaluate.restore(config, copy, None, split="test")
    nines = np.flatnonzero(run.dataset.split("test").labels == 9)[:9]  # fewer than the trained nines they resemble
    keys = np.load(next((copy / "neighbours").glob("view0_test-*.npy")))["key"]
    add_rows(copy / "memory", keys[nines], ["the ninth"] * len(nines))  # under another name: a new class
    said, _, run = answers(config, copy)
    assert run.classes.names[-1] == "the ninth" and run.classes.trained == 10
    new = said["vote"][0][nines] == 10
    assert new.mean() > 0.5
    assert table(copy)["classes"] == 10  # written before the edit
    evaluate.evaluate_checkpoint(config, copy, step=None, split="test")
    assert table(copy)["classes"] == 11 and "new" not in table(copy)["voices"]["rac"]  # no test image has that label
    with edit.editing(copy / "memory") as editor:
        editor.set_state("more", manifest.REMOVED)
    after = answers(config, copy)[0]
    for voice in before:
        np.testing.assert_array_equal(after[voice][0], before[voice][0])
        np.testing.assert_allclose(after[voice][1], before[voice][1], rtol=1e-5)


def test_a_run_is_evaluated_on_a_folder_of_its_classes(trained, copy, tmp_path):
    split = data.load(instant()).split("test")
    for number in np.unique(split.labels, return_index=True)[1]:  # an image of each class
        folder = tmp_path / "photos" / data.load(instant()).class_names[split.labels[number]]
        folder.mkdir(parents=True)
        Image.fromarray(split.images[number]).save(folder / "1.png")
    config = instant()
    config.data.name, config.data.root = "folder", str(tmp_path / "photos")
    evaluate.evaluate_checkpoint(config, copy, step=None, split="test")
    found = table(copy)
    assert found["images"] == 10 and found["voices"]["rac"]["all"] >= 0.5
    config.memory.k = 3  # other settings are still refused
    with pytest.raises(ConfigError, match=r"holds a run with other settings:\n  memory\.k: 9 there, 3 now\n"):
        evaluate.evaluate_checkpoint(config, copy, step=None, split="test")
    config.memory.k = 9
    with pytest.raises(ConfigError, match=r"data\.name: 'digits' there, 'folder' now"):
        train.train(config, copy)


def test_rows_added_to_a_class_move_its_prototype_and_its_count(trained, copy):
    config = instant()
    memory = store.read(copy / "memory")
    rows = np.flatnonzero(memory.label_of == 9)
    add_rows(copy / "memory", np.asarray(memory.keys[rows]), ["9"] * len(rows))
    run, *_ = evaluate.restore(config, copy, None, split="test")
    assert float(run.knowledge.counts[9]) == 2 * len(rows)
    np.testing.assert_allclose(run.knowledge.sums[9], 2 * memory.class_sums()[9], rtol=1e-5, atol=1e-6)


def test_predict_names_labels_of_voices_and_neighbours(trained, tmp_path):
    from PIL import Image

    workdir, _ = trained
    run, params, stats, _ = evaluate.restore(instant(), workdir, None, split="test")
    Image.fromarray(run.dataset.split("test").images[0]).save(tmp_path / "zero.png")
    (answer,) = predict.predict(run, params, stats, [tmp_path / "zero.png"])
    assert set(answer["voices"]) == {"rac", "vote", "prototype"} and answer["label"] in run.classes.names
    assert all(n["supports"] == (n["label"] == answer["label"]) for n in answer["neighbours"])


@pytest.mark.parametrize("voices", [pytest.param("base+vote", marks=pytest.mark.slow), "base+text+prototype"])
def test_other_voices_train_together(tmp_path, voices):
    config = tiny.config(devices=8)
    config.model.voices, config.model.fusion, config.memory.k = voices, "sum", 5
    config.train.steps = 2
    train.train(config, tmp_path)
    assert list(table(tmp_path)["voices"]) == ["rac", *voices.split("+"), *(["paper"] if "text" in voices else [])]
    assert all(np.isfinite(list(jax.tree.leaves(table(tmp_path)["voices"]))))


def test_new_classes_of_the_memory_change_no_probability_of_the_paper(tmp_path):
    workdir, config, new = tmp_path, tiny.config(), 3
    config.train.steps = 2
    train.train(config, workdir, evaluated=False)
    before = answers(config, workdir)[1]
    far = -np.asarray(store.read(workdir / "memory").keys, np.float32).mean(axis=0)  # nobody's neighbours
    add_rows(workdir / "memory", np.tile(far, (new, 1)), [f"new {number}" for number in range(new)])
    _, after, run = answers(config, workdir)
    assert len(run.classes) == 10 + new and set(after.votes) == {"rac", "base", "text"}
    for voice, votes in before.votes.items():
        np.testing.assert_array_equal(after.votes[voice].label, votes.label)
        np.testing.assert_allclose(after.votes[voice].probability, votes.probability, rtol=1e-5)
    errors = evaluate.calibration_errors(before)
    assert evaluate.calibration_errors(after) == pytest.approx(errors, rel=1e-4)
