"""Small files that would take much work are refused at once, and those that only look like them are not."""

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_images

from rac_jax.bench import soak
from rac_jax.data import decode
from rac_jax.data.decode import BadImage

PHOTO = Image.fromarray(load_sample_images().images[0])  # 640 × 427


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def with_scans(data: bytes, scans: int) -> bytes:
    """A progressive JPEG whose last scan comes again, until there are so many."""
    last = data.rindex(b"\xff\xda")
    return data[:-2] + data[last:-2] * (scans - data.count(b"\xff\xda")) + data[-2:]


def test_a_jpeg_of_many_scans_is_refused_at_once():
    data = encoded(PHOTO, "JPEG", progressive=True)
    assert data.count(b"\xff\xda") == 10
    image = decode.decode(with_scans(data, 100), "photo")
    assert image.shape == (427, 640, 3)
    for empty in (b"", b"\xff\x01", b"\xff\xfe\x00\x02"):  # markers in between
        many = with_scans(data[:-2] + empty + data[-2:], 101)
        with pytest.raises(BadImage, match=r"a: not a usable image \(a JPEG of more than 100 scans; save it again"):
            decode.decode(many, "a")


def test_what_looks_like_scans_inside_and_behind_a_jpeg_is_not_counted():
    data = encoded(PHOTO, "JPEG", quality=90)
    inside = b"\xff\xe2\x01\x92" + 200 * b"\xff\xda"  # a profile or a thumbnail
    film = 200 * b"\xff\xda"
    found = decode.decode(data[:2] + inside + data[2:] + film, "photo")
    np.testing.assert_array_equal(found, decode.decode(data, "photo"))


def test_a_jpeg_of_many_segments_is_refused_at_once():
    for picture in (PHOTO, PHOTO.convert("CMYK")):
        data = encoded(picture, "JPEG")
        few, many = (data[:2] + number * b"\xff\xfe\x00\x02" + data[2:] for number in (900, 100_000))
        assert decode.decode(few, "a").shape == (427, 640, 3)
        with pytest.raises(BadImage, match=r"a: not a usable image \(a (JPEG|file) of .*; save it again"):
            decode.decode(many, "a")


@pytest.mark.parametrize("content", [b"P1\n1 1\n1\n", b"P2 1 1 255 7", b"P3 1 1 255 1 2 3", soak.TEXT])
def test_a_netpbm_image_written_as_text_is_refused(content: bytes):
    with pytest.raises(BadImage, match=r"written as text \(P1 to P3\); save it as binary \(P4 to P6\) or as PNG"):
        decode.decode(content, "a")


def test_netpbm_images_are_binary_with_8_or_16_bits_and_may_have_comments():
    found = decode.decode(b"P5\n# a camera\n2 1\n# white:\n255\n\x00\xff", "a")
    assert found[..., 0].tolist() == [[0, 255]]
    assert decode.decode(b"P5 2 1 65535\n\x00\x00\xff\xff", "a")[..., 0].tolist() == [[0, 255]]
    assert decode.decode(b"P4 2 1\n\x40", "a")[..., 0].tolist() == [[255, 0]]
    for content in (b"P5 1 1 4095\n\x00\x00", b"P6 1 1 65535\n" + bytes(6)):
        with pytest.raises(BadImage, match="a netpbm image of an unusual depth; save it with 8 bits or as PNG"):
            decode.decode(content, "a")


@pytest.mark.parametrize(("bits", "compression"), [(8, 1), (4, 2)])
def test_a_bmp_with_run_length_encoding_is_refused(bits: int, compression: int):
    content = bytearray(soak.LINES)
    content[28], content[30] = bits, compression
    with pytest.raises(BadImage, match="a BMP with run-length encoding; save it without compression or as PNG"):
        decode.decode(bytes(content), "a")


def chunk(kind: bytes, content: bytes = b"") -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def test_files_of_many_small_parts_are_refused_at_once():
    """Pillow would read them in loops of Python."""
    png, gif, cmyk = encoded(PHOTO, "PNG"), encoded(PHOTO, "GIF"), encoded(PHOTO.convert("CMYK"), "JPEG")
    after, first = 13 + 3 * 2 ** ((gif[10] & 7) + 1), 4 + int.from_bytes(cmyk[4:6])  # a palette; a segment
    for content in (
        b"P5\n" + b"#\n" * 50_000 + b"1 1\n255\n\x00",
        png[:33] + chunk(b"teXt") * 10_000 + png[33:],
        gif[:after] + b"\x21\xfe\x01 \x00" * 20_000 + gif[after:],
        cmyk[:first] + bytes(100_000) + cmyk[first:],
    ):
        with pytest.raises(BadImage, match=r"a: not a usable image \(a file of too many small parts; save it again"):
            decode.decode(content, "a")


def test_a_large_image_of_many_small_parts_is_decoded():
    """libpng writes parts of 8 kB."""
    noise = np.random.default_rng(0).integers(0, 256, (1000, 1500, 3), np.uint8)
    png = encoded(Image.fromarray(noise), "PNG")
    stream = zlib.compress(b"".join(b"\0" + line.tobytes() for line in noise), 0)
    parts = b"".join(chunk(b"IDAT", stream[start : start + 512]) for start in range(0, len(stream), 512))
    np.testing.assert_array_equal(decode.decode(png[:33] + parts + chunk(b"IEND"), "a"), noise)
