import numpy as np

from rac_jax.report import pictures


def test_a_strip_frames_what_names_the_querys_class_in_green_and_the_rest_in_red():
    grey = np.full((8, 8, 3), 128, np.uint8)
    strip = pictures.neighbour_strip(grey, "two", [grey, grey], ["two", "seven"])
    tile = pictures.TILE + 2 * pictures.BORDER
    assert strip.shape == (tile + pictures.CAPTION, 3 * tile, 3) and strip.dtype == np.uint8
    corners = [tuple(strip[0, i * tile]) for i in range(3)]
    assert corners == [pictures.QUERY, pictures.RIGHT, pictures.WRONG]
    assert (strip[tile // 2, tile // 2] == 128).all()
