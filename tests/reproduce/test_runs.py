"""The paper's tables on the demo, made small: two rows of one table, run, interrupted, and not run twice."""

import concurrent.futures
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from configs import demo, digits
from rac_jax import config as configs
from rac_jax import rules
from rac_jax.reproduce import runs
from rac_jax.reproduce.experiment import Experiment, RowFailed, folder_name
from rac_jax.reproduce.table import Row
from rac_jax.reproduce.tables import TABLES, by_variant, fitting, with_large
from rac_jax.runtime import interruption
from tests import tiny

ROOT = Path(__file__).parents[2]


def row_of(table, name):
    (row,) = (row for row in TABLES[table].rows if row.name == name)
    return row


def rows_of(table, config):
    """The rows that can be run on digits, whose classes have no groups."""
    return [row for row in fitting(table, config).rows if "{group}" not in row.fields.get("data.caption", "")]


def test_every_field_of_every_row_is_a_field():
    known = configs.names(configs.default())
    for table in TABLES.values():
        assert len({row.name for row in table.rows}) == len(table.rows)
        for row in table.rows:
            assert set(row.fields) <= set(known)


def test_rows_of_several_tables_share_a_run_and_no_two_of_one_table_do(tmp_path):
    experiment = Experiment(tmp_path, [], configs.default(), "test")

    def folder(table, name):
        return experiment.workdir(TABLES[table], row_of(table, name), 0).relative_to(tmp_path)

    assert str(folder("main", "RAC")).startswith("main/as_configured/seed_0-")
    same = {folder(*row) for row in (("tau", "τ = 1"), ("reweighting", "none"), ("fusion", "learned"), ("main", "RAC"))}
    assert len(same) == 1
    assert str(folder("k", "k = 10")).startswith("main/memory.k_10_model.voices_text/seed_0-")
    assert folder("k", "k = 30") == folder("main", "retrieval, LACE") == folder("voices", "text")
    assert folder("edit", "trained on 100 %") == folder("new", "trained on all classes")
    for table in TABLES.values():
        rows = rows_of(table, experiment.config)
        assert len({experiment.workdir(table, row, 0) for row in rows}) == len(rows)
    long, other = (folder_name({"model.encoder.weights": "a/" * 100 + end}) for end in "xy")
    assert len(long) < 120 and long != other


def test_every_row_of_the_demo_is_a_valid_config(tmp_path):
    experiment = Experiment(tmp_path, [], tiny.config(devices=1), "test")
    for table in TABLES.values():
        for row in rows_of(table, experiment.config):
            rules.validate(experiment._with(experiment.fields(table, row, 0)), devices=1)


def test_results_of_another_config_or_flag_are_not_taken(tmp_path):
    """Before, the folder of a row knew the fields of the row alone."""

    def folder(kind="main", **changed):
        config = digits.get_config()
        with config.unlocked():
            config.update_from_flattened_dict({name.replace("__", "."): value for name, value in changed.items()})
        experiment = Experiment(tmp_path, [], config, "test")
        return experiment.workdir(dataclasses.replace(TABLES["main"], kind=kind), row_of("main", "RAC"), 0)

    same = folder()
    assert folder() == folder(mesh__data=4, data__workers=2, checkpoint__every=7, memory__dir="/elsewhere") == same
    others = [
        folder(name="mine"), folder(train__epochs=1.0), folder(train__steps=3), folder(optim__learning_rate=1e-3),
        folder(memory__k=7), folder(model__text__depth=3), folder(data__image_size=32),
    ]  # fmt: skip
    assert len({same, *others}) == 1 + len(others)
    assert folder("runtime", data__workers=2) != folder("runtime")  # times depend on it


