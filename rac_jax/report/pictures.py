"""Strips of small images: a query and its neighbours."""

from collections.abc import Callable, Sequence

import numpy as np
from absl import logging
from PIL import Image, ImageDraw, ImageFont

from rac_jax.data.decode import BadImage, decode
from rac_jax.memory.store import Memory
from rac_jax.report import captions

TILE, CAPTION, BORDER = 96, 14, 3
RIGHT, WRONG, NEUTRAL = (30, 150, 60), (200, 60, 50), (90, 90, 90)


def neighbour_strip(
    query: np.ndarray,
    query_text: str,
    neighbours: Sequence[np.ndarray],
    texts: Sequence[str],
    matches: Sequence[bool | None],
) -> np.ndarray:
    """The query, then its neighbours, nearest first.

    `matches` says which of them are of the query's class: their frames are green, those of others red. None stands for
    "not known": a grey frame.
    """
    colours = [NEUTRAL if match is None else RIGHT if match else WRONG for match in matches]
    tiles = [_tile(image, text, colour) for image, text, colour in zip(neighbours, texts, colours, strict=True)]
    return np.concatenate([_tile(query, query_text, NEUTRAL), *tiles], axis=1)


def of_row(memory: Memory, row: int) -> np.ndarray:
    """The image of a memory's row, from its file or its thumbnail; a grey tile if there is neither."""
    path, small = memory.file_of(row), memory.thumbnail(row)
    if path is not None:
        return or_grey(lambda: decode(path.read_bytes(), str(path)))
    return grey() if small is None else or_grey(lambda: decode(small, f"the thumbnail of row {row}"))


def or_grey(read: Callable[[], np.ndarray]) -> np.ndarray:
    """The result of `read`; a grey tile and a warning if the image is damaged or missing."""
    try:
        return read()
    except (OSError, BadImage) as error:
        logging.warning("a neighbour is shown in grey: %s", error)
        return grey()


def grey() -> np.ndarray:
    """A tile in place of an image that cannot be shown."""
    return np.full((TILE, TILE, 3), 128, np.uint8)


def _tile(image: np.ndarray, text: str, colour: tuple[int, int, int]) -> np.ndarray:
    picture = Image.new("RGB", (TILE + 2 * BORDER, TILE + 2 * BORDER + CAPTION), colour)
    picture.paste(Image.fromarray(image).resize((TILE, TILE)), (BORDER, BORDER))
    font = ImageFont.truetype(captions.font_file(), 10)
    ImageDraw.Draw(picture).text((BORDER, TILE + BORDER + 1), captions.short(text, 16), fill="white", font=font)
    return np.asarray(picture)
