"""Tables of results: means, deviations, differences, and names that could break them."""

from configs import digits
from rac_jax.reproduce import figures, page, rendering, results
from rac_jax.reproduce.experiment import Experiment
from rac_jax.reproduce.runs import Result
from rac_jax.reproduce.table import Row, Table
from rac_jax.reproduce.tables import TABLES


def markdown(*given):
    return rendering.markdown(results.blocks(*given))


def as_html(*given):
    return rendering.as_html(results.blocks(*given))


def test_means_deviations_and_the_papers_columns():
    table = Table("t", (Row("a", {}, {"places_lt": {"all": 47.17}}), Row("b", {}), Row("c", {})))
    others = {"few": 25.0, "top5": 100.0}
    found = {"a": [Result({"all": 50.0, **others}), Result({"all": 60.0, **others})], "b": "not run: why"}
    assert markdown(table, found, "places_lt").splitlines() == [
        "|  | all | many | medium | few | top5 | paper: all |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| a | 55.0 ± 7.1 | – | – | 25.0 ± 0.0 | 100.0 ± 0.0 | 47.17 |",
        "| b | not run: why |  |  |  |  | – |",
        "| c | not run |  |  |  |  | – |",
    ]
    assert "paper" not in markdown(table, found, "digits")
    reason = '<td>b</td><td class="reason" colspan="5">not run: why</td><td>–</td>'
    assert reason in as_html(table, found, "places_lt")
    axes = figures.plot(table, found).axes[0]
    points = {container.get_label(): container.lines[0].get_xydata().tolist() for container in axes.containers}
    assert points == {"all": [[55.0, -0.25]], "few": [[25.0, 0.25]]}  # no place is kept for groups without classes
    assert [text.get_text() for text in axes.get_yticklabels()] == ["a"]


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
    assert markdown(table, found, "digits").splitlines()[2:] == [
        "| no retrieval | 10.0 | 1.00 | 100 | 0 |",
        "| random text | not run |  |  |  |",
        "| CLIP text | 24.0 | 2.40 | 240 | 466 |",
        "| CLIP text with a large index | 25.0 ± 1.4 | 2.50 ± 0.14 | 250 ± 0 | 7,922 ± 0 |",
        "",
        "Measured on 1 × cpu (2 cores).",
    ]
    lines = markdown(table, found, "places_lt").splitlines()
    assert lines[0].endswith("| paper: s an epoch | paper: × no retrieval | paper: rows in memory |")
    assert lines[5].endswith("| 47.0 | 1.99 | 11,200,000 |")
    axes = figures.plot(table, found).axes[0]
    assert [bar.get_width() for bar in axes.patches] == [10, 24, 25]
    assert axes.get_xlabel() == "s an epoch"
    del found[none]
    assert results.with_ratios(table, found) == found  # there is nothing to compare with


def test_differences_are_paired_by_seed():
    """The seeds spread by 10 points, the difference of 2 is the same in all but one: its error is small."""
    table = Table("t", (Row("a", {}), Row("b", {}), Row("c", {}), Row("d", {})), columns=("all", "few"))
    found = {
        "a": [Result({"all": value, "few": 1.0}) for value in (50.0, 60.0, 70.0)],
        "b": [Result({"all": value}) for value in (52.0, 62.0, 75.0)],
        "c": "not run: why",
        "d": [Result({"all": 50.0, "few": 0.5})] * 2,
    }
    compared = results.differences(table, found)
    assert compared.caption == "Differences from a in the same seed, in points: mean ± standard error."
    assert compared.cells == [["", "all", "few"], ["b", "+3.0 ± 1.0", "–"], ["d", "−5.0 ± 5.0", "−0.5 ± 0.0"]]
    assert "| b | +3.0 ± 1.0 | – |" in markdown(table, found, "digits")
    assert results.differences(table, {"a": found["a"]}) is None
    assert results.differences(table, {name: rows[:1] for name, rows in found.items()}) is None
    assert results.differences(Table("t", table.rows, columns=(), measures=("s",)), found) is None


