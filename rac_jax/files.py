"""Writing files so that a reader sees the old one or the new one, never half of one."""

import json
import os
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    """Write under a temporary name beside `path`, then rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.writing-{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(path)


def write_json(path: Path, value: Any) -> None:
    """JSON, indented for people."""
    write_text(path, json.dumps(value, indent=2) + "\n")
