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

import numpy as np
from ml_collections import ConfigDict

from rac_jax import config as configs
from rac_jax import data, files, metrics
from rac_jax.metrics import Counts
from rac_jax.reproduce.tables import Row, Table

# What decides the keys and the index of a memory: rows that agree in these share one.
OF_THE_MEMORY = (
    "model.encoder", "model.encoder_weights", "model.encoder_options", "model.dtype", "data.image_size", "data.crop",
    "data.interpolation", "memory.metric", "memory.index", "memory.precision", "memory.hnsw_m",
    "memory.ef_construction",
)  # fmt: skip
UNTRAINED = {
    "model.branches": "retrieval", "model.text": "random_words", "model.text_weights": "", "model.text_options": "",
    "train.steps": 1,
}  # fmt: skip

Accuracy = dict[str, float]  # group -> share


class RowFailed(RuntimeError):
    """A run of a row ended with an error."""


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a table's runs are kept, and the flags that they are started with."""

    folder: Path
    flags: Sequence[str]  # --config=… and what else the user said of the config
    config: ConfigDict  # what they make
    split: str

    def workdir(self, table: str, row: Row, seed: int) -> Path:
        return self.folder / table / slug(row.name) / f"seed_{seed}"

    def fields(self, table: Table, row: Row, seed: int) -> dict[str, Any]:
        """Everything that a run of a row changes in the config."""
        fields: dict[str, Any] = {"seed": seed, "data.seed": seed, "eval.split": self.split}
        fields |= {**({} if table.trained else UNTRAINED), **row.fields}
        memory = self.folder / "memory" / self._memory(fields)
        return fields | {"memory.dir": str(memory), "memory.cache": str(memory / "neighbours")}

    def _memory(self, fields: Mapping[str, Any]) -> str:
        config = self.config.copy_and_resolve_references()
        for name, value in fields.items():
            if name.startswith("data."):
                room, field = name.split(".")
                config[room][field] = value
        made_of = [fields.get(name, configs.field(self.config, name)) for name in OF_THE_MEMORY]
        made_of.append(data.create(config).fingerprint("train"))
        return hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:16]


def slug(name: str) -> str:
    """A row's name as a folder's: "k = 30" is k_30."""
    return re.sub(r"\W+", "_", name).strip("_")


def result(place: Place, name: str, table: Table, row: Row, seed: int) -> Accuracy:
    """The accuracies of a row and seed; run now unless they were."""
    workdir = place.workdir(name, row, seed)
    found = workdir / "eval" / f"{place.split}.json"
    if not found.exists():
        _run(place, workdir, place.fields(table, row, seed))
    if table.trained:
        branches = json.loads(found.read_text())["branches"]
        return next(iter(branches.values()))
    return _nearest(workdir, place.split)


def _run(place: Place, workdir: Path, fields: Mapping[str, Any]) -> None:
    workdir.mkdir(parents=True, exist_ok=True)
    changes = [f"--config.{name}={value}" for name, value in fields.items()]
    command = [sys.executable, "-m", "rac_jax.main", *place.flags, *changes, f"--workdir={workdir}"]
    files.write_text(workdir / "command.txt", " ".join(command[1:]) + "\n")
    with (workdir / "log.txt").open("w") as log:
        done = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT)
    if done.returncode:
        last = (workdir / "log.txt").read_text().strip().splitlines()[-1:]
        raise RowFailed(f"{last[0] if last else 'no output'} (see {workdir / 'log.txt'})")


def _nearest(workdir: Path, split: str) -> Accuracy:
    """What the nearest neighbour alone says: nothing that was trained."""
    table = json.loads((workdir / "eval" / f"{split}_classes.json").read_text())
    columns = (table["images"], table["nearest"]["correct"], table["nearest"]["correct_top5"])
    return metrics.summary(Counts(*map(np.array, columns)), np.array(table["train_images"]))
