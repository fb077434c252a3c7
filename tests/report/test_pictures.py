import numpy as np
from PIL import Image

from rac_jax.report import pictures
from tests.report import hostile


def test_a_strip_frames_what_names_the_querys_class_in_green_and_the_rest_in_red():
    grey = np.full((8, 8, 3), 128, np.uint8)
    strip = pictures.neighbour_strip(grey, "two", [grey, grey], ["two", "seven"])
    tile = pictures.TILE + 2 * pictures.BORDER
    assert strip.shape == (tile + pictures.CAPTION, 3 * tile, 3) and strip.dtype == np.uint8
    corners = [tuple(strip[0, i * tile]) for i in range(3)]
    assert corners == [pictures.QUERY, pictures.RIGHT, pictures.WRONG]
    assert (strip[tile // 2, tile // 2] == 128).all()


def test_any_text_can_stand_under_an_image():
    grey = pictures.grey()
    assert pictures.neighbour_strip(grey, "$", [grey] * len(hostile.NAMES), hostile.NAMES).std() > 10


def test_a_damaged_or_missing_file_is_a_grey_tile(tmp_path):
    Image.fromarray(np.full((4, 4, 3), 7, np.uint8)).save(tmp_path / "good.png")
    (tmp_path / "bad.jpg").write_bytes(b"\xff\xd8\xff nothing")
    assert (pictures.of_file(tmp_path / "good.png") == 7).all()
    for path in (tmp_path / "bad.jpg", tmp_path / "gone.jpg", None):
        assert (pictures.of_file(path) == 128).all()
