"""Two commands at once in one folder: they share runs or wait for them, and the page has the tables of both."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import tiny

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_two_commands_at_once_share_their_runs_and_the_page(tmp_path):
    """`fusion` and `reweighting` have a run in common; all runs have the memory, its keys and neighbours in common."""
    config = tiny.config(devices=1)
    config.train.steps = 2
    config.memory.lookup = "cached"
    rows = {"fusion": "paper,learned", "reweighting": "none,inverse sqrt"}

    def started(name):
        command = [sys.executable, "-m", "rac_jax.reproduce", name, "--seeds=1", f"--out={tmp_path}"]
        command += [f"--rows={rows[name]}", *tiny.arguments(config)]
        alone = os.environ | {"XLA_FLAGS": "", "TQDM_DISABLE": "1"}
        return subprocess.Popen(command, cwd=ROOT, env=alone, stderr=subprocess.PIPE, text=True)

    both = {name: started(name) for name in rows}
    said = {name: process.communicate()[1] for name, process in both.items()}
    assert {name: process.returncode for name, process in both.items()} == dict.fromkeys(rows, 0), said
    assert "waiting for another process that runs" in "".join(said.values())

    logs = sorted((tmp_path / "main").glob("*/seed_0-*/log.txt"))
    assert len(logs) == 3  # the run of `paper` is that of `none`
    assert [len(list((log.parent / "tensorboard").glob("events*"))) for log in logs] == [1, 1, 1]  # each started once
    assert all("Traceback" not in log.read_text() for log in logs)
    assert len(list((tmp_path / "memory").iterdir())) == 1

    tables = {name: (tmp_path / f"{name}.md").read_text() for name in rows}
    shared = [next(line for line in tables[name].splitlines() if line.startswith(f"| {row} |"))
              for name, row in (("fusion", "paper"), ("reweighting", "none"))]  # fmt: skip
    assert shared[0].split("|")[2:] == shared[1].split("|")[2:]
    page = (tmp_path / "index.html").read_text()
    assert "(fusion)</h2>" in page and "(reweighting)</h2>" in page
    for row in ("paper", "learned", "none", "inverse sqrt"):
        assert f"<td>{row}</td><td>not run" not in page and f"<td>{row}</td>" in page
