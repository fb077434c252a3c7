"""A table of results as Markdown, as HTML and as a plot: means over seeds, paired differences, the paper's figures."""

import dataclasses
import html
import math
import statistics
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from rac_jax.reproduce.runs import Result
from rac_jax.reproduce.tables import GAIN, RATIO, Row, Table

COLOURS = {"all": "#222222", "many": "#1f77b4", "medium": "#ff7f0e", "few": "#2ca02c"}
NOT_RUN = "not run"

Results = Mapping[str, Sequence[Result] | str]  # by row: a result per seed, or the reason why there is none
Cells = list[list[str]]  # the first line is the head


def with_ratios(table: Table, results: Results) -> Results:
    """The results with the ratio of the first measure to that of the first row, if the table shows it."""
    base = results.get(table.rows[0].name, NOT_RUN)
    if RATIO not in table.measures or isinstance(base, str):
        return results
    mean = statistics.mean(result.figures[table.measures[0]] for result in base)

    def ratio(result: Result) -> Result:
        more = {RATIO: result.figures[table.measures[0]] / mean}
        return dataclasses.replace(result, figures={**result.figures, **more})

    return {name: found if isinstance(found, str) else [*map(ratio, found)] for name, found in results.items()}


def with_gains(table: Table, results: Results) -> Results:
    """The results with the share of what retraining brings that the edits brought, if the table shows it.

    That is (edited − before) / (retrained − before), seed by seed; the last row was trained on everything.
    """
    retrained = results.get(table.rows[-1].name, NOT_RUN)
    if GAIN not in table.measures or isinstance(retrained, str):
        return results

    def gain(result: Result, goal: Result) -> Result:
        figures = result.figures
        if "before" not in figures or goal.figures["all"] == figures["before"]:
            return result
        share = (figures["all"] - figures["before"]) / (goal.figures["all"] - figures["before"])
        return dataclasses.replace(result, figures={**figures, GAIN: 100 * share})

    return {
        name: found if isinstance(found, str) else [gain(*pair) for pair in zip(found, retrained, strict=False)]
        for name, found in results.items()
    }


def markdown(table: Table, results: Results, dataset: str) -> str:
    """The table, the differences between its rows, and the hardware."""
    parts = [_markdown(cells(table, results, dataset))]
    compared = differences(table, results)
    if compared:
        parts.append(f"{compared.caption}\n\n{_markdown(compared.cells)}")
    if machines(results):
        parts.append(f"Measured on {machines(results)}.\n")
    return "\n".join(parts)


def as_html(table: Table, results: Results, dataset: str) -> str:
    """The same for a page."""
    parts = [_html(cells(table, results, dataset))]
    compared = differences(table, results)
    if compared:
        parts.append(f"<p>{html.escape(compared.caption)}</p>{_html(compared.cells)}")
    if machines(results):
        parts.append(f"<p>Measured on {html.escape(machines(results))}.</p>")
    return "\n".join(parts)


def cells(table: Table, results: Results, dataset: str) -> Cells:
    """One line per row; the paper's figures in columns of their own if it has any for the data set."""
    columns = [*table.columns, *table.measures]
    paper = [column for column in columns if any(column in row.paper.get(dataset, {}) for row in table.rows)]
    lines = [["", *columns, *(f"paper: {column}" for column in paper)]]
    for row in table.rows:
        found = results.get(row.name, NOT_RUN)
        if isinstance(found, str):
            ours = [found, *[""] * (len(columns) - 1)]
        else:
            ours = _cells(table, columns, [result.figures for result in found], decimals=1)
        lines.append([row.name, *ours, *_cells(table, paper, [row.paper.get(dataset, {})], decimals=2)])
    return lines


@dataclasses.dataclass(frozen=True)
class Differences:
    """How the rows differ from the first one, seed by seed."""

    caption: str
    cells: Cells


def differences(table: Table, results: Results) -> Differences | None:
    """In points of accuracy: mean ± standard error over the seeds. None without two rows that have two seeds each."""
    done = {
        row.name: found
        for row in table.rows
        if not isinstance(found := results.get(row.name, NOT_RUN), str) and len(found) > 1
    }
    if len(done) < 2 or not table.columns:
        return None
    reference, *others = done
    lines = [["", *table.columns]]
    for name in others:
        pairs = list(zip(done[reference], done[name], strict=False))
        lines.append([name, *(_difference(pairs, column) for column in table.columns)])
    caption = f"Differences from {reference} in the same seed, in points: mean ± standard error."
    return Differences(caption, lines)


def _difference(pairs: Sequence[tuple[Result, Result]], column: str) -> str:
    values = [b.figures[column] - a.figures[column] for a, b in pairs if column in a.figures and column in b.figures]
    if len(values) < 2:
        return "–"
    error = statistics.stdev(values) / math.sqrt(len(values))
    return f"{statistics.mean(values):+.1f} ± {error:.1f}"


def machines(results: Results) -> str:
    """What the times were measured on."""
    found = {result.on for those in results.values() if not isinstance(those, str) for result in those}
    return ", ".join(sorted(found - {""}))


