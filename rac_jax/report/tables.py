"""Accuracies as text."""

from collections.abc import Mapping

COLUMNS = ("all", "many", "medium", "few", "top5")


def accuracy_table(branches: Mapping[str, Mapping[str, float]]) -> str:
    """Branches × groups in per cent; a group without classes shows a dash."""
    lines = ["branch     " + "".join(f"{name:>9}" for name in COLUMNS)]
    for branch, accuracy in branches.items():
        cells = (f"{100 * accuracy[c]:9.2f}" if c in accuracy else f"{'–':>9}" for c in COLUMNS)
        lines.append(f"{branch:<11}" + "".join(cells))
    return "\n".join(lines)
