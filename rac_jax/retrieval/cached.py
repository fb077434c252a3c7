"""The neighbours of all images of a split without augmentation, found once and kept in a file."""

import dataclasses
import hashlib
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import logging
from jax.experimental import multihost_utils

from rac_jax.runtime import files, processes


@dataclasses.dataclass(frozen=True)
class Found:
    """For each image of a split, by its id, the memory's rows nearest first, and how near they are."""

    rows: np.ndarray  # [N, k] int32, −1 for none
    similarities: np.ndarray  # [N, k] float32


def open_or_find(folder: Path, name: str, made_of: dict[str, Any], find: Callable[[], Found]) -> Found:
    """The neighbours in a file of the folder, if it was made from the same; else those of `find`, which are then saved.

    Runs with the same settings may share the folder: a file's name identifies what it was made from.
    """
    stamp = json.dumps(made_of, sort_keys=True)
    path = folder / f"{name}-{hashlib.sha256(stamp.encode()).hexdigest()[:12]}.npz"
    found = _read(path, stamp)
    if not _everybody(found is not None):
        found = find()
        if processes.first():
            _write(path, stamp, found)
    assert found is not None
    return found


def _everybody(has_it: bool) -> bool:
    """All processes search or none does: otherwise some would wait for the others forever."""
    return has_it if jax.process_count() == 1 else bool(multihost_utils.process_allgather(np.array(has_it)).all())


def _read(path: Path, stamp: str) -> Found | None:
    if not path.exists():
        return None
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
            if str(content["made_of"]) == stamp:
                return Found(content["rows"], content["similarities"])
    except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile) as error:
        logging.warning("%s is damaged (%s) and is computed again", path, error)
    return None


def _write(path: Path, stamp: str, found: Found) -> None:
    with files.whole(path) as temporary, temporary.open("wb") as file:
        np.savez(file, made_of=np.array(stamp), rows=found.rows, similarities=found.similarities)
