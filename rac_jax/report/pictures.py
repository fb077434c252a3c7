"""Pictures of what was retrieved."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from rac_jax.data.decode import decode

TILE, CAPTION, BORDER = 96, 14, 3
RIGHT, WRONG, QUERY = (30, 150, 60), (200, 60, 50), (90, 90, 90)


def neighbour_strip(
    query: np.ndarray,
    query_text: str,
    neighbours: Sequence[np.ndarray],
    texts: Sequence[str],
) -> np.ndarray:
    """The query, then its neighbours, nearest first; those that name its class framed in green."""
    tiles = [_tile(query, query_text, QUERY)]
    for image, text in zip(neighbours, texts, strict=True):
        tiles.append(_tile(image, text, RIGHT if text == query_text else WRONG))
    return np.concatenate(tiles, axis=1)


def of_file(path: Path | None) -> np.ndarray:
    """The image in a file; grey where there is none."""
    return decode(path.read_bytes(), str(path)) if path else np.full((TILE, TILE, 3), 128, np.uint8)


def _tile(image: np.ndarray, text: str, colour: tuple[int, int, int]) -> np.ndarray:
    picture = Image.new("RGB", (TILE + 2 * BORDER, TILE + 2 * BORDER + CAPTION), colour)
    picture.paste(Image.fromarray(image).resize((TILE, TILE)), (BORDER, BORDER))
    draw = ImageDraw.Draw(picture)
    draw.text((BORDER, TILE + BORDER + 1), text[:16], fill="white")
    return np.asarray(picture)
