"""A run's folder: config.json, checkpoints/, memory/, eval/, tensorboard/."""

import json
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from rac_jax import files
from rac_jax.config import ConfigError, changed
from rac_jax.report.tensorboard import TensorBoard


def claim(config: ConfigDict, workdir: Path) -> None:
    """Record the config in the folder, unless it holds a run with other settings."""
    check(config, workdir)
    files.write_json(workdir / "config.json", _plain(config))


def check(config: ConfigDict, workdir: Path) -> None:
    """Refuse a folder that holds a run with other settings, and say which."""
    path = workdir / "config.json"
    differences = changed(json.loads(path.read_text()), _plain(config)) if path.exists() else {}
    if differences:
        lines = [f"  {name}: {old!r} there, {now!r} now" for name, (old, now) in differences.items()]
        raise ConfigError(
            f"{workdir} holds a run with other settings:\n"
            + "\n".join(lines)
            + "\nName another --workdir, or give the settings of that run."
        )


def describe(config: ConfigDict, board: TensorBoard) -> None:
    """The config as text and as hyper-parameters."""
    plain = _plain(config)
    board.text(0, "config", "```\n" + json.dumps(plain, indent=2) + "\n```")
    flat = {
        f"{room}.{name}": value
        for room, fields in plain.items()
        if isinstance(fields, dict)
        for name, value in fields.items()
    }
    board.hparams({"seed": plain["seed"]} | flat)


def _plain(config: ConfigDict) -> dict[str, Any]:
    """The config as JSON holds it."""
    return json.loads(config.to_json_best_effort())
