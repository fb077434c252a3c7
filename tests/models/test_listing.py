"""The listing of `python -m rac_jax.models`."""

import pytest

from rac_jax.models import __main__ as listing


def test_a_row_names_size_cost_and_weights():
    name, parameters, features, size, gflops, files = listing.row("vit_ti16")
    assert (name, parameters, features, size) == ("vit_ti16", "5,524,416", "192", "224 px")
    # 11 blocks of 197 tokens: 2 · 12 · D² a token for the products, and attention's 4 · T · D.
    # The last one has the keys and values of all, and the rest for the class token alone.
    whole, last = 24 * 192**2 + 4 * 197 * 192, 20 * 192**2 + 4 * 197 * 192
    products = 11 * 197 * whole + (197 * 4 * 192**2 + last) + 2 * 196 * 768 * 192
    assert float(gflops) == pytest.approx(products / 1e9, rel=0.02)
    assert files == "vit_ti16:augreg_in21k"


def test_the_table_is_aligned(monkeypatch, capsys):
    monkeypatch.setattr(listing.models, "NAMES", ("random_words", "glove"))
    listing.main()
    header, first, second = capsys.readouterr().out.splitlines()
    assert header.split() == ["model", "parameters", "features", "input", "GFLOPs", "weights"]
    assert first.split() == ["random_words", "0", "300", "77", "tokens", "0.00", "-"]
    assert second.index("glove:6b_50d") == header.index("weights")
