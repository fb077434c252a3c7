import pytest
from matplotlib.figure import Figure

from rac_jax.report import captions, plots
from tests.report import hostile


def test_a_text_is_cut_and_on_one_line():
    assert captions.short("art  gallery\n", 20) == "art gallery"
    assert captions.short("abcdefgh", 8) == "abcdefgh" and captions.short("abcdefghi", 8) == "abcdefg…"


def test_a_character_without_a_glyph_or_shape_is_replaced():
    assert captions.short("犬 a\0\udcff", 20) == "� a��"


def test_dollar_signs_are_no_formula():
    text = Figure().text(0, 0, captions.label("$5 to $6^", 20))
    assert text._preprocess_math(text.get_text()) == ("$5 to $6^", False)


@pytest.mark.parametrize("name", hostile.NAMES)
def test_any_name_is_drawn_without_a_warning(name):
    figure = Figure(figsize=(1, 1))
    figure.text(0, 0, captions.label(name, 20))
    assert plots.png(figure).startswith(b"\x89PNG")
