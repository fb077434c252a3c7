"""Where the runs of tables lie, which config each has, and what they share."""

import dataclasses
import hashlib
import json
import re
import runpy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import app
from ml_collections import ConfigDict

from rac_jax import config as configs
from rac_jax import data
from rac_jax.memory import build, manifest
from rac_jax.reproduce.table import Row, Table

# Paths: they have no influence on a result. What is in data.root is compared by its content.
PATHS = ("compiled", "weights_dir", "data.root", "data.lists", "memory.dir", "memory.cache", "memory.kept_keys")
PLAIN = {"eval.show": 0, "train.then": "", "train.calibrate_sets": False}  # what a table does not show, and takes time
LONGEST = 100  # characters of a folder's name


def given_flags(arguments: Sequence[str]) -> list[str]:
    """The flags --config=… and --config.…=… among a command's arguments, that of the file first.

    Raises UsageError for a field without "=": whether the next argument is its value depends on its type.
    """
    found: list[str] = []
    left = iter(arguments)
    for argument in left:
        name, equals, value = argument.lstrip("-").partition("=")
        if not argument.startswith("-"):
            continue
        if name == "config":
            found.insert(0, f"--config={value if equals else next(left, '')}")
        elif name.startswith("config.") and equals:
            found.append(f"--{name}={value}")
        elif name.removeprefix("no").startswith("config."):
            raise app.UsageError(f"write --{name.removeprefix('no')}=VALUE: {argument} has no =")
    return found


class RowFailed(RuntimeError):
    """A run of a row ended with an error."""


