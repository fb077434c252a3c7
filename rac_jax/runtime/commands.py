"""What all commands share: flags, exit codes, and errors shown as one message."""

import contextlib
import difflib
import io
import logging as std_logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from absl import app, flags, logging

from rac_jax import config as configs
from rac_jax.runtime import interruption, starting

# Set before jax starts its devices. The lookup's callback and the collectives of simulated devices each hold a thread
# of the host's pool while they wait: with fewer than four per device, a run on few cores deadlocks. One device has no
# collectives and needs two threads; more threads than cores slow its step down by 5 % or more.
_simulated = re.search(r"host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
_devices = int(_simulated[1]) if _simulated else 1
_threads = 4 * _devices if _devices > 1 else 2
os.environ.setdefault("PJRT_NPROC", str(max(_threads, os.cpu_count() or 1)))

PACKAGE = Path(__file__).parents[1]


def run(main: Callable[[list[str]], Any], config: flags.FlagHolder | None = None) -> None:
    """Run `main` under absl. This is the only place that turns exceptions into messages and exit codes.

    - An error raised by this package, or by the system about a file, is one line; the exit code is 1.
    - Any other exception keeps its stack trace, followed by a line that asks to report it; the exit code is 1.
    - Ctrl-C and SIGTERM are one line; the exit code is 75.
    - When the reader of the output is gone (as in `| head`), the command ends silently with exit code 1.
    """
    logging.set_verbosity(logging.WARNING)
    mute_orbax()
    _mute_failed_saves()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that is not UTF-8 may lack "±"
    interruption.exit_on_signals()
    with _reader_may_leave():
        try:
            app.run(main, flags_parser=lambda argv: _parse(argv, config))
        except (KeyboardInterrupt, interruption.Interrupted):
            print(starting.INTERRUPTED, file=sys.stderr)
            sys.exit(interruption.REQUEUE)
        except BrokenPipeError:
            raise
        except Exception as error:
            sys.exit(_message(error))


@contextlib.contextmanager
def _reader_may_leave() -> Iterator[None]:
    """Flush the output at the end, and end silently when nobody reads it any more."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            os.dup2(nowhere, stream.fileno())  # the interpreter flushes both once more at exit
        sys.exit(1)


def _message(error: Exception) -> str:
    """What the user is told; the stack trace of an unexpected error is printed."""
    if isinstance(error, ValueError | OSError | RuntimeError) and _raised_here(error):
        return f"error: {error}"
    if isinstance(error, OSError) and error.filename is not None:
        return f"error: {os.fsdecode(error.filename)}: {error.strerror}"
    traceback.print_exception(error)
    return "error: this is a bug in rac_jax; please report the command and the lines above"


def _raised_here(error: BaseException) -> bool:
    """Was it raised by this package, with a message for users, rather than inside a library?"""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and Path(frames[-1].filename).is_relative_to(PACKAGE)


def mute_orbax() -> None:
    """Hide what Orbax logs: stack traces of failed saves, which the run reports in one line, and remarks on reading."""
    logging.get_absl_logger().addFilter(_not_of_orbax)


def _not_of_orbax(record: std_logging.LogRecord) -> bool:
    return "orbax" not in record.pathname


def _mute_failed_saves() -> None:
    """Hide what Orbax's threads print after a failed save. The run itself reports the error in one line."""
    std_logging.getLogger("asyncio").setLevel(std_logging.CRITICAL)  # "exception was never retrieved"
    shown = sys.unraisablehook

    def show(unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            shown(unraisable)

    sys.unraisablehook = show


def _parse(argv: list[str], config: flags.FlagHolder | None) -> list[str]:
    """Parse flags with absl. Whatever it and config_flags raise for a bad flag becomes one message."""
    try:
        rest = flags.FLAGS(argv)
        if config is not None and config.value is not None:
            _ = config.value.name  # loads the config file
        return rest
    except (flags.Error, AttributeError, KeyError, TypeError, ValueError, OSError) as error:
        sys.exit(f"error: {_unknown_field(argv) or _gist(error)}")


def _unknown_field(argv: list[str]) -> str:
    """What is wrong with the first --config.… flag that does not name a field; "" if all do."""
    known = configs.names(configs.default())
    for argument in argv:
        name = argument.lstrip("-").partition("=")[0]
        if name.startswith("config.") and name.removeprefix("config.") not in known:
            near = difflib.get_close_matches(name.removeprefix("config."), known, n=3)
            return f"there is no field {name}" + (f"; similar fields: {', '.join(near)}" if near else "")
    return ""


def _gist(error: BaseException) -> str:
    """The last line of config_flags' report where it is enough: for a missing file, or a message of this package."""
    report = str(error).strip()
    last = report.splitlines()[-1].strip() if report else repr(error)
    if "No such file" in last or "ConfigError: " in last:
        return last.rpartition("ConfigError: ")[2]
    return report
