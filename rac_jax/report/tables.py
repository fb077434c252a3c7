"""Tables as plain text."""

from collections.abc import Mapping, Sequence

COLUMNS = ("all", "many", "medium", "few", "top5")


def accuracy_table(branches: Mapping[str, Mapping[str, float]]) -> str:
    """Accuracy in % by branch and group; a dash for a group without classes."""
    lines = ["branch     " + "".join(f"{name:>9}" for name in COLUMNS)]
    for branch, accuracy in branches.items():
        cells = (f"{100 * accuracy[c]:9.2f}" if c in accuracy else f"{'–':>9}" for c in COLUMNS)
        lines.append(f"{branch:<11}" + "".join(cells))
    return "\n".join(lines)


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
