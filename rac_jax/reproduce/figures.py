"""The plots of tables."""

import statistics
from collections.abc import Sequence

from matplotlib.figure import Figure

from rac_jax.reproduce.results import NOT_RUN, Results
from rac_jax.reproduce.runs import Result
from rac_jax.reproduce.table import Row, Table

COLOURS = {"all": "#222222", "many": "#1f77b4", "medium": "#ff7f0e", "few": "#2ca02c"}


def plot(table: Table, results: Results) -> Figure:
    """Accuracy by group, or the first measure: a bar per row, or a curve along the table's axis."""
    rows = [row for row in table.rows if not isinstance(results.get(row.name, NOT_RUN), str)]
    if table.across:
        return _plot_across(table, results, rows)
    if table.by:
        return _plot_by(table, results, rows)
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


def _plot_by(table: Table, results: Results, rows: Sequence[Row]) -> Figure:
    """A point per row for all classes and one for the few, at the place that the measure gives, on a log axis."""
    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for column, marker in (("all", "o"), ("few", "s")):
        for row in rows:
            place, point = _point(results[row.name], table.by), _point(results[row.name], column)
            if place and point:
                at, colour = (place[0], point[0]), COLOURS[column]
                axes.errorbar(*at, xerr=place[1], yerr=point[1], capsize=2, marker=marker, color=colour)
                axes.annotate(row.name, at, xytext=(5, 4), textcoords="offset points", fontsize=8)
        axes.plot([], [], marker, color=COLOURS[column], label=column)
    _label(axes, table, rows)
    axes.set_xscale("log")
    ticks = _ticks(axes.get_xlim())
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel(table.by)
    return figure


def _ticks(limits: tuple[float, float]) -> list[float]:
    """Round numbers between two limits, for a log axis."""
    return [n for n in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if limits[0] <= n <= limits[1]]


def _point(found: Sequence[Result] | str, column: str) -> tuple[float, float] | None:
    results = [] if isinstance(found, str) else found
    values = [result.figures[column] for result in results if column in result.figures]
    return (statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0) if values else None


def _label(axes, table: Table, rows: Sequence[Row]) -> None:  # type: ignore[no-untyped-def]
    if table.axis:
        axes.set_xlabel(table.axis)
        if table.log:
            axes.set_xscale("log")
    elif not table.by:
        axes.set_xticks(range(len(rows)), [row.name for row in rows], rotation=20, ha="right")
    axes.set_ylabel("accuracy, %" if table.columns else table.measures[0])
    axes.set_title(table.title)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.25)
    if table.columns:
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
