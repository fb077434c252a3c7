"""SHA-256 of the files in a folder, kept in the folder itself."""

import hashlib
import json
from pathlib import Path

from rac_jax.runtime import files

FILE = "sha256.json"


def write(folder: Path) -> None:
    """Record the checksums of all files in the folders below `folder`."""
    files.write_json(folder / FILE, {name: _digest(folder / name) for name in _names(folder)})


def exist(folder: Path) -> bool:
    """Whether checksums were recorded."""
    return (folder / FILE).exists()


def problem(folder: Path) -> str:
    """The first file that is not as it was recorded, and why; "" if all are, or if nothing was recorded."""
    path = folder / FILE
    if not path.exists():
        return ""
    try:
        recorded = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(recorded, dict) or not all(isinstance(value, str) for value in recorded.values()):
            return f"{path} holds no checksums"
    except ValueError as error:
        return f"{path} is damaged ({error})"
    for name in sorted({*recorded, *_names(folder)}):
        if name not in recorded:
            return f"{folder / name} is not one of its files"
        if not (folder / name).is_file():
            return f"{folder / name} is missing"
        if _digest(folder / name) != recorded[name]:
            return f"{folder / name} has another checksum than when it was saved"
    return ""


def _names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.glob("*/**/*") if path.is_file())


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
