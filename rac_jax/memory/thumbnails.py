"""Small JPEGs of a source's images, so that its rows can be shown where the images themselves are not.

A file holds those of one source: an Arrow stream, mapped when the memory is opened. It grows by a message per shard
while the source is encoded. A thumbnail shows the square that E sees.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
import pyarrow as pa
import simplejpeg
from jax.experimental import multihost_utils
from ml_collections import ConfigDict
from PIL import Image

from rac_jax.memory.manifest import BadMemory
from rac_jax.runtime import processes

SIDE, MOST_ROWS = 96, 10**6  # memory.thumbnails=-1: so many pixels, for a memory with up to so many rows
QUALITY = 80  # of JPEG: about 2.5 kB for 96 pixels
SCHEMA = pa.schema({"jpeg": pa.large_binary()})
START = SCHEMA.serialize().to_pybytes()  # an empty file


def side_for(config: ConfigDict, rows: int) -> int:
    """The side in pixels for a source with which the memory has so many rows; 0 for no thumbnails."""
    wanted = config.memory.thumbnails
    return wanted if wanted >= 0 else SIDE if rows <= MOST_ROWS else 0


def encode(image: np.ndarray, side: int) -> bytes:
    """The JPEG of a square image, uint8 [S, S, 3], shrunk to at most `side` pixels."""
    return _jpeg(_shrunk(image, side))


def of_batch(images: np.ndarray, side: int) -> list[bytes]:
    """The JPEGs of a batch, in the first process; `images` [b, S, S, 3] is this process's share of it."""
    with ThreadPoolExecutor() as pool:
        small = list(pool.map(_shrunk, images, [side] * len(images)))
        if jax.process_count() > 1:
            small = list(multihost_utils.process_allgather(np.stack(small), tiled=True))
        return list(pool.map(_jpeg, small)) if processes.first() else []


def _shrunk(image: np.ndarray, side: int) -> np.ndarray:
    if len(image) <= side:
        return image
    return np.asarray(Image.fromarray(image).resize((side, side), Image.Resampling.BILINEAR))


def _jpeg(image: np.ndarray) -> bytes:
    return simplejpeg.encode_jpeg(np.ascontiguousarray(image), quality=QUALITY, colorsubsampling="420")


def message(jpegs: Sequence[bytes]) -> bytes:
    """What a file grows by."""
    return pa.record_batch([pa.array(jpegs, pa.large_binary())], schema=SCHEMA).serialize().to_pybytes()


def write(path: Path, jpegs: Sequence[bytes]) -> None:
    """A file with these."""
    path.write_bytes(START + message(jpegs))


class Thumbnails:
    """The JPEGs of a source by number, read from the mapped file on access."""

    def __init__(self, column: pa.ChunkedArray):
        self._column = column

    def __len__(self) -> int:
        return len(self._column)

    def __getitem__(self, number: int) -> bytes:
        return self._column[number].as_py()


def read(path: Path, rows: int) -> Thumbnails:
    """Map a file, which must hold this many thumbnails."""
    try:
        table = pa.ipc.open_stream(pa.memory_map(str(path))).read_all()
        table.validate(full=True)  # a wrong offset would read outside of the file
    except (pa.ArrowException, OSError, ValueError) as error:
        raise BadMemory(f"{path} does not hold thumbnails, or was cut short ({error})") from error
    if table.schema != SCHEMA or len(table) != rows or table["jpeg"].null_count:
        raise BadMemory(f"{path} is damaged: it does not hold a thumbnail for each of the {rows} rows of its source")
    return Thumbnails(table["jpeg"])
