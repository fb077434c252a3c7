"""The plots of tables."""

import statistics
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from rac_jax.report.captions import label
from rac_jax.reproduce.further import MEMORY_AT
from rac_jax.reproduce.results import NOT_RUN, Results
from rac_jax.reproduce.runs import Result
from rac_jax.reproduce.table import Row, Table

COLOURS = {"all": "#222222", "many": "#1f77b4", "medium": "#ff7f0e", "few": "#2ca02c"}
MARKERS, FILLED = {"all": "o", "few": "s"}, {"all": "full", "few": "none"}  # of a plot by minutes
NAME = 48  # characters of a row's name


def plot(table: Table, results: Results) -> Figure:
    """Accuracy by group, or the first measure: a line of points per row, or a curve along the table's axis."""
    rows = [row for row in table.rows if not isinstance(results.get(row.name, NOT_RUN), str)]
    if table.across:
        return _plot_across(table, results, rows)
    if table.by:
        return _plot_by(table, results, rows)
    if not table.columns:
        return _plot_measure(table, results, rows)
    return _plot_axis(table, results, rows) if table.axis else _plot_rows(table, results, rows)


def _shown(table: Table, results: Results, rows: Sequence[Row]) -> dict[str, str]:
    """The columns that some row has figures of, and their colours."""
    colours = {column: f"C{number}" for number, column in enumerate(table.columns)}
    colours = COLOURS if "many" in colours else colours
    return {name: colour for name, colour in colours.items() if any(_point(results[row.name], name) for row in rows)}


def _plot_rows(table: Table, results: Results, rows: Sequence[Row]) -> Figure:
    """A line of the plot for each row, with a point for each column."""
    figure, axes = _lines(rows)
    shown = _shown(table, results, rows)
    for place in range(1, len(rows), 2):
        axes.axhspan(place - 0.5, place + 0.5, color="#8888881a", linewidth=0)
    for series, (column, colour) in enumerate(shown.items()):
        known = [(place, point) for place, row in enumerate(rows) if (point := _point(results[row.name], column))]
        y = [place + 0.5 * (series / max(len(shown) - 1, 1) - 0.5) for place, _ in known]
        middle, spread = zip(*(point for _, point in known), strict=True)
        axes.errorbar(middle, y, xerr=spread, fmt="o", markersize=4.5, color=colour, capsize=2, label=column)
    _label(axes, table)
    return figure


def _plot_measure(table: Table, results: Results, rows: Sequence[Row]) -> Figure:
    """A bar for each row: the first measure."""
    figure, axes = _lines(rows)
    for place, row in enumerate(rows):
        point = _point(results[row.name], table.measures[0])
        if point:
            middle, spread = point
            below = min(spread, middle)  # no time is negative
            axes.barh(place, middle, 0.6, xerr=[[below], [spread]], color=COLOURS["many"], capsize=2)
    _label(axes, table)
    return figure


def _lines(rows: Sequence[Row]):  # type: ignore[no-untyped-def]  # a figure and its axes
    """A plot with a line per row, the first on top."""
    figure = Figure(figsize=(7.5, max(2.2, 1.1 + 0.34 * len(rows))), layout="constrained")
    axes = figure.add_subplot()
    axes.set_yticks(range(len(rows)), [label(row.name, NAME) for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    return figure, axes


def _plot_axis(table: Table, results: Results, rows: Sequence[Row]) -> Figure:
    """A curve for each column along the table's axis."""
    figure = Figure(figsize=(7.5, 4), layout="constrained")
    axes = figure.add_subplot()
    for column, colour in _shown(table, results, rows).items():
        known = [(row.x, *point) for row in rows if (point := _point(results[row.name], column))]
        x, middle, spread = zip(*known, strict=True)
        axes.errorbar(x, middle, spread, color=colour, marker="o", capsize=3, label=column)
    _label(axes, table)
    if table.log:
        axes.set_xscale("log")
    axes.set_xticks([row.x for row in rows], [f"{row.x:g}" for row in rows])
    axes.minorticks_off()
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
    _label(axes, table)
    axes.set_xticks(range(len(table.columns)), [column.removeprefix(MEMORY_AT) for column in table.columns])
    return figure


def _plot_by(table: Table, results: Results, rows: Sequence[Row]) -> Figure:
    """A colour per row: a point for all classes and one for the few, at the place that the measure gives; log axis."""
    figure = Figure(figsize=(8.5, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for column, marker in MARKERS.items():
        axes.plot([], [], marker, color=COLOURS["all"], fillstyle=FILLED[column], label=column)
    for number, row in enumerate(rows):
        place, found, name = _point(results[row.name], table.by), results[row.name], label(row.name, NAME)
        for column, marker in MARKERS.items():
            if place and (point := _point(found, column)):
                style: dict[str, Any] = {"fmt": marker, "fillstyle": FILLED[column], "capsize": 2, "elinewidth": 0.8}
                style |= {"color": f"C{number}", "label": name}
                axes.errorbar(place[0], point[0], xerr=place[1], yerr=point[1], **style)
                name = ""  # one line in the legend
    _label(axes, table)
    axes.set_xscale("log")
    ticks = _ticks(axes.get_xlim())
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    return figure


def _ticks(limits: tuple[float, float]) -> list[float]:
    """Round numbers between two limits, for a log axis."""
    return [n for n in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if limits[0] <= n <= limits[1]]


def _point(found: Sequence[Result] | str, column: str) -> tuple[float, float] | None:
    results = [] if isinstance(found, str) else found
    values = [result.figures[column] for result in results if column in result.figures]
    return (statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0) if values else None


def _label(axes, table: Table) -> None:  # type: ignore[no-untyped-def]
    value = "accuracy, %" if table.columns else table.measures[0]
    lying = not (table.axis or table.by)  # a line per row
    axes.set_xlabel(value if lying else table.axis or table.by)
    if not lying:
        axes.set_ylabel(value)
    axes.set_title(table.title)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x" if lying else "y", alpha=0.25)
    if table.columns:
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
