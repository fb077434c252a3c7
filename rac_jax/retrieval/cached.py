"""Arrays that are computed once for a whole split and kept in a file: keys of plain images, and their neighbours."""

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

Arrays = dict[str, np.ndarray]


def open_or_make(
    folder: Path, name: str, made_of: dict[str, Any], make: Callable[[], Arrays], *, must_keep: bool = True
) -> Arrays:
    """Read arrays from the folder if they were made from the same inputs, else call `make` and keep its result.

    Runs may share the folder: the name of a file contains a digest of the inputs. Without `must_keep` a folder that
    cannot be written is only a warning.
    """
    stamp = json.dumps(made_of, sort_keys=True)
    path = folder / f"{name}-{hashlib.sha256(stamp.encode()).hexdigest()[:12]}.npz"
    found = _read(path, stamp)
    if not everybody(found is not None):
        found = make()
        if processes.first():
            try:
                _write(path, stamp, found)
            except OSError as error:
                if must_keep:
                    raise
                logging.warning("%s; it is made again at the next start", error)
    assert found is not None
    return found


def everybody(has_it: bool) -> bool:
    """Whether all processes have it. Either all of them make the arrays or none; otherwise some would wait forever."""
    return has_it if jax.process_count() == 1 else bool(multihost_utils.process_allgather(np.array(has_it)).all())


def _read(path: Path, stamp: str) -> Arrays | None:
    if not path.exists():
        return None
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
            if str(content["made_of"]) == stamp:
                return {name: content[name] for name in content.files if name != "made_of"}
    except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile) as error:
        logging.warning("%s is damaged (%s) and is made again", path, error)
    return None


def _write(path: Path, stamp: str, arrays: Arrays) -> None:
    with files.atomic(path) as temporary, temporary.open("wb") as file:
        np.savez(file, made_of=np.array(stamp), **arrays)  # type: ignore[arg-type]  # arrays by name
