"""Rows and classes that are added after training, on the digits: what each figure is the accuracy of."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rac_jax import config as configs
from rac_jax import data, evaluate, train
from rac_jax.memory import edit as memory_edit
from rac_jax.memory import store
from rac_jax.memory.manifest import REMOVED
from rac_jax.reproduce import edit, figures, rendering, results
from rac_jax.reproduce.further import EDIT, GAIN, NEW, SHARES, VOICES, at
from rac_jax.reproduce.runs import Result
from rac_jax.reproduce.tables import fitting
from tests import tiny

ROOT = Path(__file__).parents[2]


def instant(folder):
    config = tiny.config(devices=2)
    configs.instant(config)
    config.memory.k, config.model.prototype.rank, config.train.epochs = 10, 4, 2.0
    config.train.log_every, config.train.batch_size = 100, 64
    config.memory.dir, config.memory.cache = str(folder / "memory"), str(folder / "neighbours")
    return config


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A folder for the memory of all images and the keys of the test images."""
    return tmp_path_factory.mktemp("shared")


@pytest.mark.slow
def test_rows_are_added_step_by_step(shared, tmp_path):
    config = instant(shared)
    config.data.keep_share = 0.5
    figures = edit.measure(config.copy_and_resolve_references(), tmp_path)["figures"]
    assert at(0.25) not in figures and all(at(share) in figures for share in SHARES[1:])
    assert figures["before"] == figures[at(0.5)] and figures["all"] == figures[at(1.0)] > 30
    assert figures["few"] > 0 and figures["offset"] < 3  # the offset plays no part where no class is new
    own = store.read(tmp_path / "memory")
    dataset = data.load(config)
    assert len(own) == len(dataset.split("train")) < 300 and not (tmp_path / "edited").exists()
    assert own.row_of(dataset.fingerprint("train"), np.array([0], np.int32)).tolist() == [0]
    again = edit.measure(config.copy_and_resolve_references(), tmp_path)["figures"]  # as after an interruption
    assert again == figures


@pytest.fixture(scope="module")
def without_two(shared, tmp_path_factory):
    """A run trained on 8 of the 10 digits: its config, folder and figures."""
    workdir = tmp_path_factory.mktemp("without_two")
    config = instant(shared)
    config.data.keep_classes = 0.8
    return config, workdir, edit.measure(config.copy_and_resolve_references(), workdir)["figures"]


def test_classes_are_added(without_two):
    """Before the edit no image of a new class is right, and the classes that were trained answer as before."""
    _, workdir, figures = without_two
    assert figures["new classes"] > 10
    assert figures["all"] == pytest.approx(0.8 * figures["old classes"] + 0.2 * figures["new classes"])
    assert figures["before"] == pytest.approx(0.8 * (figures["old classes"] + figures["lost"]))
    assert figures["all"] > figures["before"]
    assert json.loads((workdir / "data.json").read_text())["classes"] == list(data.load(without_two[0]).class_names)


def test_new_classes_are_named_and_are_gone_with_their_rows(without_two, tmp_path, caplog):
    """A run that was trained on some classes, evaluated with memories that hold more: labels are never shifted."""
    config, workdir, figures = without_two
    memories = edit.Memories.of(config)
    folder = shutil.copytree(workdir / "memory", tmp_path / "memory")
    labels = memories.dataset.split("train").labels
    new = ~np.isin(np.array(memories.dataset.class_names)[labels], data.load(config).class_names)
    memories.add("new", memories.rest(new), new, folder)
    everything = edit.with_all_data(config)
    everything.memory.dir = str(folder)
    run, params, stats, _ = evaluate.restore(everything, workdir, None, split="test")
    assert "2 classes of digits were not trained on" in caplog.text
    assert run.classes.trained == 8 and len(run.classes) == 10
    counts, predicted = evaluate.answers(run, params, stats, "test")
    named = np.array(run.classes.names)
    assert (
        named[predicted.label]
        == np.array(memories.dataset.class_names)[memories.dataset.split("test").labels[predicted.id]]
    ).all()
    assert counts["rac"].correct[8:].sum() > 0
    assert 100 * counts["rac"].correct.sum() / counts["rac"].seen.sum() == pytest.approx(figures["all"])
    with memory_edit.editing(folder) as editor:
        editor.set_state("new", REMOVED)
    run, params, stats, _ = evaluate.restore(everything, workdir, None, split="test")
    counts, predicted = evaluate.answers(run, params, stats, "test")
    assert not counts["rac"].correct[8:].any() and (predicted.votes["rac"].label < 8).all()
    assert 100 * counts["rac"].correct.sum() / counts["rac"].seen.sum() == pytest.approx(figures["before"])


