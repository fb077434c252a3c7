"""A table of results: means and deviations over seeds, as Markdown and as a plot, the paper's figures beside them."""

import statistics
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from rac_jax.report.tables import COLUMNS
from rac_jax.reproduce.runs import Accuracy
from rac_jax.reproduce.tables import Row, Table

COLOURS = {"all": "#222222", "many": "#1f77b4", "medium": "#ff7f0e", "few": "#2ca02c"}
NOT_RUN = "not run"

Results = Mapping[str, Sequence[Accuracy] | str]  # by row: a result a seed, or why there is none


def markdown(table: Table, results: Results, dataset: str) -> str:
    """One line a row; the paper's figures in columns of their own where it has some for the data set."""
    paper = any(dataset in row.paper for row in table.rows)
    head = ["", *COLUMNS] + ([f"paper: {group}" for group in COLUMNS[:4]] if paper else [])
    lines = [_line(head), _line(["---"] * len(head))]
    for row in table.rows:
        cells = [row.name, *_cells(results.get(row.name, NOT_RUN))]
        if paper:
            figures = row.paper.get(dataset, {})
            cells += [f"{figures[group]:.2f}" if group in figures else "–" for group in COLUMNS[:4]]
        lines.append(_line(cells))
    return "\n".join(lines) + "\n"


def _cells(found: Sequence[Accuracy] | str) -> list[str]:
    if isinstance(found, str):
        return [found, *[""] * (len(COLUMNS) - 1)]
    return [cell([accuracy[group] for accuracy in found if group in accuracy]) for group in COLUMNS]


def cell(values: Sequence[float]) -> str:
    """Mean ± standard deviation in %; a dash for a group without classes."""
    if not values:
        return "–"
    mean = 100 * statistics.mean(values)
    return f"{mean:.1f} ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else f"{mean:.1f}"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def plot(table: Table, results: Results) -> Figure:
    """Accuracy by group over the rows, or along the axis that the rows stand on."""
    rows = [row for row in table.rows if not isinstance(results.get(row.name, NOT_RUN), str)]
    figure = Figure(figsize=(7.5, 4), layout="constrained")
    axes = figure.add_subplot()
    for number, (group, colour) in enumerate(COLOURS.items()):
        points = [_point(results[row.name], group) for row in rows]
        known = [place for place, point in enumerate(points) if point]
        if not known:
            continue
        middle, spread = zip(*(points[place] for place in known), strict=True)
        if table.axis:
            x = [rows[place].x for place in known]
            axes.errorbar(x, middle, spread, color=colour, marker="o", capsize=3, label=group)
        else:
            x = [place + 0.2 * (number - 1.5) for place in known]
            axes.bar(x, middle, 0.2, yerr=spread, color=colour, capsize=2, label=group)
    _label(axes, table, rows)
    return figure


def _point(found: Sequence[Accuracy] | str, group: str) -> tuple[float, float] | None:
    values = [100 * accuracy[group] for accuracy in found if group in accuracy] if not isinstance(found, str) else []
    return (statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0) if values else None


def _label(axes, table: Table, rows: Sequence[Row]) -> None:  # type: ignore[no-untyped-def]
    if table.axis:
        axes.set_xlabel(table.axis)
        if table.log:
            axes.set_xscale("log")
    else:
        axes.set_xticks(range(len(rows)), [row.name for row in rows], rotation=20, ha="right")
    axes.set_ylabel("accuracy, %")
    axes.set_title(table.title)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.25)
    axes.legend(frameon=False)
