"""Atomic writing: a reader sees the old file or the new one, never half of one."""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary name beside `path` to write to. At the end the file is flushed to the disk and renamed to `path`."""
    temporary = path.with_name(f"{path.name}.writing-{os.getpid()}")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            with temporary.open("rb") as written:
                os.fsync(written.fileno())
            temporary.replace(path)
            sync_folder(path.parent)  # without this a power failure may undo the rename
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A temporary name beside `path` for a new folder. At the end it is renamed to `path`, if it was made."""
    new = path.with_name(f"{path.name}.writing-{os.getpid()}")
    try:
        yield new
        if new.exists():
            with writing(path):
                new.rename(path)
                sync_folder(path.parent)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Flush the folder's list of names to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Name `path` in the message of any OSError raised inside (a full disk, a missing permission)."""
    try:
        yield
    except OSError as error:
        raise OSError(f"{path} cannot be written: {error.strerror or error}") from error


def probe(folder: Path) -> None:
    """Make the folder and check that files can be written in it."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def write_bytes(path: Path, content: bytes) -> None:
    """Write bytes atomically."""
    with atomic(path) as temporary:
        temporary.write_bytes(content)


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON atomically."""
    write_text(path, json.dumps(value, indent=2) + "\n")