def test_training_goes_on_only_with_the_same_part_of_the_data(without_two):
    config, workdir, _ = without_two
    everything = edit.with_all_data(config)
    with pytest.raises(ValueError, match="holds a run on other data"):
        train.train(everything, workdir)


def test_a_prototype_alone_is_trained_without_an_offset(shared, tmp_path):
    """A row of the table of voices. Before, looking for the offset ended in a KeyError."""
    config = instant(shared)
    config.model.voices = "prototype"
    train.train(config, tmp_path, evaluated=False)
    assert evaluate.restore(config, tmp_path, None)[0].memory_record()["offset"] == 0.0


@pytest.mark.slow
def test_the_command_runs_both_rows_and_repeats_none(tmp_path):
    config = instant(tmp_path)
    command = [sys.executable, "-m", "rac_jax.reproduce", "new", "--seeds=1", f"--out={tmp_path}"]
    command += tiny.arguments(config)
    written = []
    for _ in range(2):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"TQDM_DISABLE": "1"})
        assert done.returncode == 0, done.stderr
        written.append({path: path.stat().st_mtime_ns for path in tmp_path.rglob("log.txt")})
    assert len(written[0]) == 2 and written[0] == written[1]
    found = {path.parts[-3]: json.loads(path.read_text())["figures"] for path in tmp_path.rglob("edit_test.json")}
    part, everything = found["data.keep_classes_0.8"], found["as_configured"]
    share = 100 * (part["all"] - part["before"]) / (everything["all"] - part["before"])
    text = (tmp_path / "new.md").read_text()
    assert f"| {part['before']:.1f} | {part['all']:.1f} |" in text and f"| {results.cell([share])} |" in text
    assert f"| – | {everything['all']:.1f} |" in text and (tmp_path / "new.png").exists()


def result(**figures):
    return Result({name.replace("_", " "): value for name, value in figures.items()})


def test_the_share_of_the_gain_is_taken_seed_by_seed():
    part, everything = (row.name for row in NEW.rows)
    found = results.with_gains(NEW, {
        part: [result(before=40.0, all=48.0, lost=1.0), result(before=41.0, all=46.0, lost=-2.0)],
        everything: [result(all=50.0), result(all=51.0)],
    })  # fmt: skip
    assert [r.figures[GAIN] for r in found[part]] == [80.0, 50.0]
    assert GAIN not in found[everything][0].figures
    text = rendering.markdown(results.blocks(NEW, found, "digits"))
    assert "| 65.0 ± 21.2 | −0.500 ± 2.121 |" in text
    missing = {part: [result(before=40.0, all=48.0)], everything: "not run: why"}
    assert results.with_gains(NEW, missing) == missing


def test_a_plot_has_a_curve_per_row_and_one_of_retraining():
    found = {
        row.name: [Result({at(share): 10.0 * share + number for share in SHARES[number:]})]
        for number, row in enumerate(EDIT.rows)
    }
    (axes,) = figures.plot(EDIT, found).axes
    dashed = next(line for line in axes.get_lines() if line.get_linestyle() == "--")
    assert dashed.get_ydata() == pytest.approx([2.5, 6.0, 9.5, 13.0])
    assert [text.get_text() for text in axes.get_xticklabels()] == ["25 %", "50 %", "75 %", "100 %"]
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert sorted(names) == sorted([*(row.name for row in EDIT.rows), "trained on the memory's rows"])


def test_voices_are_subsets_of_those_of_the_config(tmp_path):
    config = instant(tmp_path)
    assert [row.name for row in fitting(VOICES, config).rows] == ["vote", "prototype", "vote + prototype"]
    assert [row.name for row in fitting(VOICES, tiny.config()).rows] == ["base", "text", "base + text"]
    assert fitting(EDIT, config) == EDIT
