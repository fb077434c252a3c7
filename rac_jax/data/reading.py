"""Reading image files: the bytes of a regular file, and an image exactly as evaluation sees it."""

import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from rac_jax.data.decode import BadImage, decode, eight_bits, upright_pixels

# File names that end so are images.
ENDINGS = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".avif", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm",
)  # fmt: skip
MOST_BYTES = 2**31  # bytes; a larger file is not a photograph


def enough_for(image_size: int) -> int:
    """Pixels that the shorter side of an image needs before it is resized to `image_size`: see decode.decode."""
    return 2 * image_size


def at_home(path: str | Path) -> Path:
    """A path with the user's folder in place of ~. A file that is called ~name is itself."""
    path = Path(path)
    return path.expanduser() if path.parts[:1] == ("~",) else path


def read_image(path: str | Path, image_size: int) -> np.ndarray:
    """The image in a file, uint8 [H, W, 3], decoded as for evaluation at `image_size`; BadImage if there is none."""
    return decode(read_bytes(Path(path)), str(path), enough_for(image_size))


def pixels_of(image: Any) -> np.ndarray:
    """A picture of Pillow, or an array [H, W] or [H, W, 1, 3 or 4], as uint8 [H, W, 3]; BadImage if it is neither.

    Arrays may be of any library (`__array__`). Those of other types than uint8 are scaled as decode.eight_bits says.
    """
    if not isinstance(image, Image.Image):
        image = _array(image)
        if image.ndim not in (2, 3) or not image.size or (image.ndim == 3 and image.shape[2] not in (1, 3, 4)):
            raise BadImage(f"an image is an array [H, W] or [H, W, 3], and this one is {list(image.shape)}")
        try:
            image = image if image.dtype == np.uint8 else eight_bits(image)
        except (ValueError, TypeError) as error:
            raise BadImage(f"an array of {image.dtype} is not a usable image ({error})") from error
        if image.ndim == 3 and image.shape[2] == 3:
            return image
        image = Image.fromarray(image[..., 0] if image.ndim == 3 and image.shape[2] == 1 else image)
    try:
        return upright_pixels(image)
    except Exception as error:  # a file that was opened is read only now, and Pillow's decoders raise almost anything
        name = getattr(image, "filename", "") or "a picture"
        raise BadImage(f"{name}: not a usable image ({str(error) or type(error).__name__})") from error


def _array(image: Any) -> np.ndarray:
    if not hasattr(image, "__array__"):
        raise BadImage(
            f"an image is a path, a picture of Pillow or an array, and this one is of type {type(image).__name__}"
        )
    try:
        array = np.asarray(image)
        return array.astype(np.float32) if array.dtype.kind == "V" else array  # as bfloat16, which numpy does not know
    except Exception as error:  # an array of another library, as on its device
        raise BadImage(f"{type(image).__name__} is not a usable array ({error})") from error


def read_bytes(path: Path) -> bytes:
    """A file's content. A FIFO, a device or a folder is a BadImage: reading it could wait forever."""
    try:
        # O_NONBLOCK: opening a FIFO would otherwise wait for a writer. It has no effect on regular files.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except OSError as error:
        raise BadImage(f"{path}: cannot be read ({error.strerror or error})") from error
    except ValueError as error:
        raise BadImage(f"{str(path)!r}: not a file name ({error})") from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise BadImage(f"{path}: not a regular file")
        if found.st_size > MOST_BYTES:
            raise BadImage(f"{path}: {found.st_size:,} bytes; files of up to {MOST_BYTES:,} are read")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read()
    except OSError as error:
        raise BadImage(f"{path}: cannot be read ({error.strerror or error})") from error
    finally:
        os.close(descriptor)
