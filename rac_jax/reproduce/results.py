"""The results of a table as cells: means over seeds, paired differences, the paper's figures."""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence

from rac_jax.reproduce.further import GAIN
from rac_jax.reproduce.paper import RATIO
from rac_jax.reproduce.rendering import NOT_RUN, Block, Cells
from rac_jax.reproduce.runs import Result
from rac_jax.reproduce.table import Table

MINUS = "−"
Results = Mapping[str, Sequence[Result] | str]  # by row: a result per seed, or the reason why there is none


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


def blocks(table: Table, results: Results, dataset: str) -> list[Block]:
    """What is shown of a table, one below the other: its cells, the differences between rows, and the hardware."""
    shown: list[Block] = [cells(table, results, dataset)]
    compared = differences(table, results)
    if compared:
        shown += [compared.caption, compared.cells]
    return shown + ([f"Measured on {machines(results)}."] if machines(results) else [])


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
    """How rows differ from the ones that they are compared with, seed by seed."""

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
    reference = table.reference if table.reference in done else next(iter(done))
    lines = [["", *table.columns]]
    for row in table.rows:
        other = row.against or reference
        if row.name in done and other in done and row.name != other and (row.against or _compared(row.name, table)):
            pairs = list(zip(done[other], done[row.name], strict=False))
            name = f"{row.name} − {other}" if row.against else row.name
            lines.append([name, *(_difference(pairs, column) for column in table.columns)])
    if len(lines) == 1:
        return None
    whom = f" from {reference}" if any(not row.against and _compared(row.name, table) for row in table.rows) else ""
    return Differences(f"Differences{whom} in the same seed, in points: mean ± standard error.", lines)


def _compared(name: str, table: Table) -> bool:
    """Whether a row that names none is compared: not if others name it and the table has no reference."""
    return bool(table.reference) or all(row.against != name for row in table.rows)


def _difference(pairs: Sequence[tuple[Result, Result]], column: str) -> str:
    values = [b.figures[column] - a.figures[column] for a, b in pairs if column in a.figures and column in b.figures]
    if len(values) < 2:
        return "–"
    error = statistics.stdev(values) / math.sqrt(len(values))
    return f"{statistics.mean(values):+.1f} ± {error:.1f}".replace("-", MINUS)


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
    return " ± ".join(f"{value:,.{decimals}f}" for value in both).replace("-", MINUS)
