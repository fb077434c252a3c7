import numpy as np
import pyarrow as pa
from PIL import Image

from rac_jax.memory import columns, edit, store, thumbnails
from rac_jax.report import pictures
from tests.memory.conftest import RECIPE
from tests.report import hostile


def test_a_strip_frames_neighbours_of_the_querys_class_in_green_and_others_in_red_or_grey():
    grey = np.full((8, 8, 3), 128, np.uint8)
    strip = pictures.neighbour_strip(grey, "two", [grey] * 3, ["a 2", "two", "?"], [True, False, None])
    tile = pictures.TILE + 2 * pictures.BORDER
    assert strip.shape == (tile + pictures.CAPTION, 4 * tile, 3) and strip.dtype == np.uint8
    corners = [tuple(strip[0, i * tile]) for i in range(4)]
    assert corners == [pictures.NEUTRAL, pictures.RIGHT, pictures.WRONG, pictures.NEUTRAL]
    assert (strip[tile // 2, tile // 2] == 128).all()


def test_any_text_can_stand_under_an_image():
    grey = pictures.grey()
    names = hostile.NAMES
    assert pictures.neighbour_strip(grey, "$", [grey] * len(names), names, [None] * len(names)).std() > 10


def test_a_row_is_shown_by_its_file_or_its_thumbnail_and_is_grey_without(tmp_path):
    """Row 0 has both, row 1 only a thumbnail, row 2 a damaged file, row 3 neither."""
    Image.fromarray(np.full((4, 4, 3), 7, np.uint8)).save(tmp_path / "0.png")
    (tmp_path / "2.png").write_bytes(b"\xff\xd8\xff nothing")
    small = thumbnails.encode(np.full((8, 8, 3), 50, np.uint8), 96)
    for name, own in (("with", small), ("without", None)):
        edit.create(tmp_path / "memory", RECIPE, width=4)
        with edit.editing(tmp_path / "memory") as editor:
            editor.start(name, rows=4, fingerprint=name, origin="", root=str(tmp_path), thumbnails=own is not None)
            editor.append(np.eye(4, dtype=np.float32), [own] * 4 if own else ())
            editor.finish(columns.make(pa.array(["x"] * 4), [f"{i}.png" for i in range(4)]))
    memory = store.read(tmp_path / "memory")
    grey = [int(pictures.of_row(memory, row).mean()) for row in range(8)]
    assert grey == [7, 50, 128, 50, 7, 128, 128, 128]
