"""Encoded bytes -> uint8 [H, W, 3], or a BadImage that says what is wrong.

Ordinary JPEGs are decoded by simplejpeg, which gives Pillow's pixels in half the time. Everything else (other formats,
CMYK, what simplejpeg refuses) is decoded by Pillow.
"""

import contextlib
import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
import simplejpeg
from PIL import Image, ImageOps, UnidentifiedImageError

from rac_jax.data import limits

MAX_PIXELS = 200_000_000  # a larger image is treated as a decompression bomb: 600 MB decoded
Image.MAX_IMAGE_PIXELS = MAX_PIXELS  # Pillow would warn about photographs of 100 megapixels
FORMATS = ("JPEG", "PNG", "WEBP", "AVIF", "BMP", "GIF", "TIFF", "PPM")  # Pillow knows more, some with other programs

JPEG_START = b"\xff\xd8\xff"
TILE = 1024  # an image is converted in squares of this side, because what lies between needs up to 30 bytes a pixel
ORIENTATION = 0x0112  # EXIF's tag
DEPTHS = (8, 10, 12, 14, 16)  # bits of a grey value
# EXIF orientation -> how to turn the stored pixels upright.
UPRIGHT = {
    2: lambda image: image[:, ::-1],
    3: lambda image: image[::-1, ::-1],
    4: lambda image: image[::-1],
    5: lambda image: image.swapaxes(0, 1),
    6: lambda image: image[::-1].swapaxes(0, 1),
    7: lambda image: image[::-1, ::-1].swapaxes(0, 1),
    8: lambda image: image[:, ::-1].swapaxes(0, 1),
}


class BadImage(ValueError):
    """An image that cannot be used: unreadable, cut short, or a decompression bomb."""


Gate = Callable[[int], AbstractContextManager]  # entered to decode so many pixels; it may wait


def _open(pixels: int) -> AbstractContextManager:
    return contextlib.nullcontext()


def decode(encoded: bytes, name: str, enough: int = 0, most_pixels: int = MAX_PIXELS, gate: Gate = _open) -> np.ndarray:
    """The image as a viewer would show it: uint8 [H, W, 3]. `name` is for the error.

    A JPEG is decoded at 1/8, 1/4 or 1/2 of its size if both sides then still have `enough` pixels
    (0 = never): far less work for a large photograph. Resized to half of `enough`, the result is off
    by about one grey level on average. Other fractions would be off by three.

    An image of more than `most_pixels` is a BadImage, found by its header. Pixels are decoded inside `gate`.
    """
    try:
        if encoded.startswith(JPEG_START):
            limits.check_scans(encoded)
            image = _decode_jpeg(encoded, enough, most_pixels, gate)
            if image is not None:
                return image
        return _decode_any(encoded, most_pixels, gate)
    except Exception as error:  # Pillow's decoders raise almost anything
        reason = "of no known format" if isinstance(error, UnidentifiedImageError) else str(error).replace("\n", " ")
        raise BadImage(f"{name}: not a usable image ({reason or type(error).__name__})") from error


def _decode_jpeg(encoded: bytes, enough: int, most_pixels: int, gate: Gate) -> np.ndarray | None:
    """The pixels, or None where Pillow has to try."""
    try:
        height, width, space, _ = simplejpeg.decode_jpeg_header(encoded)
        if space not in ("YCbCr", "Gray", "RGB"):
            return None
        limits.check_pixels(width, height, most_pixels)
        part = next((n for n in (8, 4, 2) if enough and min(width, height) >= n * enough), 1)
        least = {"min_height": -(-height // part), "min_width": -(-width // part)} if part > 1 else {}
        with gate(width * height):
            image = simplejpeg.decode_jpeg(encoded, "RGB", **least)
    except ValueError:
        return None
    if not limits.has_exif(encoded):
        return image
    with Image.open(limits.Encoded(encoded)) as picture:
        turn = UPRIGHT.get(picture.getexif().get(ORIENTATION, 1))
    return np.ascontiguousarray(turn(image)) if turn else image


def _decode_any(encoded: bytes, most_pixels: int, gate: Gate) -> np.ndarray:
    with Image.open(limits.Encoded(encoded), formats=FORMATS) as picture:
        limits.check_pixels(*picture.size, most_pixels)
        limits.check_decoder(picture)
        with gate(picture.width * picture.height):
            return upright_pixels(picture)


def upright_pixels(picture: Image.Image) -> np.ndarray:
    """A picture of Pillow as a viewer would show it: uint8 [H, W, 3]."""
    upright = picture  # exif_transpose copies
    if picture.getexif().get(ORIENTATION, 1) != 1:
        upright = ImageOps.exif_transpose(picture)
    if upright.mode[0] in "IF":  # 16 or 32 bits per pixel: Pillow's own conversion would clip instead of scaling
        return np.repeat(eight_bits(np.asarray(upright))[..., None], 3, axis=-1)
    pixels = np.empty((upright.height, upright.width, 3), np.uint8)
    for top, left in itertools.product(range(0, upright.height, TILE), range(0, upright.width, TILE)):
        tile = upright.crop((left, top, min(left + TILE, upright.width), min(top + TILE, upright.height)))
        pixels[top : top + TILE, left : left + TILE] = np.asarray(_on_white(tile).convert("RGB"))
    return pixels


def _on_white(picture: Image.Image) -> Image.Image:
    """A picture that may be transparent as a page shows it."""
    if not picture.has_transparency_data:
        return picture
    if picture.mode == "La":
        picture = picture.convert("LA")  # Pillow converts La to nothing else
    layer = picture.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)


def eight_bits(grey: np.ndarray) -> np.ndarray:
    """Grey values (booleans, integers or floats), scaled to 0…255 by the range they use: uint8, same shape.

    Such files do not say which value is white. Booleans and floats up to 1 are taken as 0…1. Otherwise white is the
    largest value of the smallest usual depth (8, 10, 12, 14 or 16 bits) that contains the image's largest value: 12-bit
    images of a camera or a scanner, stored in 16 bits, come out right. Negative or larger values, and those of other
    types, have no such reading: ValueError.
    """
    if grey.dtype.kind not in "buif":
        raise ValueError("its values are not grey values; give booleans, integers or floats")
    low, high = grey.min(), grey.max()
    if not (np.isfinite(low) and np.isfinite(high)):
        raise ValueError("pixels that are NaN or infinite")
    floats = grey.dtype.kind == "f"
    slack = 0.1 if floats else 0.0  # floats that were resized overshoot a little
    whites = [1] * (grey.dtype.kind in "bf") + [2**bits - 1 for bits in DEPTHS]
    white = next((white for white in whites if high <= (1 + slack) * white), None)
    if white is None or low < -slack * white:
        raise ValueError(
            f"pixels from {low:g} to {high:g}, where 0 to 1 or 0 to at most 65535 can be read; save it with 8 bits"
        )
    flat, scaled = grey.reshape(-1), np.empty(grey.size, np.uint8)
    for start in range(0, grey.size, TILE**2):
        part = flat[start : start + TILE**2].astype(np.float64) / white
        scaled[start : start + TILE**2] = np.rint(np.clip(part, 0, 1) * 255)
    return scaled.reshape(grey.shape)
