"""What a table is: rows, each a set of config fields, and the columns to show."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from rac_jax import config as configs

COLUMNS = ("all", "many", "medium", "few", "top5")  # the paper's groups

Paper = Mapping[str, Mapping[str, float]]  # data set -> column -> figure

FITTING, MINUTES, OF_E = "texts that fit", "minutes", "of these, E"  # measures of a training

BASE, RETRIEVAL = {"model.voices": "base"}, {"model.voices": "text"}


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of a table: a run per seed."""

    name: str
    fields: Mapping[str, Any]
    paper: Paper = dataclasses.field(default_factory=dict)
    x: float = 0.0  # its position on the axis of the plot
    only: str = ""  # the only data set that it is run on; "" = any
    made: int = 0  # synthetic rows added to the memory, as a multiple of its own
    up_to: int = 0  # rows that an index is filled up to with synthetic ones, as far as memory allows; 0 = none
    alone: bool = False  # a classifier without the memory: B's, or one on E's keys if the config has no B
    variant: str | None = None  # of the config file; None = the config as it was given
    voice: str = ""  # the voice whose figures are shown; "" = the run's own answer
    against: str = ""  # the row that it is compared with; "" = the table's reference


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows, and the columns to show."""

    title: str
    rows: tuple[Row, ...]
    kind: str = "main"  # of its runs: main (training and evaluation) | nearest | runtime | edit
    columns: tuple[str, ...] = COLUMNS  # in %
    measures: tuple[str, ...] = ()  # further columns, in other units
    axis: str = ""  # of the plot; "" = one bar per row
    log: bool = False  # whether the axis is logarithmic
    across: bool = False  # the plot has a curve per row; the axis is that of the columns
    by: str = ""  # a measure: the plot has a point per row, at this place
    reference: str = ""  # the row that the others are compared with, seed by seed; "" = the first that is complete


def described(role: str, name: str, weights: str = "", **options: int) -> dict[str, Any]:
    """Another model in a role, with none of the options that the config sets for its own."""
    fields = configs.default().model[role].to_dict() | {"name": name, "weights": weights, **options}
    return {f"model.{role}.{field}": value for field, value in fields.items()}


def without_memory(config: ConfigDict) -> dict[str, Any]:
    """The fields of a classifier that reads no memory: B's, or a cosine head on E's keys if the config has no B."""
    if "base" in configs.voices(config):
        return BASE
    keys = described("base", configs.KEYS)
    return BASE | keys | {"model.head": "cosine", "train.calibrate_new": False}