def test_a_field_that_was_given_holds_for_every_variant_also_where_it_is_the_named_ones_own():
    """The command of a row passes the flag on, so the row's folder and config must have its value."""
    config, flag = demo.get_config("instant"), "--config.train.epochs=20"
    config.train.epochs, config.data.seed = 20.0, 3
    assert demo.get_config("instant").train.epochs == 20 != demo.get_config("").train.epochs
    flags = ["--config=configs/demo.py:instant", flag, "--config.data.seed=3"]
    of_row = Experiment(Path("runs"), flags, config, "test").of(Row("default", {}, variant=""))
    assert (of_row.config.train.epochs, of_row.config.data.seed) == (20, 3)
    assert of_row.flags == ["--config=configs/demo.py", flag, "--config.data.seed=3"]
    assert of_row.config.train.batch_size == demo.get_config("").train.batch_size


def test_results_of_other_data_are_not_taken(tmp_path):
    def write(name, count):
        (tmp_path / "images" / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            Image.fromarray(np.full((4, 4, 3), number, np.uint8)).save(tmp_path / "images" / name / f"{number}.png")

    def folder():
        config = digits.get_config()
        config.data.name, config.data.root = "folder", str(tmp_path / "images")
        return Experiment(tmp_path, [], config, "test").workdir(TABLES["main"], row_of("main", "RAC"), 0)

    write("a", 10)
    write("b", 10)
    first = folder()
    assert folder() == first
    (tmp_path / "images" / "b").rename(tmp_path / "images" / "c")  # a class of another name
    renamed = folder()
    write("a", 12)
    assert len({first, renamed, folder()}) == 3


def evaluated(experiment, table, row, accuracy):
    path = experiment.outcome(table, row, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"voices": {"fused": {"all": accuracy}}}))


def test_a_run_that_another_process_has_started_is_waited_for(tmp_path, capsys):
    """Before, the second one said "in use", left the row out and overwrote the log."""
    table, row = TABLES["main"], row_of("main", "RAC")
    experiment = Experiment(tmp_path, ["--no_such_flag"], digits.get_config(), "test")
    workdir = experiment.workdir(table, row, 0)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        with runs.locked(workdir):
            second = pool.submit(runs.result, experiment, table, row, 0)
            time.sleep(0.2)
            assert not second.done()
            (workdir / "log.txt").write_text("the first one's")
            evaluated(experiment, table, row, 0.5)
        assert second.result(timeout=20).figures == {"all": 50.0}
    assert (workdir / "log.txt").read_text() == "the first one's"
    assert "waiting for another process that runs" in capsys.readouterr().err


def test_a_run_holds_its_folder_though_the_command_that_started_it_is_gone(tmp_path):
    with runs.locked(tmp_path) as lock:
        code = "import os, sys, time; os.close(0); time.sleep(1)"
        run = subprocess.Popen([sys.executable, "-c", code], pass_fds=(lock,))
    started = time.monotonic()
    with runs.locked(tmp_path):
        assert run.poll() is not None or time.monotonic() - started > 0.3
    run.wait()


def test_a_log_is_continued_and_its_last_error_is_the_reason(tmp_path):
    log = tmp_path / "log.txt"
    log.write_text("error: of an earlier start\n")
    with runs.locked(tmp_path) as lock, pytest.raises(RowFailed, match=r"^now \(see .*log\.txt\)"):
        runs._run(tmp_path, ["-c", "import sys; sys.exit('error: now')"], lock)
    assert log.read_text() == "error: of an earlier start\nerror: now\n"


def test_a_missing_file_is_named_in_the_table():
    """Before, only the first line of the error was read, which says that weights were not found but not which file."""
    lines = ["error: an older one", "error: the weights x were not found. Then", "  get a/b.bin", "  or c", "How to"]
    error = runs._last_error(lines)
    assert error == "the weights x were not found. Then\n  get a/b.bin\n  or c"
    assert runs.not_run(f"{error} (see log.txt)") == "not run: the weights x were not found: get a/b.bin"
    assert runs.not_run("one sentence. Another (see log.txt)") == "not run: one sentence"
    assert runs._last_error(["a", "b"]) == "b"


