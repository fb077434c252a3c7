"""A table of results: means and deviations over seeds, as Markdown and as a plot, the paper's figures beside them."""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from rac_jax.reproduce.runs import Result
from rac_jax.reproduce.tables import RATIO, Row, Table

COLOURS = {"all": "#222222", "many": "#1f77b4", "medium": "#ff7f0e", "few": "#2ca02c"}
NOT_RUN = "not run"

Results = Mapping[str, Sequence[Result] | str]  # by row: a result a seed, or why there is none


def with_ratios(table: Table, results: Results) -> Results:
    """The results with what the first measure is relative to the first row's, where the table shows that."""
    base = results.get(table.rows[0].name, NOT_RUN)
    if RATIO not in table.measures or isinstance(base, str):
        return results
    mean = statistics.mean(result.figures[table.measures[0]] for result in base)

    def ratio(result: Result) -> Result:
        more = {RATIO: result.figures[table.measures[0]] / mean}
        return dataclasses.replace(result, figures={**result.figures, **more})

    return {name: found if isinstance(found, str) else [*map(ratio, found)] for name, found in results.items()}


def markdown(table: Table, results: Results, dataset: str) -> str:
    """One line a row; the paper's figures in columns of their own where it has some for the data set."""
    columns = [*table.columns, *table.measures]
    paper = [column for column in columns if any(column in row.paper.get(dataset, {}) for row in table.rows)]
    head = ["", *columns, *(f"paper: {column}" for column in paper)]
    lines = [_line(head), _line(["---"] * len(head))]
    for row in table.rows:
        found = results.get(row.name, NOT_RUN)
        if isinstance(found, str):
            ours = [found, *[""] * (len(columns) - 1)]
        else:
            ours = _cells(table, columns, [result.figures for result in found], decimals=1)
        theirs = _cells(table, paper, [row.paper.get(dataset, {})], decimals=2)
        lines.append(_line([row.name, *ours, *theirs]))
    places = {result.on for found in results.values() if not isinstance(found, str) for result in found}
    lines += ["", f"Measured on {', '.join(sorted(places))}."] if places - {""} else []
    return "\n".join(lines) + "\n"


def _cells(table: Table, columns: Sequence[str], figures: Sequence[Mapping[str, float]], decimals: int) -> list[str]:
    values = {column: [those[column] for those in figures if column in those] for column in columns}
    return [cell(values[column], decimals if column in table.columns else None) for column in columns]


def cell(values: Sequence[float], decimals: int | None = None) -> str:
    """Mean ± standard deviation; a dash where there is nothing, as for a group without classes.

    Without a number of decimals the mean shows three digits that count, but no more than three behind the point.
    """
    if not values:
        return "–"
    mean = statistics.mean(values)
    if decimals is None:
        decimals = min(3, max(0, 2 - math.floor(math.log10(mean)))) if mean > 0 else 0
    both = [mean, statistics.stdev(values)] if len(values) > 1 else [mean]
    return " ± ".join(f"{value:,.{decimals}f}" for value in both)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def plot(table: Table, results: Results) -> Figure:
    """Accuracy by group, or the first measure, over the rows or along the axis that they stand on."""
    rows = [row for row in table.rows if not isinstance(results.get(row.name, NOT_RUN), str)]
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