@dataclasses.dataclass(frozen=True)
class Experiment:
    """The folder of all runs, and the config that they start from."""

    folder: Path
    flags: Sequence[str]  # --config=…, then the user's own --config.…
    config: ConfigDict  # the config that these flags make
    split: str
    _data: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict, repr=False, compare=False)

    def workdir(self, table: Table, row: Row, seed: int) -> Path:
        """Named after the fields that the row changes, and a digest of everything that determines the result.

        Rows of several tables share a run. Another config, other flags or other data lead to another folder.
        """
        fields = {name: value for name, value in row.fields.items() if value != configs.field(self.config, name)}
        fields |= {name: number for name, number in (("made", row.made), ("up_to", row.up_to)) if number}
        name = f"seed_{seed}-{self._digest(table, row, seed)}"
        return self.folder / table.kind / folder_name(fields) / name

    def of(self, row: Row) -> "Experiment":
        """The experiment that a row belongs to: one with another variant of the config file, if the row names it."""
        if row.variant is None:
            return self
        file, _, variant = self.config_file.partition(":")
        get_config = runpy.run_path(file)["get_config"]
        config, changed = get_config(row.variant), configs.difference(get_config(variant), self.config)
        given = (re.match(r"--config\.([\w.]+)", flag) for flag in self.flags[1:])
        for name in {*changed, *(found[1] for found in given if found)}:  # a value given may be the named variant's own
            _set(config, name, configs.field(self.config, name))
        named = f"--config={file}:{row.variant}" if row.variant else f"--config={file}"
        return dataclasses.replace(self, flags=[named, *self.flags[1:]], config=config)

    @property
    def config_file(self) -> str:
        """The config as it was named, FILE or FILE:VARIANT."""
        return self.flags[0].removeprefix("--config=")

    def fields(self, table: Table, row: Row, seed: int) -> dict[str, Any]:
        """Everything that a run of a row changes in the config.

        Runs with the same E share memories, and keys by image, unless the user or the row names a memory.
        """
        fields = self._own_fields(row, seed)
        if table.kind == "nearest":
            return fields
        memory = self._with(fields).memory
        timed = row.variant is not None  # then the views of B's blocks are the run's own
        shared = PLAIN | {
            "memory.kept_keys": memory.kept_keys or str(self.keys),
            "memory.cache": memory.cache or ("" if timed else str(self.folder / "neighbours")),
        }
        if memory.dir or self._with(fields).tune.share:  # each run has an E, and so a memory, of its own
            return fields | shared | {"memory.dir": memory.dir}
        of_all = {"data.keep_share": 1.0, "data.keep_classes": 1.0} if table.kind == "edit" else {}
        own = self.folder / "memory" / self._memory(fields | of_all, row.made)
        return fields | shared | {"memory.dir": str(own)}

    @property
    def keys(self) -> Path:
        """The folder of E's keys that the runs share."""
        return self.folder / "keys"

    def command(self, table: Table, row: Row, seed: int) -> list[str]:
        """The arguments of Python for a run of a row, without --workdir."""
        changes = [f"--config.{name}={value}" for name, value in self.fields(table, row, seed).items()]
        if table.kind == "main":
            return ["-m", "rac_jax.main", *self.flags, *changes]
        made = [f"--made={row.made}"] if row.made else []
        up_to = [f"--up_to={row.up_to}"] if row.up_to else []
        more = {"nearest": [f"--keys={self.keys}", *up_to], "runtime": made}
        return ["-m", "rac_jax.reproduce.measure", table.kind, *self.flags, *changes, *more.get(table.kind, [])]

    def outcome(self, table: Table, row: Row, seed: int) -> Path:
        """The file with the result of a run."""
        names = {"main": f"eval/{self.split}", "runtime": "runtime"}
        return self.workdir(table, row, seed) / f"{names.get(table.kind, f'{table.kind}_{self.split}')}.json"

    def run_config(self, row: Row, seed: int) -> ConfigDict:
        """The config of a run, without the folders that it shares with others."""
        return self._with(self._own_fields(row, seed))

    def _own_fields(self, row: Row, seed: int) -> dict[str, Any]:
        return {"seed": seed, "data.seed": seed, "eval.split": self.split} | dict(row.fields)

    def _digest(self, table: Table, row: Row, seed: int) -> str:
        """Of the whole config of a run and its data."""
        config = self.run_config(row, seed)
        # A training's result depends on neither the hardware nor how often something is logged; times may.
        trained = table.kind in ("main", "edit")
        free = {*PATHS, *configs.FREE} - {"name", "train.steps"} if trained else PATHS
        values = {
            name: configs.field(config, name)
            for name in configs.names(config)
            if not any(name == other or name.startswith(f"{other}.") for other in free)
        }
        if config.eval.views > 1:
            values["eval.views"] = config.eval.views
        given = [values, self._fingerprints(config), row.made, *([row.up_to] if row.up_to else [])]
        foreign = self._foreign(config) if table.kind != "edit" else []  # whose memory is of all training images
        return _hash([*given, foreign] if foreign else given)[:10]

    def _foreign(self, config: ConfigDict) -> list[str]:
        """What the memory that the user or the row names holds beside the training images."""
        if not config.memory.dir or not manifest.exists(Path(config.memory.dir)):
            return []
        sources = manifest.read(Path(config.memory.dir)).sources
        inside = {source.content for source in sources if source.state == manifest.ENABLED}
        return sorted(inside - {self._fingerprints(config)["train"]})

    def _memory(self, fields: Mapping[str, Any], made: int) -> str:
        config = self._with(fields)
        made_of = [*build.values_of_recipe(config), self._fingerprints(config)["train"]]
        return _hash(made_of + ([made] if made else []))[:16]

    def _with(self, fields: Mapping[str, Any]) -> ConfigDict:
        """A copy of the config with these fields changed."""
        config = self.config.copy_and_resolve_references()
        for name, value in fields.items():
            _set(config, name, value)
        return config

    def _fingerprints(self, config: ConfigDict) -> dict[str, str]:
        """Of the splits and of the classes that config.data gives."""
        key = config.data.to_json_best_effort()
        if key not in self._data:
            try:
                dataset = data.load(config)
            except ValueError as error:  # as an imbalance that the data set cannot have
                raise RowFailed(str(error)) from error
            found = {name: dataset.fingerprint(name) for name in sorted(dataset.splits)}
            self._data[key] = found | {"classes": _hash(dataset.class_names)}
        return self._data[key]


def folder_name(fields: Mapping[str, Any]) -> str:
    """Fields as a folder's name: memory.k_30 for {"memory.k": 30}. A long name is cut and gets a digest."""
    full = "_".join(f"{name}_{value}" for name, value in sorted(fields.items()))
    name = re.sub(r"[^\w.-]+", "_", full).strip("_") or "as_configured"
    return name if len(name) <= LONGEST else f"{name[:LONGEST]}_{_hash(full)[:8]}"


def _set(config: ConfigDict, name: str, value: Any) -> None:
    """Set the field with a dotted name."""
    room, _, field = name.rpartition(".")
    (configs.field(config, room) if room else config)[field] = value


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode(errors="replace")).hexdigest()
