"""The runs of a table: each a process of its own, in a folder of its own. What is there is not run again."""

import dataclasses
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from rac_jax import config as configs
from rac_jax import data
from rac_jax.reproduce.tables import Row, Table
from rac_jax.runtime import files

# What decides the keys and the index of a memory: rows that agree in these share one.
OF_THE_MEMORY = (
    "model.encoder.name", "model.encoder.weights", "model.dtype", "data.image_size", "data.crop",
    "data.interpolation", "memory.metric", "memory.index", "memory.precision", "memory.hnsw_m",
    "memory.ef_construction",
)  # fmt: skip
LONGEST = 100  # letters of a folder's name


@dataclasses.dataclass(frozen=True)
class Result:
    """What a run found."""

    figures: Mapping[str, float]  # column -> figure
    on: str = ""  # what they were measured on, where they are times


class RowFailed(RuntimeError):
    """A run of a row ended with an error."""


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a table's runs are kept, and the flags that they are started with."""

    folder: Path
    flags: Sequence[str]  # --config=… and what else the user said of the config
    config: ConfigDict  # what they make
    split: str

    def workdir(self, table: Table, row: Row, seed: int) -> Path:
        """Named after what it changes in the config, so that rows of several tables share a run."""
        fields = {name: value for name, value in row.fields.items() if value != configs.field(self.config, name)}
        fields |= {"made": row.made} if row.made else {}
        return self.folder / table.kind / folder_name(fields) / f"seed_{seed}"

    def fields(self, table: Table, row: Row, seed: int) -> dict[str, Any]:
        """Everything that a run of a row changes in the config."""
        fields: dict[str, Any] = {"seed": seed, "data.seed": seed, "eval.split": self.split}
        fields |= row.fields
        if table.kind == "nearest":
            return fields
        memory = self.folder / "memory" / self._memory(fields, row.made)
        return fields | {"memory.dir": str(memory), "memory.cache": str(memory / "neighbours")}

    def command(self, table: Table, row: Row, seed: int) -> list[str]:
        """What Python is started with for a run of a row, but for its folder."""
        changes = [f"--config.{name}={value}" for name, value in self.fields(table, row, seed).items()]
        if table.kind == "main":
            return ["-m", "rac_jax.main", *self.flags, *changes]
        more = f"--keys={self.folder / 'keys'}" if table.kind == "nearest" else f"--made={row.made}"
        return ["-m", "rac_jax.reproduce.measure", table.kind, *self.flags, *changes, more]

    def _memory(self, fields: Mapping[str, Any], made: int) -> str:
        config = self.config.copy_and_resolve_references()
        for name, value in fields.items():
            room, _, field = name.rpartition(".")
            (configs.field(config, room) if room else config)[field] = value
        made_of: list[Any] = [configs.field(config, name) for name in OF_THE_MEMORY]
        made_of.append(configs.options(config.model.encoder))
        made_of.append(data.load(config).fingerprint("train"))
        made_of += [made] if made else []
        return hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:16]


def folder_name(fields: Mapping[str, Any]) -> str:
    """Fields as a folder's name: memory.k_30 of {"memory.k": 30}. A long one is cut, and a hash added."""
    whole = "_".join(f"{name}_{value}" for name, value in sorted(fields.items()))
    name = re.sub(r"[^\w.-]+", "_", whole).strip("_") or "as_configured"
    return name if len(name) <= LONGEST else f"{name[:LONGEST]}_{hashlib.sha256(whole.encode()).hexdigest()[:8]}"


def result(place: Place, table: Table, row: Row, seed: int) -> Result:
    """What a row and seed gave; run now unless that was done before."""
    workdir = place.workdir(table, row, seed)
    names = {"main": f"eval/{place.split}", "nearest": f"nearest_{place.split}", "runtime": "runtime"}
    found = workdir / f"{names[table.kind]}.json"
    if not found.exists():
        _run(workdir, [*place.command(table, row, seed), f"--workdir={workdir}"])
    content = json.loads(found.read_text())
    if table.kind != "main":
        return Result(content["figures"], content["on"])
    shares = next(iter(content["branches"].values()))
    return Result({group: 100 * share for group, share in shares.items()})


def _run(workdir: Path, arguments: Sequence[str]) -> None:
    workdir.mkdir(parents=True, exist_ok=True)
    files.write_text(workdir / "command.txt", " ".join(arguments) + "\n")
    if _code(workdir, arguments):
        lines = (workdir / "log.txt").read_text().strip().splitlines() or ["no output"]
        said = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")] or lines
        raise RowFailed(f"{said[-1]} (see {workdir / 'log.txt'})")


def _code(workdir: Path, arguments: Sequence[str]) -> int:
    """How a run ended. What interrupts us interrupts it, once, and then it has the time to save."""
    command = [sys.executable, *arguments]
    with (
        (workdir / "log.txt").open("w") as log,
        subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True) as process,
    ):
        try:
            return process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
