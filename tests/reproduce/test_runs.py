"""The paper's tables on the demo, made small: two rows of one table, run, interrupted, and not run twice."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from configs import demo
from rac_jax import config as configs
from rac_jax.reproduce import results, runs
from rac_jax.reproduce.tables import TABLES, Row, Table
from tests import tiny

ROOT = Path(__file__).parents[2]


def test_every_field_of_every_row_is_a_field():
    known = configs.names(configs.default())
    for table in TABLES.values():
        assert len({runs.slug(row.name) for row in table.rows}) == len(table.rows)
        for row in table.rows:
            assert set(row.fields) <= set(known)


def test_the_papers_columns_give_its_all():
    """Places365-LT has 131, 163 and 71 classes; the paper's own rounding and slips stay within 0.3."""
    for table in TABLES.values():
        for row in table.rows:
            if figures := row.paper.get("places_lt"):
                mean = np.dot([131, 163, 71], [figures[group] for group in ("many", "medium", "few")]) / 365
                assert mean == pytest.approx(figures["all"], abs=0.3)


def test_means_deviations_and_the_papers_columns():
    table = Table("t", (Row("a", {}, {"places_lt": {"all": 47.17}}), Row("b", {}), Row("c", {})))
    found = {"a": [{"all": 0.5, "few": 0.25, "top5": 1.0}, {"all": 0.6, "few": 0.25, "top5": 1.0}], "b": "not run: why"}
    assert results.markdown(table, found, "places_lt").splitlines() == [
        "|  | all | many | medium | few | top5 | paper: all | paper: many | paper: medium | paper: few |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        "| a | 55.0 ± 7.1 | – | – | 25.0 ± 0.0 | 100.0 ± 0.0 | 47.17 | – | – | – |",
        "| b | not run: why |  |  |  |  | – | – | – | – |",
        "| c | not run |  |  |  |  | – | – | – | – |",
    ]
    assert "paper" not in results.markdown(table, found, "digits")
    axes = results.plot(table, found).axes[0]
    assert [bar.get_height() for bar in axes.patches] == pytest.approx([55, 25])


def test_rows_share_a_memory_where_they_can(tmp_path):
    place = runs.Place(tmp_path, [], demo.get_config(), "test")
    table = TABLES["index"]
    folders = {row.name: place.fields(table, row, 0)["memory.dir"] for row in table.rows}
    assert len(set(folders.values())) == 4
    k = TABLES["k"]
    assert len({place.fields(k, row, 0)["memory.dir"] for row in k.rows}) == 1
    assert place.fields(k, k.rows[0], 0)["memory.dir"] == folders["HNSW, cosine"]
    assert place.fields(k, k.rows[0], 1)["memory.dir"] != folders["HNSW, cosine"]  # the digits are split by the seed


def test_a_table_is_run_once_and_an_interrupted_row_goes_on(tmp_path):
    config = tiny.config()
    config.train.steps = 2
    command = [sys.executable, "-m", "rac_jax.reproduce", "fusion", "--seeds=1", f"--out={tmp_path}"]
    command += ["--rows=paper,sqrt", *tiny.arguments(config)]
    first = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"TQDM_DISABLE": "1"})
    assert first.returncode == 0, first.stderr
    text = (tmp_path / "fusion.md").read_text()
    assert text.count("not run") == 1 and (tmp_path / "fusion.png").exists()  # `learned` was not asked for
    found = tmp_path / "fusion" / "paper" / "seed_0" / "eval" / "test.json"
    accuracy = 100 * json.loads(found.read_text())["branches"]["rac"]["all"]
    assert f"| paper | {accuracy:.1f} |" in text
    found.unlink()  # as if it had been interrupted before the evaluation
    untouched = (tmp_path / "fusion" / "sqrt" / "seed_0" / "log.txt").stat().st_mtime_ns
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "fusion.md").read_text() == text
    assert (tmp_path / "fusion" / "sqrt" / "seed_0" / "log.txt").stat().st_mtime_ns == untouched
