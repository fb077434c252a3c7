"""What earlier commands ran in the same folder, and the flags that a command hands on to its runs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from absl import app

from configs import digits
from rac_jax.reproduce import runs
from rac_jax.reproduce.experiment import Experiment, RowFailed, given_flags
from rac_jax.reproduce.tables import TABLES

ROOT = Path(__file__).parents[2]


def evaluated(experiment, table, row, accuracy):
    path = experiment.outcome(table, row, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"voices": {"rac": {"all": accuracy}}}))


def test_what_earlier_commands_ran_is_found_without_a_run(tmp_path):
    experiment = Experiment(tmp_path, [], digits.get_config(), "test")
    table = TABLES["fusion"]
    assert runs.earlier(experiment, table, 1, partly=True) is None
    evaluated(experiment, table, table.rows[0], 0.5)
    assert runs.earlier(experiment, table, 1, partly=False) is None
    assert list(runs.earlier(experiment, table, 1, partly=True)) == ["paper"]
    assert runs.earlier(experiment, table, 2, partly=True) is None  # the other seed is missing
    for row in table.rows[1:]:
        evaluated(experiment, table, row, 0.6)
    found = runs.earlier(experiment, table, 1, partly=False)
    assert {name: those[0].figures["all"] for name, those in found.items()} == {
        "paper": 50, "sqrt": 60, "learned": 60, "sum": 60,
    }  # fmt: skip
    experiment.outcome(table, table.rows[0], 0).write_text("")
    assert list(runs.earlier(experiment, table, 1, partly=True)) == ["sqrt", "learned", "sum"]


def test_the_reason_of_an_earlier_failure_is_kept_until_the_row_is_run_again(tmp_path):
    """Before, a table of an earlier command showed "not run" without the reason."""
    experiment = Experiment(tmp_path, ["--no_such_flag=1"], digits.get_config(), "test")
    table = TABLES["fusion"]
    failing, *others = table.rows
    with pytest.raises(RowFailed):
        runs.result(experiment, table, failing, 0)
    assert runs.earlier(experiment, table, 1, partly=True) is None  # a reason alone is no table
    for row in others:
        evaluated(experiment, table, row, 0.6)
    found = runs.earlier(experiment, table, 1, partly=False)
    assert list(found) == ["paper", "sqrt", "learned", "sum"] and found["paper"].startswith("not run: ")
    assert "no_such_flag" in found["paper"] and "(see" not in found["paper"]
    evaluated(experiment, table, failing, 0.5)
    assert runs.earlier(experiment, table, 1, partly=False)["paper"][0].figures["all"] == 50
    (row,) = (row for row in TABLES["main"].rows if row.only)
    assert runs.failure(experiment, TABLES["main"], row, 1) == "not run: for inat2018 only"


def test_the_page_keeps_the_tables_of_earlier_commands(tmp_path):
    """Before, it had those of the last command alone. The config is named in a word of its own, too."""
    experiment = Experiment(tmp_path, [], digits.get_config(), "test")
    for name in ("fusion", "tau"):
        for number, row in enumerate(TABLES[name].rows):
            evaluated(experiment, TABLES[name], row, 0.5 + 0.01 * number)
    command = [sys.executable, "-m", "rac_jax.reproduce", "fusion", "--config", "configs/digits.py"]
    done = subprocess.run([*command, "--seeds=1", f"--out={tmp_path}"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "index.html").read_text()
    assert "trained by themselves (fusion)" in page and "Strength τ of the logit adjustment (tau)" in page
    assert "<td>54.0</td>" in page and "--config=configs/digits.py" in page
    missing = page.partition("Not run: ")[2].partition(".")[0].split(", ")
    assert "voices" in missing and not {"fusion", "tau"} & set(missing)
    assert not list(tmp_path.rglob("log.txt"))  # nothing was run


def test_flags_of_the_config_are_handed_on():
    given = ["fusion", "--config.train.steps=4", "--seeds=1", "--config", "configs/digits.py:base", "-config.seed=3"]
    assert given_flags(given) == ["--config=configs/digits.py:base", "--config.train.steps=4", "--config.seed=3"]
    for wrong in (["--config.seed", "3"], ["--noconfig.train.calibrate_sets"]):
        with pytest.raises(app.UsageError, match=r"write --config\.\S+=VALUE"):
            given_flags(wrong)