def test_large_indexes_have_the_papers_rows_or_as_many_as_are_asked_for(tmp_path):
    experiment = Experiment(tmp_path, [], digits.get_config(), "test")
    few = with_large(TABLES["index"], 5000)
    assert [row.up_to for row in few.rows] == [0, 0, 0, 0, 5000, 5000]
    assert experiment.command(few, few.rows[-1], 0)[-1] == "--up_to=5000"
    assert experiment.command(TABLES["index"], TABLES["index"].rows[-1], 0)[-1] == "--up_to=11200000"
    folders = {experiment.workdir(table, row, 0) for table in (few, TABLES["index"]) for row in table.rows[-2:]}
    assert len(folders) == 4
    assert with_large(TABLES["runtime"], 5000) == TABLES["runtime"]


def test_a_damaged_result_is_named(tmp_path):
    experiment, table, row = Experiment(tmp_path, [], digits.get_config(), "test"), TABLES["main"], Row("a", {})
    evaluated(experiment, table, row, 0.5)
    assert runs.known(experiment, table, row, 0).figures == {"all": 50}
    for content in ("", "[]", "{}", '{"voices": {}}', '{"voices": {"rac": 3}}'):
        experiment.outcome(table, row, 0).write_text(content)
        with pytest.raises(ValueError, match=r"eval/test\.json is damaged; delete it"):
            runs.known(experiment, table, row, 0)


def test_the_papers_columns_give_its_all():
    """Places365-LT has 131, 163 and 71 classes; the paper's own rounding and slips stay within 0.3."""
    for table in TABLES.values():
        for row in table.rows:
            figures = row.paper.get("places_lt", {})
            if "few" in figures:
                mean = np.dot([131, 163, 71], [figures[group] for group in ("many", "medium", "few")]) / 365
                assert mean == pytest.approx(figures["all"], abs=0.3)


def test_rows_share_a_memory_where_they_can(tmp_path):
    experiment = Experiment(tmp_path, [], digits.get_config(), "test")

    def folders(name, seed=0):
        return [experiment.fields(TABLES[name], row, seed).get("memory.dir") for row in TABLES[name].rows]

    (k,) = set(folders("k"))
    assert set(folders("k", seed=1)) != {k}  # the digits are split by the seed
    none, random, clip, large = folders("runtime")
    assert none == random == clip == k and large != k  # one that grows is nobody else's
    assert set(folders("edit")) == set(folders("new")) == {k}  # keys of all images, whatever is trained on
    assert set(folders("index")) == {None}
    commands = [experiment.command(TABLES["index"], row, 0) for row in TABLES["index"].rows]
    assert all(f"--keys={tmp_path / 'keys'}" in command for command in commands)
    command = experiment.command(TABLES["runtime"], TABLES["runtime"].rows[-1], 0)
    assert command[:3] == ["-m", "rac_jax.reproduce.measure", "runtime"] and command[-1] == "--made=16"


def test_a_row_that_cannot_be_run_says_why(tmp_path):
    experiment = Experiment(tmp_path, ["--config=configs/digits.py"], digits.get_config(), "test")
    row = Row("nowhere", {"model.encoder.weights": str(tmp_path / "nowhere.npz")})
    with pytest.raises(RowFailed, match=r"^'.*nowhere\.npz' is neither a file nor .* \(see "):
        runs.result(experiment, TABLES["index"], row, 0)


