"""Tables as plain text."""

from collections.abc import Iterable, Mapping, Sequence

COLUMNS = ("all", "many", "medium", "few", "new", "top5")


def columns_of(accuracies: Iterable[Mapping[str, float]]) -> tuple[str, ...]:
    """The groups to show: `new` only where there are classes without training."""
    present = set().union(*accuracies)
    return tuple(name for name in COLUMNS if name != "new" or name in present)


def accuracy_table(voices: Mapping[str, Mapping[str, float]]) -> str:
    """Voices × groups in per cent; a group without classes shows a dash."""
    shown = columns_of(voices.values())
    lines = ["voice      " + "".join(f"{name:>9}" for name in shown)]
    for voice, accuracy in voices.items():
        cells = (f"{100 * accuracy[c]:9.2f}" if c in accuracy else f"{'–':>9}" for c in shown)
        lines.append(f"{voice:<11}" + "".join(cells))
    return "\n".join(lines)


def coverage_rows(levels: Mapping[str, Mapping[str, Mapping[str, float]]]) -> list[list[str]]:
    """Cells: for each coverage that was asked for, the share of images covered and the mean size of a set, by group."""
    groups = [name for name in COLUMNS if any(name in found for found in levels.values())]
    rows = [["asked, %", *groups]]
    for level, found in levels.items():
        cells = (
            f"{100 * found[g]['covered']:.1f} % in {found[g]['labels']:.1f}" if g in found else "–" for g in groups
        )
        rows.append([f"{100 * float(level):g}", *cells])
    return rows


def columns(rows: Sequence[Sequence[str]], indent: int = 0) -> str:
    """Rows of cells with aligned columns; a column whose last cell is a number is aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    right = [cell.replace(".", "").isdecimal() for cell in rows[-1]]
    lines = []
    for row in rows:
        cells = zip(row, widths, right, strict=True)
        aligned = (cell.rjust(width) if is_number else cell.ljust(width) for cell, width, is_number in cells)
        lines.append(" " * indent + "  ".join(aligned).rstrip())
    return "\n".join(lines)
