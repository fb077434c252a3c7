"""Text files that users write: UTF-8, or UTF-16 with its mark; anything else is an error that names the line."""

import codecs
from pathlib import Path


def read_text(source: Path) -> str:
    """The text of a file, without a byte order mark."""
    try:
        content = source.read_bytes()
    except OSError as error:
        raise ValueError(f"{source}: cannot be read ({error.strerror or error})") from error
    wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = content.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{source}, line {line}: byte 0x{content[error.start]:02x} is not {'UTF-16' if wide else 'UTF-8'}; "
            "save the file as UTF-8"
        ) from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise ValueError(
            f"{source}, line {line}: a NUL character: this is not text, or it is UTF-16; save the file as UTF-8"
        )
    return text


def read_lines(source: Path) -> list[str]:
    """The lines of a file. Only line feeds separate them: U+2028 or U+0085 inside a caption do not."""
    return [line.removesuffix("\r") for line in read_text(source).split("\n")]