def test_names_and_reasons_are_escaped():
    table = Table("<b>", (Row("a|b", {}), Row("<script>", {})))
    found = {"a|b": "not run: /data/x|y\n<img src=x onerror=alert(1)> & more"}
    text = markdown(table, found, "digits")
    assert r"| a\|b | not run: /data/x\|y &lt;img src=x onerror=alert(1)> & more |" in text
    assert "| &lt;script> | not run |" in text and "<" not in text
    html = as_html(table, found, "digits")
    assert "&lt;img src=x onerror=alert(1)&gt; &amp; more" in html and "<img" not in html and "<script" not in html


def test_the_page_of_all_tables(tmp_path):
    config = digits.get_config()
    config.name = "<script>"
    experiment = Experiment(tmp_path, ["--config=<script>"], config, "test")
    found = {"CE": [Result({"all": 12.5})] * 2, "RAC": "not run: <script>"}
    text = page.make(experiment, {"main": (TABLES["main"], found)}, seeds=2)
    assert '<td>RAC</td><td class="reason" colspan="5">not run: &lt;script&gt;</td>' in text
    assert "<td>CE</td><td>12.5 ± 0.0</td>" in text and "Methods (main)" in text
    assert "<script" not in text and "Not run: retrieval, index, text" in text
    assert "python -m rac_jax.reproduce TABLE &#x27;--config=&lt;script&gt;&#x27; --seeds=2</pre>" in text
    two = page.make(experiment, {name: (TABLES[name], found) for name in ("main", "tau")}, seeds=2)
    assert '<a href="#tau">Strength τ of the logit adjustment</a>' in two and '<a id="tau"></a>' in two


def test_tables_with_other_memories_are_named(tmp_path):
    experiment = Experiment(tmp_path, ["--config=x"], digits.get_config(), "test")
    for name in ("content", "content_places", "content_<b>"):
        (tmp_path / f"{name}.md").write_text("")
    found = {"content_places": (TABLES["content"], {"all rows": [Result({"all": 12.5})]})}
    text = page.make(experiment, found, seeds=1)
    assert "(content_places)" in text and "content_&lt;b&gt;.md</a>." in text
    assert '<a href="content_%3Cb%3E.md">' in text


def test_rows_are_compared_with_the_row_that_they_name():
    rows = (Row("a", {}), Row("b", {}, against="a"), Row("c", {}), Row("d", {}, against="c"))
    first = {"a": 1, "b": 4, "c": 10, "d": 5}
    found = {name: [Result({"all": value}), Result({"all": value + 2})] for name, value in first.items()}
    compared = results.differences(Table("t", rows, columns=("all",)), found)
    assert compared.caption == "Differences in the same seed, in points: mean ± standard error."
    assert compared.cells == [["", "all"], ["b − a", "+3.0 ± 0.0"], ["d − c", "−5.0 ± 0.0"]]
    both = results.differences(Table("t", rows, columns=("all",), reference="a"), found)
    assert both.cells[1:] == [["b − a", "+3.0 ± 0.0"], ["c", "+9.0 ± 0.0"], ["d − c", "−5.0 ± 0.0"]]
    assert both.caption.startswith("Differences from a in")
    named = Table("t", (Row("a", {}), Row("c", {})), columns=("all",), reference="c")
    assert results.differences(named, found).cells[1] == ["a", "−9.0 ± 0.0"]


def test_a_plot_by_minutes_has_a_point_per_row():
    table = Table("t", (Row("a", {}), Row("b", {})), measures=("minutes",), by="minutes")
    found = {
        "a": [Result({"all": 50.0, "few": 40.0, "minutes": 1.0})],
        "b": [Result({"all": 60.0, "minutes": 30.0})],
    }
    axes = figures.plot(table, found).axes[0]
    points = [line.get_xydata()[0].tolist() for line in axes.lines if len(line.get_xydata())]
    assert [1.0, 50.0] in points and [30.0, 60.0] in points and [1.0, 40.0] in points
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert axes.get_xscale() == "log" and legend == ["all", "few", "a", "b"]  # each row once for both points
