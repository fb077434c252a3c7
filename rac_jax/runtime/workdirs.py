"""A run's folder: config.json, data.json, checkpoints/, memory/, eval/, tensorboard/."""

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from rac_jax import config as configs
from rac_jax.config import ConfigError, changed
from rac_jax.runtime import files, processes


@contextlib.contextmanager
def claim(config: ConfigDict, workdir: Path) -> Iterator[None]:
    """Lock the folder for this run, unless it holds a run with other settings. Nothing is recorded in it yet."""
    with _hold(workdir) if processes.first() else contextlib.nullcontext():
        check(config, workdir)
        processes.wait()
        processes.require_shared(workdir)
        yield


def write_config(config: ConfigDict, workdir: Path) -> None:
    """Record the config of the run. `read_config` gives it back."""
    files.write_json(workdir / "config.json", plain(config))


@contextlib.contextmanager
def _hold(workdir: Path) -> Iterator[None]:
    """Lock the folder. The operating system releases the lock when the process ends, even if it is killed."""
    path = workdir / ".lock"
    with files.writing(workdir):
        workdir.mkdir(parents=True, exist_ok=True)
        file = path.open("a+")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise RuntimeError(f"{workdir} is in use by {holder}; use another --workdir, or wait for it") from None
        with files.writing(path):
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
            file.flush()
        yield


def check(config: ConfigDict, workdir: Path, *, free: Sequence[str] = ()) -> None:
    """Refuse a folder that holds a run with other settings, and list them. Fields that are `free` may differ.

    A field that is newer than the run has its default there.
    """
    there = (workdir / "config.json").exists()
    differences = changed(plain(read_config(workdir)), plain(config)) if there else {}
    differences = {name: values for name, values in differences.items() if name not in free}
    if differences:
        lines = [f"  {name}: {old!r} there, {now!r} now" for name, (old, now) in differences.items()]
        raise ConfigError(
            f"{workdir} holds a run with other settings:\n"
            + "\n".join(lines)
            + "\nUse another --workdir, or the settings of that run."
        )


def read_config(workdir: Path) -> ConfigDict:
    """The config of the run in a folder."""
    config, path = configs.default(), workdir / "config.json"
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: {workdir} holds no run")
    try:
        _update(config, _read(workdir))
    except (AttributeError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is not a config of this version ({error})") from error
    return config


def _read(workdir: Path) -> dict[str, Any]:
    path = workdir / "config.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is damaged ({error})") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path} is damaged (it holds no settings)")
    return found


def _update(config: ConfigDict, plain: dict[str, Any]) -> None:
    for name, value in plain.items():
        if isinstance(value, dict):
            _update(config[name], value)
        else:
            config[name] = tuple(value) if isinstance(value, list) else value


def plain(config: ConfigDict) -> dict[str, Any]:
    """The config in the types of JSON."""
    return json.loads(config.to_json_best_effort())
