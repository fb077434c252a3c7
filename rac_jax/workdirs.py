"""A run's folder: config.json, checkpoints/, memory/, eval/, tensorboard/."""

import json
from pathlib import Path

from ml_collections import ConfigDict

from rac_jax import files
from rac_jax.config import ConfigError, changed
from rac_jax.report.tensorboard import TensorBoard


def claim(config: ConfigDict, workdir: Path) -> None:
    """Record the config in the folder, or refuse a folder that holds a run with other settings."""
    path = workdir / "config.json"
    new = json.loads(config.to_json_best_effort())
    if path.exists():
        differences = changed(json.loads(path.read_text()), new)
        if differences:
            lines = [f"  {name}: {old!r} there, {now!r} now" for name, (old, now) in differences.items()]
            raise ConfigError(
                f"{workdir} holds a run with other settings:\n"
                + "\n".join(lines)
                + "\nName another --workdir, or give the settings of that run."
            )
    files.write_json(path, new)


def describe(config: ConfigDict, board: TensorBoard) -> None:
    """The config as text and as hyper-parameters."""
    plain = json.loads(config.to_json_best_effort())
    board.text(0, "config", "```\n" + json.dumps(plain, indent=2) + "\n```")
    flat = {
        f"{room}.{name}": value
        for room, fields in plain.items()
        if isinstance(fields, dict)
        for name, value in fields.items()
    }
    board.hparams({"seed": plain["seed"]} | flat)
