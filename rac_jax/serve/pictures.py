"""What the page shows: thumbnails of rows, a few rows of each class, and images of the test split to try."""

import functools
import io
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from absl import logging
from PIL import Image

from rac_jax.api import Model
from rac_jax.data import evaluation, record
from rac_jax.data.dataset import Dataset, Images
from rac_jax.data.decode import JPEG_START, BadImage
from rac_jax.memory.view import MemoryView

SIDE = 192  # pixels of a thumbnail that is made here
EACH = 6  # rows of a class that are shown
SHOWN = 24  # images to try
PNG_START = b"\x89PNG"


def jpeg(pixels: np.ndarray, side: int = SIDE) -> bytes:
    """A JPEG of an image uint8 [H, W, 3], with at most `side` pixels a side."""
    picture, file = Image.fromarray(pixels), io.BytesIO()
    picture.thumbnail((side, side))
    picture.save(file, "JPEG", quality=85)
    return file.getvalue()


def thumbnail(memory: MemoryView, row: int) -> bytes | None:
    """The JPEG that the memory keeps of a row, or one of its file; None if there is neither."""
    kept = memory.thumbnail(row)
    if kept is not None:
        return kept
    picture = memory.image(row)
    return None if picture is None else jpeg(np.asarray(picture))


class Examples:
    """Images of the split that the run is evaluated on, if the data are on this machine, or else rows of its memory."""

    def __init__(self, model: Model):
        self._model, self._lock = model, threading.Lock()

    def some(self) -> dict[str, Any]:
        """A few of them, evenly spaced over the classes: numbers and labels."""
        dataset = self._dataset()
        if dataset is None:
            memory = self._memory()
            if memory is None:
                return {"split": "", "images": 0, "some": []}
            rows = [row for rows in memory.examples(3).values() for row in rows]
            found = [{"number": row, "label": memory.row(row)["label"]} for row in _spread(rows)]
            return {"split": "", "images": memory.rows, "some": found}
        split = dataset.split(self._split)
        order = np.argsort(split.labels, kind="stable")
        found = [{"number": int(i), "label": dataset.class_names[split.labels[i]]} for i in _spread(order)]
        return {"split": self._split, "images": len(split), "some": found}

    def image(self, number: int, small: bool = False) -> bytes | None:
        """The image of that number, as JPEG or PNG, or a small copy of it; None if there is none that can be shown."""
        dataset = self._dataset()
        if dataset is None:
            memory = self._memory()
            return thumbnail(memory, number) if memory is not None and memory.holds(number) else None
        images = dataset.split(self._split).images
        if not 0 <= number < len(images):
            return None
        try:
            return jpeg(images[number]) if small else encoded(images, number)
        except (BadImage, OSError):
            return None

    @property
    def _split(self) -> str:
        return self._model.config.eval.split

    def _memory(self) -> MemoryView | None:
        return self._model.memory if self._model.live.answering.run.retriever is not None else None

    def _dataset(self) -> Dataset | None:
        with self._lock:
            return self._loaded()

    @functools.cached_property
    def _loaded(self) -> Callable[[], Dataset | None]:
        """Read once; its errors say that the data are not here."""
        found = None
        try:
            trained_on = record.read(self._model.workdir)
            if trained_on is not None and self._split in trained_on.splits and self._split != "train":
                config = self._model.config
                config.data.on_bad_image = "error"  # "skip" would decode all images now, to find the bad ones
                found = evaluation.load(config, self._split, trained_on)
        except (OSError, ValueError) as error:
            logging.info("the page shows rows of the memory, because the data are not here: %s", error)
        if found is not None and (self._split not in found.splits or not len(found.split(self._split))):
            found = None
        return lambda: found


def _spread(values: Any) -> list[int]:
    """Some of the values, evenly spaced."""
    places = np.linspace(0, len(values) - 1, min(SHOWN, len(values))).astype(int)
    return [int(values[place]) for place in places]


def encoded(images: Images, number: int) -> bytes:
    """An image of a data set as a browser shows it: its own JPEG or PNG, or else a PNG of its pixels."""
    own = getattr(images, "encoded", None)
    content = own(number) if own else b""
    if content.startswith((JPEG_START, PNG_START)):
        return content
    file = io.BytesIO()
    Image.fromarray(images[number]).save(file, "PNG")
    return file.getvalue()
