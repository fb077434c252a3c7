"""A run that measures something: python -m rac_jax.reproduce.measure WHAT --config=FILE --workdir=DIR

WHAT is nearest (accuracy of the nearest neighbour, and the cost of an index; see nearest.py), runtime (the time of an
epoch; see runtime.py) or edit (what rows added after training bring; see edit.py). Writes DIR/nearest_<split>.json,
DIR/runtime.json or DIR/edit_<split>.json with the `figures` that a table shows.
"""

from pathlib import Path

import jax
from absl import app, flags
from ml_collections import config_flags

from rac_jax import rules
from rac_jax.reproduce import edit, nearest, runtime
from rac_jax.runtime import commands, compilation, files, monitor

CONFIG = config_flags.DEFINE_config_file("config", None, "A file of configs/, as configs/demo.py.")
WORKDIR = flags.DEFINE_string("workdir", None, "The run's folder.")
KEYS = flags.DEFINE_string("keys", None, "nearest: the folder of keys that several indexes share; default the workdir.")
MADE = flags.DEFINE_integer(
    "made", 0, "runtime: add synthetic rows to the memory, this many times its own.", lower_bound=0
)
UP_TO = flags.DEFINE_integer(
    "up_to", 0, "nearest: add synthetic rows up to this number, as far as memory allows.", lower_bound=0
)


def main(argv: list[str]) -> None:
    what = argv[1] if len(argv) == 2 else ""
    if what not in ("nearest", "runtime", "edit") or CONFIG.value is None or not WORKDIR.value:
        raise app.UsageError(f"name WHAT, a --config and a --workdir\n\n{__doc__}")
    config, workdir = CONFIG.value, Path(WORKDIR.value)
    compilation.keep_programs(config)
    rules.validate(config, devices=jax.device_count())
    if what == "nearest":
        name, found = f"nearest_{config.eval.split}", nearest.measure(config, Path(KEYS.value or workdir), UP_TO.value)
    elif what == "edit":
        name, found = f"edit_{config.eval.split}", edit.measure(config, workdir)
    else:
        name, found = what, runtime.measure(config, workdir, MADE.value)
    files.write_json(workdir / f"{name}.json", found | {"on": monitor.devices()})


if __name__ == "__main__":
    commands.run(main, CONFIG)
