"""Blocks of text and cells as Markdown and as HTML."""

import html
from collections.abc import Sequence

NOT_RUN = "not run"  # begins the first cell of a row without figures

Cells = list[list[str]]  # the first line is the head
Block = str | Cells  # a paragraph, or a table


def markdown(blocks: Sequence[Block]) -> str:
    """Blocks as Markdown."""
    return "\n".join(f"{_escaped(block)}\n" if isinstance(block, str) else _markdown(block) for block in blocks)


def as_html(blocks: Sequence[Block]) -> str:
    """Blocks as HTML."""
    return "\n".join(f"<p>{html.escape(block)}</p>" if isinstance(block, str) else _html(block) for block in blocks)


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


def seeds(number: int) -> str:
    """How many runs a figure is the mean of, in words."""
    return "one seed" if number == 1 else f"{number} seeds"
