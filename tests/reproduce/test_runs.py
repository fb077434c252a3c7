"""The paper's tables on the demo, made small: two rows of one table, run, interrupted, and not run twice."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from configs import demo
from rac_jax import config as configs
from rac_jax.reproduce import results, runs
from rac_jax.reproduce.runs import Result
from rac_jax.reproduce.tables import TABLES, Row, Table
from rac_jax.runtime import interruption
from tests import tiny

ROOT = Path(__file__).parents[2]


def test_every_field_of_every_row_is_a_field():
    known = configs.names(configs.default())
    for table in TABLES.values():
        assert len({row.name for row in table.rows}) == len(table.rows)
        for row in table.rows:
            assert set(row.fields) <= set(known)


def test_rows_of_several_tables_share_a_run_and_no_two_of_one_table_do(tmp_path):
    place = runs.Place(tmp_path, [], configs.default(), "test")

    def folder(table, name):
        (row,) = (row for row in TABLES[table].rows if row.name == name)
        return place.workdir(TABLES[table], row, 0).relative_to(tmp_path)

    assert str(folder("main", "RAC")) == "main/as_configured/seed_0"
    assert folder("tau", "τ = 1") == folder("reweighting", "none") == folder("fusion", "sqrt") == folder("main", "RAC")
    assert str(folder("k", "k = 10")) == "main/memory.k_10_model.branches_retrieval/seed_0"
    assert folder("k", "k = 30") == folder("main", "retrieval, LACE")
    for table in TABLES.values():
        assert len({place.workdir(table, row, 0) for row in table.rows}) == len(table.rows)
    long, other = (runs.folder_name({"model.encoder.weights": "a/" * 100 + end}) for end in "xy")
    assert len(long) < 120 and long != other


def test_the_papers_columns_give_its_all():
    """Places365-LT has 131, 163 and 71 classes; the paper's own rounding and slips stay within 0.3."""
    for table in TABLES.values():
        for row in table.rows:
            figures = row.paper.get("places_lt", {})
            if "all" in figures:
                mean = np.dot([131, 163, 71], [figures[group] for group in ("many", "medium", "few")]) / 365
                assert mean == pytest.approx(figures["all"], abs=0.3)


def test_means_deviations_and_the_papers_columns():
    table = Table("t", (Row("a", {}, {"places_lt": {"all": 47.17}}), Row("b", {}), Row("c", {})))
    figures = {"few": 25.0, "top5": 100.0}
    found = {"a": [Result({"all": 50.0, **figures}), Result({"all": 60.0, **figures})], "b": "not run: why"}
    assert results.markdown(table, found, "places_lt").splitlines() == [
        "|  | all | many | medium | few | top5 | paper: all |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| a | 55.0 ± 7.1 | – | – | 25.0 ± 0.0 | 100.0 ± 0.0 | 47.17 |",
        "| b | not run: why |  |  |  |  | – |",
        "| c | not run |  |  |  |  | – |",
    ]
    assert "paper" not in results.markdown(table, found, "digits")
    axes = results.plot(table, found).axes[0]
    assert [bar.get_height() for bar in axes.patches] == pytest.approx([55, 25])


def test_times_show_three_digits_that_count():
    assert results.cell([0.000297, 0.0003]) == "0.000 ± 0.000"
    assert results.cell([0.2712]) == "0.271"
    assert results.cell([3.9, 4.1]) == "4.00 ± 0.14"
    assert results.cell([437_513.2]) == "437,513"
    assert results.cell([]) == "–"


def test_seconds_beside_those_without_retrieval_and_the_papers():
    table = TABLES["runtime"]
    none, _, clip, large = (row.name for row in table.rows)
    on = "1 × cpu (2 cores)"
    found = {
        none: [Result({"s an epoch": 10.0, "ms a step": 100.0, "rows in memory": 0}, on)],
        clip: [Result({"s an epoch": 24.0, "ms a step": 240.0, "rows in memory": 466}, on)],
        large: [Result({"s an epoch": s, "ms a step": 250.0, "rows in memory": 7922}, on) for s in (24.0, 26.0)],
    }
    found = results.with_ratios(table, found)
    assert results.markdown(table, found, "digits").splitlines()[2:] == [
        "| no retrieval | 10.0 | 1.00 | 100 | 0 |",
        "| random text | not run |  |  |  |",
        "| CLIP text | 24.0 | 2.40 | 240 | 466 |",
        "| CLIP text with a large index | 25.0 ± 1.4 | 2.50 ± 0.14 | 250 ± 0 | 7,922 ± 0 |",
        "",
        "Measured on 1 × cpu (2 cores).",
    ]
    lines = results.markdown(table, found, "places_lt").splitlines()
    assert lines[0].endswith("| paper: s an epoch | paper: × no retrieval | paper: rows in memory |")
    assert lines[5].endswith("| 47.0 | 1.99 | 11,200,000 |")
    axes = results.plot(table, found).axes[0]
    assert [bar.get_height() for bar in axes.patches] == [10, 24, 25]
    assert axes.get_ylabel() == "s an epoch"
    del found[none]
    assert results.with_ratios(table, found) == found  # there is nothing to compare with