def _cells(table: Table, columns: Sequence[str], figures: Sequence[Mapping[str, float]], decimals: int) -> list[str]:
    values = {column: [those[column] for those in figures if column in those] for column in columns}
    return [cell(values[column], decimals if column in table.columns else None) for column in columns]


def cell(values: Sequence[float], decimals: int | None = None) -> str:
    """Mean ± standard deviation; a dash if there are no values, as for a group without classes.

    If `decimals` is None, the mean is shown with three significant digits and at most three decimals.
    """
    if not values:
        return "–"
    mean = statistics.mean(values)
    if decimals is None:
        decimals = min(3, max(0, 2 - math.floor(math.log10(abs(mean))))) if mean else 0
    both = [mean, statistics.stdev(values)] if len(values) > 1 else [mean]
    return " ± ".join(f"{value:,.{decimals}f}" for value in both)


def _markdown(lines: Cells) -> str:
    head, *body = ([_escaped(cell) for cell in line] for line in lines)
    return "".join("| " + " | ".join(line) + " |\n" for line in (head, ["---"] * len(head), *body))


def _escaped(cell: str) -> str:
    """A cell may hold a user's path or an error message."""
    return " ".join(cell.split()).replace("|", "\\|").replace("<", "&lt;")


def _html(lines: Cells) -> str:
    head, *body = ([html.escape(cell) for cell in line] for line in lines)
    rows = ["".join(f"<th>{cell}</th>" for cell in head), *map(_html_row, body)]
    return f'<div class="wide"><table>{"".join(f"<tr>{row}</tr>" for row in rows)}</table></div>'


def _html_row(line: Sequence[str]) -> str:
    """The cells of a line; the reason why a row was not run takes the cells of its figures."""
    if not line[1].startswith(NOT_RUN):
        return "".join(f"<td>{cell}</td>" for cell in line)
    paper = [cell for cell in line[2:] if cell]
    reason = f'<td class="reason" colspan="{len(line) - 1 - len(paper)}">{line[1]}</td>'
    return f"<td>{line[0]}</td>{reason}" + "".join(f"<td>{cell}</td>" for cell in paper)


def plot(table: Table, results: Results) -> Figure:
    """Accuracy by group, or the first measure: a bar per row, or a curve along the table's axis."""
    rows = [row for row in table.rows if not isinstance(results.get(row.name, NOT_RUN), str)]
    if table.across:
        return _plot_across(table, results, rows)
    shown = {column: f"C{number}" for number, column in enumerate(table.columns)}
    if not table.columns or "many" in table.columns:
        shown = COLOURS if table.columns else {table.measures[0]: COLOURS["many"]}
    width = 0.8 / len(shown)
    figure = Figure(figsize=(7.5, 4), layout="constrained")
    axes = figure.add_subplot()
    for series, (column, colour) in enumerate(shown.items()):
        points = [_point(results[row.name], column) for row in rows]
        known = [place for place, point in enumerate(points) if point]
        if not known:
            continue
        middle, spread = zip(*(points[place] for place in known), strict=True)
        if table.axis:
            x = [rows[place].x for place in known]
            axes.errorbar(x, middle, spread, color=colour, marker="o", capsize=3, label=column)
        else:
            x = [place + width * (series - (len(shown) - 1) / 2) for place in known]
            axes.bar(x, middle, width, yerr=spread, color=colour, capsize=2, label=column)
    _label(axes, table, rows)
    return figure


def _plot_across(table: Table, results: Results, rows: Sequence[Row]) -> Figure:
    """A curve per row, from column to column; the first points of the curves are joined by a dashed line."""
    figure = Figure(figsize=(7.5, 4), layout="constrained")
    axes = figure.add_subplot()
    first = []
    for row in rows:
        points = [(x, *point) for x, column in enumerate(table.columns) if (point := _point(results[row.name], column))]
        if points:
            x, middle, spread = zip(*points, strict=True)
            axes.errorbar(x, middle, spread, marker="o", capsize=3, label=row.name)
            first.append(points[0][:2])
    x, middle = zip(*first, strict=True)
    axes.plot(x, middle, color="#222222", linestyle="--", label="trained on the memory's rows")
    _label(axes, table, rows)
    axes.set_xticks(range(len(table.columns)), table.columns)
    return figure


def _point(found: Sequence[Result] | str, column: str) -> tuple[float, float] | None:
    results = [] if isinstance(found, str) else found
    values = [result.figures[column] for result in results if column in result.figures]
    return (statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0) if values else None


def _label(axes, table: Table, rows: Sequence[Row]) -> None:  # type: ignore[no-untyped-def]
    if table.axis:
        axes.set_xlabel(table.axis)
        if table.log:
            axes.set_xscale("log")
    else:
        axes.set_xticks(range(len(rows)), [row.name for row in rows], rotation=20, ha="right")
    axes.set_ylabel("accuracy, %" if table.columns else table.measures[0])
    axes.set_title(table.title)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.25)
    if table.columns:
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
