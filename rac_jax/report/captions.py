"""Names and captions as labels in pictures: one line of limited length, in characters that the font has."""

import functools

from matplotlib import font_manager

NO_GLYPH = "\N{REPLACEMENT CHARACTER}"  # in place of a character that the font does not have


def short(text: str, length: int) -> str:
    """The text on one line, at most `length` characters; a longer one is cut and ends in "…"."""
    line = " ".join(text.split())
    drawn = "".join(c if c.isprintable() and ord(c) in _characters() else NO_GLYPH for c in line[: length + 1])
    return drawn if len(line) <= length else drawn[: length - 1].rstrip() + "…"


def label(text: str, length: int) -> str:
    """`short` for matplotlib, which would read what stands between two dollar signs as a formula."""
    return short(text, length).replace("$", r"\$")


def font_file() -> str:
    """The file of the font that matplotlib draws with."""
    return font_manager.findfont(font_manager.FontProperties())


@functools.cache
def _characters() -> frozenset[int]:
    """The characters of the fonts that matplotlib is set to (`font.family` in a matplotlibrc; DejaVu Sans if unset)."""
    found: set[int] = set()
    for family in font_manager.FontProperties().get_family():
        path = font_manager.findfont(font_manager.FontProperties(family=[family]))
        found |= set(font_manager.get_font(path).get_charmap())
    return frozenset(found)
