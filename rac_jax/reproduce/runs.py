"""The runs of a table: each is a process of its own with its own folder. A run that is complete is not repeated."""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict
from tqdm import tqdm

from rac_jax import config as configs
from rac_jax import data
from rac_jax.reproduce.tables import Row, Table
from rac_jax.runtime import files

# The fields that determine the keys and the index of a memory. Rows that agree in them share one.
OF_THE_MEMORY = (
    "model.encoder.name", "model.encoder.weights", "model.dtype", "data.image_size", "data.crop",
    "data.interpolation", "memory.metric", "memory.index", "memory.precision", "memory.hnsw_m",
    "memory.ef_construction",
)  # fmt: skip
# Paths: they have no influence on a result. What is in data.root is compared by its content.
PATHS = ("compiled", "weights_dir", "data.root", "data.lists", "memory.dir", "memory.cache")
LONGEST = 100  # characters of a folder's name


@dataclasses.dataclass(frozen=True)
class Result:
    """The outcome of a run."""

    figures: Mapping[str, float]  # by column
    on: str = ""  # the hardware, if the figures are times


class RowFailed(RuntimeError):
    """A run of a row ended with an error."""


@dataclasses.dataclass(frozen=True)
class Experiment:
    """The folder of all runs, and the config that they start from."""

    folder: Path
    flags: Sequence[str]  # --config=… and the user's own --config.…
    config: ConfigDict  # the config that these flags make
    split: str
    _data: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict, repr=False, compare=False)

    def workdir(self, table: Table, row: Row, seed: int) -> Path:
        """Named after the fields that the row changes, and a digest of everything that determines the result.

        Rows of several tables share a run. Another config, other flags or other data lead to another folder.
        """
        fields = {name: value for name, value in row.fields.items() if value != configs.field(self.config, name)}
        fields |= {"made": row.made} if row.made else {}
        name = f"seed_{seed}-{self._digest(table, row, seed)}"
        return self.folder / table.kind / folder_name(fields) / name

    def fields(self, table: Table, row: Row, seed: int) -> dict[str, Any]:
        """Everything that a run of a row changes in the config."""
        fields = self._own_fields(row, seed)
        if table.kind == "nearest":
            return fields
        of_all = {"data.keep_share": 1.0, "data.keep_classes": 1.0} if table.kind == "edit" else {}
        memory = self.folder / "memory" / self._memory(fields | of_all, row.made)
        return fields | {"memory.dir": str(memory), "memory.cache": str(memory / "neighbours")}

    def command(self, table: Table, row: Row, seed: int) -> list[str]:
        """The arguments of Python for a run of a row, without --workdir."""
        changes = [f"--config.{name}={value}" for name, value in self.fields(table, row, seed).items()]
        if table.kind == "main":
            return ["-m", "rac_jax.main", *self.flags, *changes]
        more = {"nearest": [f"--keys={self.folder / 'keys'}"], "runtime": [f"--made={row.made}"]}
        return ["-m", "rac_jax.reproduce.measure", table.kind, *self.flags, *changes, *more.get(table.kind, [])]

    def outcome(self, table: Table, row: Row, seed: int) -> Path:
        """The file with the result of a run."""
        names = {"main": f"eval/{self.split}", "runtime": "runtime"}
        return self.workdir(table, row, seed) / f"{names.get(table.kind, f'{table.kind}_{self.split}')}.json"

    def _own_fields(self, row: Row, seed: int) -> dict[str, Any]:
        return {"seed": seed, "data.seed": seed, "eval.split": self.split} | dict(row.fields)

    def _digest(self, table: Table, row: Row, seed: int) -> str:
        """Of the whole config of a run and its data."""
        config = self._with(self._own_fields(row, seed))
        # A training's result depends on neither the hardware nor how often something is logged; times may.
        trained = table.kind in ("main", "edit")
        free = {*PATHS, *configs.FREE} - {"name", "train.steps"} if trained else PATHS
        values = {
            name: configs.field(config, name)
            for name in configs.names(config)
            if not any(name == other or name.startswith(f"{other}.") for other in free)
        }
        return _hash([values, self._fingerprints(config), row.made])[:10]

    def _memory(self, fields: Mapping[str, Any], made: int) -> str:
        config = self._with(fields)
        made_of: list[Any] = [configs.field(config, name) for name in OF_THE_MEMORY]
        made_of.append(configs.options(config.model.encoder))
        made_of.append(self._fingerprints(config)["train"])
        return _hash(made_of + ([made] if made else []))[:16]

    def _with(self, fields: Mapping[str, Any]) -> ConfigDict:
        """A copy of the config with these fields changed."""
        config = self.config.copy_and_resolve_references()
        for name, value in fields.items():
            room, _, field = name.rpartition(".")
            (configs.field(config, room) if room else config)[field] = value
        return config

    def _fingerprints(self, config: ConfigDict) -> dict[str, str]:
        """Of the splits and of the classes that config.data gives."""
        key = config.data.to_json_best_effort()
        if key not in self._data:
            dataset = data.load(config)
            found = {name: dataset.fingerprint(name) for name in sorted(dataset.splits)}
            self._data[key] = found | {"classes": _hash(dataset.class_names)}
        return self._data[key]


def folder_name(fields: Mapping[str, Any]) -> str:
    """Fields as a folder's name: memory.k_30 for {"memory.k": 30}. A long name is cut and gets a digest."""
    full = "_".join(f"{name}_{value}" for name, value in sorted(fields.items()))
    name = re.sub(r"[^\w.-]+", "_", full).strip("_") or "as_configured"
    return name if len(name) <= LONGEST else f"{name[:LONGEST]}_{_hash(full)[:8]}"


def known(experiment: Experiment, table: Table, row: Row, seed: int) -> Result | None:
    """The result of a row and seed, if it was run before."""
    path = experiment.outcome(table, row, seed)
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if table.kind != "main":
            return Result(content["figures"], content["on"])
        shares = next(iter(content["voices"].values()))
        return Result({group: 100 * share for group, share in shares.items()})
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration) as error:
        raise ValueError(f"{path} is damaged; delete it, and the row is evaluated again") from error


def result(experiment: Experiment, table: Table, row: Row, seed: int) -> Result:
    """The result of a row and seed. It is run now unless it was before; if another process runs it, wait for that."""
    found = known(experiment, table, row, seed)
    if found is not None:
        return found
    workdir = experiment.workdir(table, row, seed)
    with locked(workdir) as lock:
        found = known(experiment, table, row, seed)
        if found is None:
            _run(workdir, [*experiment.command(table, row, seed), f"--workdir={workdir}"], lock)
            found = known(experiment, table, row, seed)
    if found is None:
        raise RowFailed(f"the run wrote no {experiment.outcome(table, row, seed)} (see {workdir / 'log.txt'})")
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
        said = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")] or lines
        raise RowFailed(f"{said[-1]} (see {log})")


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


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode(errors="replace")).hexdigest()
