"""Images in requests: one as the body itself, or one or several as files of a form."""

import contextlib
import dataclasses
import re
import threading
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from fastapi import Request
from python_multipart.multipart import parse_options_header
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException

from rac_jax.data.decode import decode
from rac_jax.data.reading import enough_for
from rac_jax.serve.guard import Refused

MOST_FILES = 256
LONGEST_NAME = 200
TOGETHER = 2  # largest images that may be decoded at a time; each needs about 10 bytes a pixel
MOST_FIELDS, LONGEST_FIELD = 16, 4096  # of parts that are no files, which nothing uses; bytes
FORM = "multipart/form-data"
# Of a form. Python decodes some of the others so slowly that a request would keep the server busy for minutes.
CHARSETS = ("utf-8", "utf8", "us-ascii", "ascii", "iso-8859-1", "latin-1", "latin1")
HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")  # Unicode's categories of what is not seen, or turns the text around it
JOINERS = "\u200c\u200d"  # are within words of some languages, and within emoji

# What the OpenAPI page says about such requests.
BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "image/*": {"schema": {"type": "string", "format": "binary"}},
            FORM: {
                "schema": {
                    "type": "object",
                    "properties": {"files": {"type": "array", "items": {"type": "string", "format": "binary"}}},
                }
            },
        },
    }
}


@dataclasses.dataclass(frozen=True)
class Upload:
    """An encoded image; its name is only repeated in the answer, and may be ""."""

    name: str
    content: bytes


async def read(request: Request) -> tuple[list[Upload], bool]:
    """The images of a request, and whether they came as a form."""
    kind, options = parse_options_header(request.headers.get("content-type", ""))  # as Starlette reads it
    if kind != FORM.encode():
        body = await request.body()
        if not body:
            raise Refused(400, "the request has no image: send one as the body, or several as files of a form")
        return [Upload("", body)], False
    charset = options.get(b"charset", b"utf-8").decode("latin-1")
    if charset.lower() not in CHARSETS:
        raise Refused(400, f"the form cannot be read: its charset is {_shown(charset)!r}; send it in utf-8")
    try:
        async with request.form(max_files=MOST_FILES, max_fields=MOST_FIELDS, max_part_size=LONGEST_FIELD) as form:
            files = [value for _, value in form.multi_items() if isinstance(value, UploadFile)]
            found = [Upload(_shown(file.filename or ""), await file.read()) for file in files]
    except (MultiPartException, HTTPException, ValueError) as error:
        reason = getattr(error, "message", "") or getattr(error, "detail", "") or error
        raise Refused(400, f"the form cannot be read: {_shown(str(reason))}") from error
    if not found:
        raise Refused(400, "the form has no files")
    return found, True


def only(uploads: Sequence[Upload]) -> Upload:
    """The only image of a request."""
    if len(uploads) != 1:
        raise Refused(400, f"one image at a time, and this request has {len(uploads)}")
    return uploads[0]


class Decoder:
    """Decodes images as for evaluation. Threads that need too many pixels together wait for each other."""

    def __init__(self, image_size: int, most_pixels: int):
        self._enough, self._most = enough_for(image_size), most_pixels
        self._free, self._freed = TOGETHER * most_pixels, threading.Condition()

    def __call__(self, upload: Upload) -> np.ndarray:
        """The pixels; BadImage if the image is not usable or has too many of them."""
        return decode(upload.content, upload.name or "the image", self._enough, self._most, self._gate)

    @contextlib.contextmanager
    def _gate(self, pixels: int) -> Iterator[None]:
        with self._freed:
            self._freed.wait_for(lambda: pixels <= self._free)
            self._free -= pixels
        try:
            yield
        finally:
            with self._freed:
                self._free += pixels
                self._freed.notify_all()


def words(value: str, what: str, longest: int, known: Iterable[str] = ()) -> str:
    """A label, a text or a source's name from a request, in Unicode's NFC and without spaces around it.

    What looks like one of the `known` names is that name, as it is written there.
    """
    value, names = value.strip(), list(known)
    if value in names:
        return value
    value = unicodedata.normalize("NFC", value)
    hidden = [letter for letter in value[:longest] if unicodedata.category(letter) in HIDDEN and letter not in JOINERS]
    if not value or len(value) > longest or hidden:
        wrong = f", and this one has U+{ord(hidden[0]):04X}" if hidden else ""
        raise Refused(400, f"a {what} is 1 to {longest} printable characters{wrong}")
    return next((name for name in names if unicodedata.normalize("NFC", name) == value), value)


def _shown(name: str) -> str:
    """A name from outside, on one line and not too long."""
    return re.sub(r"[\x00-\x1f\x7f\ud800-\udfff]", "?", name)[:LONGEST_NAME]
