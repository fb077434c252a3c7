"""What the commands share: flags that are parsed, and errors that are shown, for people."""

import difflib
import logging as std_logging
import os
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from absl import app, flags, logging

from rac_jax import config as configs

# Before jax starts its devices. The lookup's callback and the collectives of simulated devices each hold a thread of
# the host's pool while they wait: with fewer than four a device, a run on few cores comes to a standstill. One device
# has no collectives and needs two threads; more than there are cores cost it a twentieth of a step and more.
_simulated = re.search(r"host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
_devices = int(_simulated[1]) if _simulated else 1
_threads = 4 * _devices if _devices > 1 else 2
os.environ.setdefault("PJRT_NPROC", str(max(_threads, os.cpu_count() or 1)))


def run(main: Callable[[list[str]], Any], config: flags.FlagHolder | None = None) -> None:
    """`main` under absl, with errors that are meant for the user shown as one message."""
    logging.set_verbosity(logging.WARNING)
    _mute_failed_saves()
    try:
        app.run(main, flags_parser=lambda argv: _parse(argv, config))
    except (ValueError, OSError, RuntimeError) as error:
        if not _raised_here(error):
            raise
        sys.exit(f"error: {error}")


def _mute_failed_saves() -> None:
    """Orbax's writers have no one to report to once one of them has failed: the first one's error is enough."""
    std_logging.getLogger("asyncio").setLevel(std_logging.CRITICAL)  # "exception was never retrieved"
    shown = sys.unraisablehook

    def show(unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            shown(unraisable)

    sys.unraisablehook = show


def _parse(argv: list[str], config: flags.FlagHolder | None) -> list[str]:
    """absl's parser; what it and config_flags raise for a bad flag becomes one message."""
    try:
        rest = flags.FLAGS(argv)
        if config is not None and config.value is not None:
            _ = config.value.name  # a config file that does not load says so here
        return rest
    except (flags.Error, AttributeError, KeyError, TypeError, ValueError, OSError) as error:
        sys.exit(f"error: {_unknown_field(argv) or _gist(error)}")


def _unknown_field(argv: list[str]) -> str:
    """What is wrong with the first --config.… flag that names no field, if there is one."""
    known = configs.names(configs.default())
    for argument in argv:
        name = argument.lstrip("-").partition("=")[0]
        if name.startswith("config.") and name.removeprefix("config.") not in known:
            near = difflib.get_close_matches(name.removeprefix("config."), known, n=3)
            return f"there is no field {name}" + (f"; near it are {', '.join(near)}" if near else "")
    return ""


def _gist(error: BaseException) -> str:
    """The last line of config_flags' report where that says it all: a missing file, or a message of ours."""
    report = str(error).strip()
    last = report.splitlines()[-1].strip() if report else repr(error)
    if "No such file" in last or "ConfigError: " in last:
        return last.rpartition("ConfigError: ")[2]
    return report


def _raised_here(error: BaseException) -> bool:
    """Was it raised by this package, with a message of ours, rather than deep inside another?"""
    frames = traceback.extract_tb(error.__traceback__)
    return Path(frames[-1].filename).is_relative_to(Path(__file__).parent)
