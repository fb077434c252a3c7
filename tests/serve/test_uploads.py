"""Images from requests are decoded as evaluation decodes them, within limits."""

import asyncio
import io
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from fastapi import Request
from PIL import Image

from rac_jax.data import decode
from rac_jax.data.decode import BadImage
from rac_jax.data.reading import read_image
from rac_jax.serve import uploads
from rac_jax.serve.guard import Refused
from rac_jax.serve.uploads import Decoder, Upload


def encoded(kind, size=(300, 260)):
    pixels, file = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8), io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM"])
def test_pixels_are_those_of_the_file(kind, tmp_path):
    (tmp_path / "image").write_bytes(encoded(kind))
    found = Decoder(32, 100_000)(Upload("", encoded(kind)))
    np.testing.assert_array_equal(found, read_image(tmp_path / "image", 32))


def test_a_large_jpeg_is_decoded_at_a_fraction_as_in_evaluation():
    assert Decoder(32, 10**6)(Upload("", encoded("JPEG", (640, 512)))).shape == (80, 64, 3)


def test_unusable_images_are_named():
    whole = encoded("PNG")
    for content, message in (
        (whole[:2000], "x.png: not a usable image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", "of no known format"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "of no known format"),
    ):
        with pytest.raises(BadImage, match=message):
            Decoder(32, 100_000)(Upload("x.png", content))
    with pytest.raises(BadImage, match="260 × 300 pixels; at most 77,999 are decoded"):
        Decoder(32, 77_999)(Upload("", whole))


def test_threads_decode_two_of_the_largest_images_at_a_time(monkeypatch):
    decoded, most, together, lock = Decoder(32, 78_000), 0, 0, threading.Lock()

    def convert(picture):
        nonlocal together, most
        with lock:
            together += 1
            most = max(most, together)
        time.sleep(0.02)
        with lock:
            together -= 1
        return np.asarray(picture)

    monkeypatch.setattr(decode, "upright_pixels", convert)
    image = Upload("", encoded("PNG"))
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(decoded, [image] * 16))
    assert most == 2 and all(pixels.shape == (300, 260, 3) for pixels in found)


def test_words_from_requests_are_short_and_printable():
    assert uploads.words("  Güneş 🍊 ", "label", 20) == "Güneş 🍊"
    assert uploads.words("👩\u200d🌾", "label", 20) == "👩\u200d🌾"
    for wrong in ("", "  ", "a\nb", "a\x00", "x" * 21, "\ud800"):
        with pytest.raises(Refused, match="a label is 1 to 20 printable characters"):
            uploads.words(wrong, "label", 20)
    for hidden in "\x85\xad\u200b\u2028\u202e\u2066\ufeff":  # widths of zero, ends of lines, directions
        with pytest.raises(Refused, match=rf"1 to 20 printable characters, and this one has U\+{ord(hidden):04X}$"):
            uploads.words(f"a{hidden}b", "label", 20)


def test_words_that_look_alike_are_the_same():
    composed, separate = "G\xfcne\u015f", "Gu\u0308nes\u0327"
    assert separate != composed and uploads.words(separate, "label", 20) == composed
    for known in (separate, composed):  # as a folder of a Mac is called, and as it is typed
        for written in (separate, composed):
            assert uploads.words(written, "label", 20, [known]) == known
    assert uploads.words(separate, "label", 20, [composed, separate]) == separate
    assert uploads.words("a\xadb", "label", 20, ["a\xadb"]) == "a\xadb"  # it is there


def read(content, parameters="", kind="multipart/form-data; boundary=x"):
    """What is found in a request; its body is received once."""
    waiting = [content]

    async def receive():
        return {"type": "http.request", "body": waiting.pop()}

    headers = [(b"content-type", (kind + parameters).encode())]
    return asyncio.run(uploads.read(Request({"type": "http", "headers": headers}, receive)))


def form(name, content, options=""):
    head = f'--x\r\nContent-Disposition: form-data; name="{name}"{options}\r\n\r\n'
    return head.encode() + content + b"\r\n--x--\r\n"


@pytest.mark.parametrize("charset", ["punycode", '"punycode"', "PunyCode", "idna", "utf-7", "unknown", ""])
def test_a_form_in_a_charset_that_is_slow_or_unknown_is_refused_before_it_is_read(charset):
    name = charset.strip('"')
    with pytest.raises(Refused, match=f"the form cannot be read: its charset is '{name}'; send it in utf-8"):
        read(None, f"; charset={charset}")


@pytest.mark.parametrize("parameters", ["", "; charset=utf-8", "; charset=UTF-8", '; charset="us-ascii"'])
def test_files_of_a_form_are_found(parameters):
    found, is_form = read(form("files", b"abc", '; filename="a.png"'), parameters)
    assert is_form and found == [Upload("a.png", b"abc")]


def test_fields_of_a_form_that_are_no_files_are_short():
    with pytest.raises(Refused, match="the form has no files"):
        read(form("a", bytes(4096)))
    with pytest.raises(Refused, match="the form cannot be read: Part exceeded maximum size of 4KB"):
        read(form("a", bytes(4097)))