def test_rows_share_a_memory_where_they_can(tmp_path):
    place = runs.Place(tmp_path, [], demo.get_config(), "test")

    def folders(name, seed=0):
        return [place.fields(TABLES[name], row, seed).get("memory.dir") for row in TABLES[name].rows]

    (k,) = set(folders("k"))
    assert set(folders("k", seed=1)) != {k}  # the digits are split by the seed
    none, random, clip, large = folders("runtime")
    assert none == random == clip == k and large != k  # one that grows is nobody else's
    assert set(folders("index")) == {None}
    commands = [place.command(TABLES["index"], row, 0) for row in TABLES["index"].rows]
    assert all(command[-1] == f"--keys={tmp_path / 'keys'}" for command in commands)
    command = place.command(TABLES["runtime"], TABLES["runtime"].rows[-1], 0)
    assert command[:3] == ["-m", "rac_jax.reproduce.measure", "runtime"] and command[-1] == "--made=16"


def test_a_row_that_cannot_be_run_says_why(tmp_path):
    place = runs.Place(tmp_path, ["--config=configs/demo.py"], demo.get_config(), "test")
    row = Row("nowhere", {"model.encoder.weights": str(tmp_path / "nowhere.npz")})
    with pytest.raises(runs.RowFailed, match=r"^'.*nowhere\.npz' is neither a file nor .* \(see "):
        runs.result(place, TABLES["index"], row, 0)


def test_a_table_is_run_once_and_an_interrupted_row_goes_on(tmp_path):
    config = tiny.config()
    config.train.steps, config.checkpoint.every = 4, 1
    command = [sys.executable, "-m", "rac_jax.reproduce", "fusion", "--seeds=1", f"--out={tmp_path}"]
    command += ["--rows=paper,sqrt", *tiny.arguments(config)]
    first = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"TQDM_DISABLE": "1"})
    assert first.returncode == 0, first.stderr
    text = (tmp_path / "fusion.md").read_text()
    assert text.count("not run") == 1 and (tmp_path / "fusion.png").exists()  # `learned` was not asked for
    workdir = tmp_path / "main" / "as_configured" / "seed_0"
    found = workdir / "eval" / "test.json"
    accuracy = 100 * json.loads(found.read_text())["branches"]["rac"]["all"]
    assert f"| paper | {accuracy:.1f} |" in text
    shutil.rmtree(workdir)
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        while not (workdir / "checkpoints" / "1").exists() and process.poll() is None:
            time.sleep(0.01)
        process.terminate()
    assert process.returncode == interruption.REQUEUE and not found.exists()
    untouched = (tmp_path / "main" / "model.scale_sqrt" / "seed_0" / "log.txt").stat().st_mtime_ns
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "fusion.md").read_text() == text
    assert (tmp_path / "main" / "model.scale_sqrt" / "seed_0" / "log.txt").stat().st_mtime_ns == untouched


def test_an_index_is_measured_once_and_its_keys_are_another_ones_too(tmp_path):
    command = [sys.executable, "-m", "rac_jax.reproduce", "index", "--seeds=1", f"--out={tmp_path}"]
    command += ['--rows="exact, l2","HNSW, cosine"', *tiny.arguments(tiny.config(devices=1))]
    alone = os.environ | {"TQDM_DISABLE": "1", "XLA_FLAGS": ""}
    first = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=alone)
    assert first.returncode == 0, first.stderr
    assert len(list((tmp_path / "keys").iterdir())) == 1
    text = (tmp_path / "index.md").read_text()
    folders = {"exact": "memory.index_flat_memory.metric_l2", "HNSW": "as_configured"}
    measured = {
        name: tmp_path / "nearest" / folder / "seed_0" / "nearest_test.json" for name, folder in folders.items()
    }
    exact, graph = (json.loads(path.read_text())["figures"] for path in measured.values())
    line = next(line for line in text.splitlines() if line.startswith("| exact, l2 |"))
    assert f"| {exact['train: all']:.1f} | 100.0 | {exact['indexed in, s']:.3f} |" in line
    assert text.count("not run") == 2 and "Measured on 1 × cpu (" in text and (tmp_path / "index.png").exists()
    encoded = [figures["ms with E"] - figures["ms a query"] for figures in (exact, graph)]
    assert encoded[0] == pytest.approx(encoded[1])  # of the one time that they were encoded
    measured["HNSW"].unlink()  # as if it had been interrupted
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=alone)
    assert again.returncode == 0, again.stderr
    assert line in (tmp_path / "index.md").read_text().splitlines()
    repeated = json.loads(measured["HNSW"].read_text())["figures"]
    assert [repeated[name] for name in ("all", "top5", "train: all")] == [
        graph[name] for name in ("all", "top5", "train: all")
    ]
