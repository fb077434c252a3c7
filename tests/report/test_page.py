import json
import re

import numpy as np
import pytest
from PIL import Image

from rac_jax.report import page


def make_run(folder, name, accuracy):
    (folder / "eval").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"name": name, "memory": {"k": len(name)}}))
    branches = {"rac": {"all": accuracy, "few": 0.25, "top5": 1.0}}
    result = {"split": "test", "step": 7, "images": 250, "classes": 10, "voices": branches}
    (folder / "eval" / "test.json").write_text(json.dumps(result))
    (folder / "report" / "test").mkdir(parents=True)
    for picture in ("by_class", "worst_0", "worst_10", "worst_2"):
        Image.fromarray(np.zeros((2, 2, 3), np.uint8)).save(folder / "report" / "test" / f"{picture}.png")
    return page.read(folder, "test")


def test_a_page_holds_the_table_the_pictures_and_the_settings(tmp_path):
    found = page.make(make_run(tmp_path / "a", "a<b", 0.5), [])
    assert "<h1>a&lt;b</h1>" in found and "250 images of test, 10 classes, step 7" in found
    assert re.search(r"<td>rac</td><td>50\.00</td><td>–</td><td>–</td><td>25\.00</td><td>100\.00</td>", found)
    assert re.findall(r'alt="([^"]*)"', found) == ["Accuracy by class", "worst 1", "worst 2", "worst 3"]
    assert "&quot;k&quot;: 3" in found
    assert "http" not in found and "<script" not in found  # nothing is fetched


def test_runs_are_compared_by_accuracy_and_settings(tmp_path):
    one, other = make_run(tmp_path / "a", "one", 0.5), make_run(tmp_path / "b", "other", 0.75)
    found = page.make(one, [other])
    assert re.search(r"<td>one: rac</td><td>50\.00</td>", found)
    assert re.search(r"<td>other: rac</td><td><b>75\.00</b></td>", found)
    assert "<tr><td>memory.k</td><td>3</td><td>5</td></tr>" in found


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path):
    one, other = make_run(tmp_path / "a" / "0", "same", 0.5), make_run(tmp_path / "b" / "0", "same", 0.75)
    found = page.make(one, [other])
    assert "<td>a/0: rac</td>" in found and "<td>b/0: rac</td>" in found


def test_a_folder_without_an_evaluated_run_is_refused(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"config\.json is missing: there is no run here that was evaluated on test"
    ):
        page.read(tmp_path, "test")


def test_nothing_that_a_run_names_becomes_markup(tmp_path):
    evil = '"><script>alert(1)</script><img src=x onerror=alert(2)>&'
    run = make_run(tmp_path / "a", evil, 0.5)
    run.result["voices"] = {evil: {"all": 0.5}}
    run.result["images"] = evil
    run.config["memory"] = {evil: evil}
    found = page.make(run, [make_run(tmp_path / "<b onclick=x>", "other", 0.5), make_run(tmp_path / "c", evil, 0.75)])
    tags = set(re.findall(r"<\s*/?\s*([^\s>/]+)", re.sub(r"<style>.*?</style>", "", found, flags=re.S)))
    assert tags <= {
        "!doctype", "html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "div", "table", "tr", "th", "td",
        "b", "img", "details", "summary", "pre",
    }  # fmt: skip
    assert "onerror=alert(2)&gt;" in found and not re.search(r"<[^>]*\son\w+=", found)


@pytest.mark.parametrize("content", ["", "{", "[]", "3", '{"split": "test"}', "\x00"])
def test_a_damaged_result_is_named(tmp_path, content):
    make_run(tmp_path, "a", 0.5)
    (tmp_path / "eval" / "test.json").write_text(content)
    with pytest.raises(ValueError, match=r"eval/test\.json is damaged \(.*\); evaluate the run again"):
        page.read(tmp_path, "test")
