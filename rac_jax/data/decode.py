"""Encoded bytes -> uint8 [H, W, 3], or a BadImage that says what is wrong.

Ordinary JPEGs are decoded by simplejpeg, which gives Pillow's pixels in half the time. Everything else (other formats,
CMYK, what simplejpeg refuses) is decoded by Pillow.
"""

import io

import numpy as np
import simplejpeg
from PIL import Image, ImageOps, UnidentifiedImageError

MAX_PIXELS = 200_000_000  # a larger image is treated as a decompression bomb: 600 MB decoded
Image.MAX_IMAGE_PIXELS = MAX_PIXELS  # Pillow would warn about photographs of 100 megapixels
FORMATS = ("JPEG", "PNG", "WEBP", "AVIF", "BMP", "GIF", "TIFF", "PPM")  # Pillow knows more, some with other programs

JPEG_START = b"\xff\xd8\xff"
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


def decode(encoded: bytes, name: str, enough: int = 0, most_pixels: int = MAX_PIXELS) -> np.ndarray:
    """The image as a viewer would show it: uint8 [H, W, 3]. `name` is for the error.

    A JPEG is decoded at 1/8, 1/4 or 1/2 of its size if both sides then still have `enough` pixels
    (0 = never): far less work for a large photograph. Resized to half of `enough`, the result is off
    by about one grey level on average. Other fractions would be off by three.

    An image of more than `most_pixels` is a BadImage, found by its header.
    """
    try:
        if encoded.startswith(JPEG_START):
            image = _decode_jpeg(encoded, enough, most_pixels)
            if image is not None:
                return image
        return _decode_any(encoded, most_pixels)
    except Exception as error:  # Pillow's decoders raise almost anything
        reason = "of no known format" if isinstance(error, UnidentifiedImageError) else str(error).replace("\n", " ")
        raise BadImage(f"{name}: not a usable image ({reason or type(error).__name__})") from error


def _decode_jpeg(encoded: bytes, enough: int, most_pixels: int) -> np.ndarray | None:
    """The pixels, or None where Pillow has to try."""
    try:
        height, width, space, _ = simplejpeg.decode_jpeg_header(encoded)
        if space not in ("YCbCr", "Gray", "RGB"):
            return None
        _refuse_bomb(width, height, most_pixels)
        part = next((n for n in (8, 4, 2) if enough and min(width, height) >= n * enough), 1)
        least = {"min_height": -(-height // part), "min_width": -(-width // part)} if part > 1 else {}
        image = simplejpeg.decode_jpeg(encoded, "RGB", **least)
    except ValueError:
        return None
    if b"Exif\0\0" not in encoded[:4096]:
        return image
    with Image.open(io.BytesIO(encoded)) as picture:
        turn = UPRIGHT.get(picture.getexif().get(ORIENTATION, 1))
    return np.ascontiguousarray(turn(image)) if turn else image


def _decode_any(encoded: bytes, most_pixels: int) -> np.ndarray:
    with Image.open(io.BytesIO(encoded), formats=FORMATS) as picture:
        _refuse_bomb(*picture.size, most_pixels)
        return upright_pixels(picture)


def upright_pixels(picture: Image.Image) -> np.ndarray:
    """A picture of Pillow as a viewer would show it: uint8 [H, W, 3]."""
    upright = ImageOps.exif_transpose(picture)
    if upright.mode[0] in "IF":  # 16 or 32 bits per pixel: Pillow's own conversion would clip instead of scaling
        return np.repeat(eight_bits(np.asarray(upright))[..., None], 3, axis=-1)
    if upright.has_transparency_data:  # on white, as a page shows it
        layer = upright.convert("RGBA")
        ground = Image.new("RGBA", layer.size, "white")
        return np.asarray(Image.alpha_composite(ground, layer).convert("RGB"))
    return np.asarray(upright.convert("RGB"))


def eight_bits(grey: np.ndarray) -> np.ndarray:
    """Grey values of any integer or floating-point type, scaled to 0…255 by the range they use: uint8, same shape.

    Such files do not say which value is white. Floats up to 1 are taken as 0…1. Otherwise white is the largest value of
    the smallest usual depth (8, 10, 12, 14 or 16 bits) that contains the image's largest value: 12-bit images of a
    camera or a scanner, stored in 16 bits, come out right. Negative or larger values have no such reading: ValueError.
    """
    low, high = grey.min(), grey.max()
    if not (np.isfinite(low) and np.isfinite(high)):
        raise ValueError("pixels that are NaN or infinite")
    floats = grey.dtype.kind == "f"
    slack = 0.1 if floats else 0.0  # floats that were resized overshoot a little
    whites = [1] * floats + [2**bits - 1 for bits in DEPTHS]
    white = next((white for white in whites if high <= (1 + slack) * white), None)
    if white is None or low < -slack * white:
        raise ValueError(
            f"pixels from {low:g} to {high:g}, where 0 to 1 or 0 to at most 65535 can be read; save it with 8 bits"
        )
    return np.rint(np.clip(grey.astype(np.float64) / white, 0, 1) * 255).astype(np.uint8)


def _refuse_bomb(width: int, height: int, most_pixels: int) -> None:
    if width * height > most_pixels:
        raise BombError(f"{width} × {height} pixels; at most {most_pixels:,} are decoded")


class BombError(RuntimeError):
    """Too many pixels."""
