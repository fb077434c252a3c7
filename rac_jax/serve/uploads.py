"""Images in requests: one as the body itself, or one or several as files of a form."""

import dataclasses
import re
from collections.abc import Sequence

import numpy as np
from fastapi import Request
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException

from rac_jax.data.decode import decode
from rac_jax.data.reading import enough_for
from rac_jax.serve.guard import Refused

MOST_FILES = 256
LONGEST_NAME = 200
FORM = "multipart/form-data"

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
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != FORM:
        body = await request.body()
        if not body:
            raise Refused(400, "the request has no image: send one as the body, or several as files of a form")
        return [Upload("", body)], False
    try:
        async with request.form(max_files=MOST_FILES, max_fields=16) as form:
            files = [value for _, value in form.multi_items() if isinstance(value, UploadFile)]
            found = [Upload(_shown(file.filename or ""), await file.read()) for file in files]
    except (MultiPartException, HTTPException) as error:
        reason = getattr(error, "message", "") or getattr(error, "detail", "")
        raise Refused(400, f"the form cannot be read: {_shown(str(reason))}") from error
    if not found:
        raise Refused(400, "the form has no files")
    return found, True


def only(uploads: Sequence[Upload]) -> Upload:
    """The only image of a request."""
    if len(uploads) != 1:
        raise Refused(400, f"one image at a time, and this request has {len(uploads)}")
    return uploads[0]


def pixels(upload: Upload, image_size: int, most_pixels: int) -> np.ndarray:
    """The image, decoded as for evaluation; BadImage if it is not usable or has too many pixels."""
    return decode(upload.content, upload.name or "the image", enough_for(image_size), most_pixels)


def words(value: str, what: str, longest: int) -> str:
    """A label, a text or a source's name from a request, without spaces around it."""
    value = value.strip()
    if not value or len(value) > longest or re.search(r"[\x00-\x1f\x7f\ud800-\udfff]", value):
        raise Refused(400, f"a {what} is 1 to {longest} printable characters")
    return value


def _shown(name: str) -> str:
    """A name from outside, on one line and not too long."""
    return re.sub(r"[\x00-\x1f\x7f\ud800-\udfff]", "?", name)[:LONGEST_NAME]
