"""What is refused before it is decoded, because a small file would need much memory or time: BombError says why."""

import io
import re
from collections.abc import Iterator

from PIL import ImageFile

MOST_SCANS = 100  # of a JPEG; usual ones have 1 to 10. Each of them is decoded at full size, in however few bytes
MOST_SEGMENTS = 1000  # of a JPEG; a usual photograph has about 10, a large profile or map adds 100
MOST_READS, BYTES_A_READ = 10_000, 100  # Pillow may read so often, and once more for so many bytes
MARKER = re.compile(rb"\xff([^\x00\xff\xd0-\xd7])")  # those of entropy-coded data are left out
STANDALONE, END, SCAN, APP1 = 0x01, 0xD9, 0xDA, 0xE1  # markers of a JPEG; all but the first two have a length
# Decoders of Pillow that are written in Python and take a second for a megapixel.
SLOW = {
    "ppm_plain": "a netpbm image written as text (P1 to P3); save it as binary (P4 to P6) or as PNG",
    "ppm": "a netpbm image of an unusual depth; save it with 8 bits or as PNG",
    "bmp_rle": "a BMP with run-length encoding; save it without compression or as PNG",
}


class BombError(RuntimeError):
    """Too many pixels, or too much work for them."""


class Encoded(io.BytesIO):
    """An encoded image that Pillow reads. Its parsers of headers are loops in Python, and each turn reads a little."""

    def __init__(self, encoded: bytes):
        super().__init__(encoded)
        self._left = MOST_READS + len(encoded) // BYTES_A_READ

    def read(self, size: int | None = -1, /) -> bytes:
        self._left -= 1
        if self._left < 0:
            raise BombError("a file of too many small parts; save it again")
        return super().read(size)


def check_pixels(width: int, height: int, most: int) -> None:
    """Refuse an image of more pixels."""
    if width * height > most:
        raise BombError(f"{width} × {height} pixels; at most {most:,} are decoded")


def check_decoder(picture: ImageFile.ImageFile) -> None:
    """Refuse a picture that was opened, and would be decoded slowly."""
    for codec, *_ in picture.tile:
        if codec in SLOW:
            raise BombError(SLOW[codec])


def check_scans(encoded: bytes) -> None:
    """Refuse a JPEG of many scans."""
    if encoded.count(b"\xff\xda") <= MOST_SCANS:  # quick, and counts too many rather than too few
        return
    if sum(kind == SCAN for kind, _ in _markers(encoded)) > MOST_SCANS:
        raise BombError(f"a JPEG of more than {MOST_SCANS} scans; save it again")


def has_exif(encoded: bytes) -> bool:
    """Whether a JPEG has EXIF before its first scan."""
    for kind, place in _markers(encoded):
        if kind == SCAN:
            break
        if kind == APP1 and encoded.startswith(b"Exif\0\0", place + 4):
            return True
    return False


def _markers(encoded: bytes) -> Iterator[tuple[int, int]]:
    """The kinds and places of a JPEG's markers up to its end. Those of a thumbnail inside it are passed over."""
    place = 0
    for _ in range(MOST_SEGMENTS):
        found = MARKER.search(encoded, place + 2)
        if not found or found[1][0] == END:
            return
        place, kind = found.start(), found[1][0]
        yield kind, place
        if kind != STANDALONE:
            place += int.from_bytes(encoded[place + 2 : place + 4])
    raise BombError(f"a JPEG of more than {MOST_SEGMENTS} segments; save it again")