@pytest.mark.slow
def test_a_table_is_run_once_and_an_interrupted_row_goes_on(tmp_path):
    config = tiny.config()
    config.train.steps, config.checkpoint.every = 4, 1
    command = [sys.executable, "-m", "rac_jax.reproduce", "fusion", "--seeds=1", f"--out={tmp_path}"]
    command += ["--rows=paper,sqrt", *tiny.arguments(config)]
    first = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"TQDM_DISABLE": "1"})
    assert first.returncode == 0, first.stderr
    text = (tmp_path / "fusion.md").read_text()
    assert text.count("not run") == 2 and (tmp_path / "fusion.png").exists()  # `learned` and `sum` were not asked for
    (workdir,) = (tmp_path / "main" / "as_configured").iterdir()
    found = workdir / "eval" / "test.json"
    accuracy = 100 * json.loads(found.read_text())["voices"]["rac"]["all"]
    assert f"| paper | {accuracy:.1f} |" in text
    shutil.rmtree(workdir)
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        while not (workdir / "checkpoints" / "1").exists() and process.poll() is None:
            time.sleep(0.01)
        process.terminate()
    assert process.returncode == interruption.REQUEUE and not found.exists()
    (log,) = (tmp_path / "main" / "model.scale_sqrt").glob("seed_0-*/log.txt")
    untouched = log.stat().st_mtime_ns
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "fusion.md").read_text() == text
    assert log.stat().st_mtime_ns == untouched
    assert f"<td>{accuracy:.1f}</td>" in (tmp_path / "index.html").read_text()


@pytest.mark.slow
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
        name: next((tmp_path / "nearest" / folder).glob("seed_0-*/nearest_test.json"))
        for name, folder in folders.items()
    }
    exact, graph = (json.loads(path.read_text())["figures"] for path in measured.values())
    line = next(line for line in text.splitlines() if line.startswith("| exact, l2 |"))
    assert f"| {exact['train: all']:.1f} | 100.0 | {exact['indexed in, s']:.3f} |" in line
    assert text.count("not run") == 4 and "Measured on 1 × cpu (" in text and (tmp_path / "index.png").exists()
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


@pytest.mark.parametrize("flag", ["rows", "without"])
def test_a_row_that_does_not_exist_is_an_error_that_lists_the_rows(flag):
    command = [sys.executable, "-m", "rac_jax.reproduce", "fusion", "--config=configs/digits.py"]
    done = subprocess.run([*command, f"--{flag}=paper,nowhere"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    rows = '"paper", "sqrt", "learned", "sum"'
    assert done.stderr.strip() == f"error: --{flag}: there is no row 'nowhere'; the rows are {rows}"


@pytest.mark.slow
def test_all_tables_are_collected_without_a_run_when_every_run_is_there(tmp_path):
    arguments = ["--config=configs/digits.py", "--config.train.steps=4"]
    config = digits.get_config()
    config.train.steps = 4
    experiment = Experiment(tmp_path, arguments, config, "test")
    tables = {name: fitting(table, config) for name, table in TABLES.items()}
    tables["minutes"] = by_variant(tables["minutes"], experiment, [])
    tables = {name: table for name, table in tables.items() if table.rows}
    assert set(TABLES) - set(tables) == {"imbalance"}  # digits cannot have another
    for number, table in enumerate(tables.values()):
        figures = {column: 10.0 + number for column in (*table.columns, *table.measures)}
        shares = {column: value / 100 for column, value in figures.items()}
        content = {"branches": {"rac": shares}, "voices": {"rac": shares}, "figures": figures, "on": "1 × cpu"}
        for row in rows_of(table, config):
            path = experiment.of(row).outcome(table, row, 0)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(content))
    command = [sys.executable, "-m", "rac_jax.reproduce", "all", "--seeds=1", f"--out={tmp_path}", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "tables: 100%" in done.stderr and not list(tmp_path.rglob("log.txt"))
    page = (tmp_path / "index.html").read_text()
    for name, table in tables.items():
        assert (tmp_path / f"{name}.md").exists() and (tmp_path / f"{name}.png").exists()
        assert f"{table.title} ({name})" in page
    assert "not run: for inat2018 only" in (tmp_path / "main.md").read_text()
    assert (
        "Not run: imbalance." in page and "the classes of digits have no groups" in (tmp_path / "texts.md").read_text()
    )
