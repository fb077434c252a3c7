"""The runs of a table: each is a process of its own with its own folder. A run that is complete is not repeated."""

import contextlib
import dataclasses
import fcntl
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tqdm import tqdm

from rac_jax.reproduce import times
from rac_jax.reproduce.experiment import Experiment, RowFailed
from rac_jax.reproduce.rendering import NOT_RUN
from rac_jax.reproduce.table import FITTING, Row, Table
from rac_jax.runtime import files


@dataclasses.dataclass(frozen=True)
class Result:
    """The outcome of a run."""

    figures: Mapping[str, float]  # by column
    on: str = ""  # the hardware, if the figures are times


FAILED = "failed.txt"  # in the folder of a run that ended with an error: the reason


def known(experiment: Experiment, table: Table, row: Row, seed: int) -> Result | None:
    """The result of a row and seed, if it was run before."""
    try:
        own = experiment.of(row)
        path = own.outcome(table, row, seed)
    except RowFailed:  # the data cannot be as the row wants them
        return None
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if table.kind != "main":
            return Result(content["figures"], content["on"])
        shares = content["voices"][row.voice] if row.voice else next(iter(content["voices"].values()))
        figures = {group: 100 * share for group, share in shares.items()}
        if "snippets" in content:
            figures[FITTING] = content["snippets"]["fitting"]
        return Result(figures | times.read(own.run_config(row, seed), own.keys, path.parents[1]))
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration) as error:
        raise ValueError(f"{path} is damaged; delete it, and the row is evaluated again") from error


def complete(experiment: Experiment, table: Table, row: Row, seeds: int) -> list[Result] | None:
    """The results of a row with each seed, if all were run before."""
    found: list[Result] = []
    for seed in range(seeds):
        one = known(experiment, table, row, seed)
        if one is None:
            return None
        found.append(one)
    return found


def failure(experiment: Experiment, table: Table, row: Row, seeds: int) -> str | None:
    """Why a row has no results: what it is for, or the reason that an earlier command found; None if none is known."""
    if row.only not in ("", experiment.config.data.name):
        return not_run(f"for {row.only} only")
    for seed in range(seeds):
        try:
            path = experiment.of(row).workdir(table, row, seed) / FAILED
        except RowFailed as error:
            return not_run(str(error))
        if path.exists():
            return not_run(path.read_text(encoding="utf-8"))
    return None


def not_run(reason: str) -> str:
    """What a table shows of a row that cannot be run: the first sentence, and the first file or remedy it names."""
    first, *named = reason.strip().partition(" (see")[0].splitlines()
    gist = first.partition(". ")[0].rstrip(".")
    return f"{NOT_RUN}: {gist}: {named[0].strip()}" if named else f"{NOT_RUN}: {gist}"


def earlier(experiment: Experiment, table: Table, seeds: int, *, partly: bool) -> dict[str, list[Result] | str] | None:
    """What earlier commands found of a table, by row: results, or the reason why there are none.

    None unless every row that can be run is complete (if `partly`, one row or more). Nothing is run. A damaged result
    counts as missing: the table's own command names it.
    """
    found: dict[str, list[Result] | str] = {}
    for row in table.rows:
        try:
            mine: list[Result] | str | None = complete(experiment, table, row, seeds)
        except ValueError:
            mine = None
        mine = mine or failure(experiment, table, row, seeds)
        if mine is not None:
            found[row.name] = mine
        elif not partly:
            return None
    return found if any(not isinstance(mine, str) for mine in found.values()) else None


def result(experiment: Experiment, table: Table, row: Row, seed: int) -> Result:
    """The result of a row and seed. It is run now unless it was before; if another process runs it, wait for that."""
    found = known(experiment, table, row, seed)
    if found is not None:
        return found
    own = experiment.of(row)
    workdir = own.workdir(table, row, seed)
    with locked(workdir) as lock:
        found = known(experiment, table, row, seed)
        if found is None:
            (workdir / FAILED).unlink(missing_ok=True)
            try:
                with times.measured(own.keys, workdir):
                    _run(workdir, [*own.command(table, row, seed), f"--workdir={workdir}"], lock)
            except RowFailed as error:
                files.write_text(workdir / FAILED, f"{error}\n")
                raise
            found = known(experiment, table, row, seed)
    if found is None:
        raise RowFailed(f"the run wrote no {own.outcome(table, row, seed)} (see {workdir / 'log.txt'})")
    return found


@contextlib.contextmanager
def locked(workdir: Path) -> Iterator[int]:
    """Wait until no other process holds the folder, and hold it. Yields the descriptor of the lock file."""
    with files.writing(workdir):
        workdir.mkdir(parents=True, exist_ok=True)
        file = (workdir / ".reproduce.lock").open("a")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tqdm.write(f"waiting for another process that runs {workdir}", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


def _run(workdir: Path, arguments: Sequence[str], lock: int) -> None:
    files.write_text(workdir / "command.txt", " ".join(arguments) + "\n")
    log = workdir / "log.txt"
    before = log.stat().st_size if log.exists() else 0
    if _code(log, arguments, lock):
        with log.open("rb") as file:
            file.seek(before)
            lines = file.read().decode(errors="replace").strip().splitlines() or ["no output"]
        raise RowFailed(f"{_last_error(lines)} (see {log})")


def _last_error(lines: Sequence[str]) -> str:
    """The last error in a log with the indented lines that belong to it, or the last line."""
    starts = [number for number, line in enumerate(lines) if line.startswith("error: ")]
    if not starts:
        return lines[-1]
    more = itertools.takewhile(lambda line: line.startswith("  "), lines[starts[-1] + 1 :])
    return "\n".join([lines[starts[-1]].removeprefix("error: "), *more])


def _code(log: Path, arguments: Sequence[str], lock: int) -> int:
    """The exit code of a run. If this process is interrupted, the run is too, and has time to save.

    The run inherits the lock, so that it holds the folder to its end even if this process is killed.
    """
    command = [sys.executable, *arguments]
    with (
        log.open("a") as output,
        subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, pass_fds=(lock,)
        ) as process,
    ):
        try:
            return process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
