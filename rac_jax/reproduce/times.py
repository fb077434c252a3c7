"""How long runs took, from the start of the command to its end.

Runs share E's keys, and whichever comes first computes them. So that the order of the runs does not matter, this time
is taken out of a run's, and each run is charged for the keys that it needs, at the rate at which they were computed.
"""

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

from ml_collections import ConfigDict

from rac_jax import config as configs
from rac_jax.data import record
from rac_jax.memory import kept_keys
from rac_jax.reproduce.table import MINUTES, OF_E
from rac_jax.runtime import files

FILE = "seconds.json"


@contextlib.contextmanager
def measured(keys: Path, workdir: Path) -> Iterator[None]:
    """Add the time spent inside to that of the run, also if it is interrupted."""
    started, before = time.perf_counter(), kept_keys.spent(keys)
    try:
        yield
    finally:
        spent = time.perf_counter() - started
        encoding = kept_keys.spent(keys).seconds - before.seconds
        so_far = _read(workdir) or {"run": 0.0, "encoding": 0.0}
        total = {"run": so_far["run"] + spent, "encoding": so_far["encoding"] + encoding}
        files.write_json(workdir / FILE, total)


def read(config: ConfigDict, keys: Path, workdir: Path) -> dict[str, float]:
    """Minutes of a complete run with this config and E's share of them; nothing if they were not measured.

    `keys` is the folder of the keys that the runs share.
    """
    found = _read(workdir)
    if found is None:
        return {}
    of_e = _keys(config, workdir) * kept_keys.spent(keys).each / 60
    return {MINUTES: (found["run"] - found["encoding"]) / 60 + of_e, OF_E: of_e}


def _keys(config: ConfigDict, workdir: Path) -> int:
    """How many images a run needs keys of: those in its memory and, if neighbours are cached, those evaluated."""
    trained_on = record.read(workdir)
    if trained_on is None or "encoder" not in configs.roles(config):
        return 0
    splits = ["train", config.eval.split] if config.memory.lookup == "cached" else ["train"]
    splits += ["train"] if config.tune.share else []  # once with the published E, once with the trained one
    return sum(trained_on.splits[name]["images"] for name in splits)


def _read(workdir: Path) -> dict[str, float] | None:
    path = workdir / FILE
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
