"""Encoded bytes -> uint8 [H, W, 3], or a BadImage that says what is wrong."""

import io
import warnings

import numpy as np
from PIL import Image, ImageOps


class BadImage(ValueError):
    """An image that cannot be used: unreadable, cut short, or a decompression bomb."""


def decode(encoded: bytes, name: str) -> np.ndarray:
    """The image as a viewer would show it: uint8 [H, W, 3]. `name` is for the error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(encoded)) as picture:
                return np.asarray(ImageOps.exif_transpose(picture).convert("RGB"))
    except Exception as error:
        raise BadImage(f"{name}: not a usable image ({type(error).__name__}: {error})") from error
