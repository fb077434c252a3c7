"""Writing files so that a reader sees the old one or the new one, never half of one."""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A temporary name beside `path` to write to; what was written gets its name at the end, on the disk for good."""
    temporary = path.with_name(f"{path.name}.writing-{os.getpid()}")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            with temporary.open("rb") as written:
                os.fsync(written.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write under a temporary name beside `path`, then rename."""
    with whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """What goes wrong inside (a full disk, a folder that is not ours) is said of `path`."""
    try:
        yield
    except OSError as error:
        raise OSError(f"{path} cannot be written: {error.strerror or error}") from error


def probe(folder: Path) -> None:
    """Make the folder, and something in it that is gone at once, so that it is known now whether that can be done."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def write_json(path: Path, value: Any) -> None:
    """JSON, indented for people."""
    write_text(path, json.dumps(value, indent=2) + "\n")
