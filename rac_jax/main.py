"""Train or evaluate: `python -m rac_jax.main --config=configs/demo.py`."""

from pathlib import Path

import jax
from absl import app, flags, logging
from ml_collections import config_flags

from rac_jax import commands, evaluate, train
from rac_jax import config as configs

CONFIG = config_flags.DEFINE_config_file("config", None, "A file of configs/, as configs/demo.py:base.")
WORKDIR = flags.DEFINE_string("workdir", None, "The run's folder; default runs/<the config's name>.")
MODE = flags.DEFINE_enum("mode", "train", ["train", "eval"], "Train (and then evaluate), or evaluate.")
STEP = flags.DEFINE_integer("step", None, "With --mode=eval: the checkpoint; default the newest.")
SPLIT = flags.DEFINE_string("split", None, "With --mode=eval: the split; default config.eval.split.")


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unknown arguments: {' '.join(argv[1:])}")
    config = CONFIG.value
    configs.validate(config, devices=jax.device_count())
    workdir = Path(WORKDIR.value or Path("runs") / config.name)
    logging.info("%s in %s on %d × %s", MODE.value, workdir, jax.device_count(), jax.default_backend())
    if MODE.value == "train":
        train.train(config, workdir)
    else:
        split = SPLIT.value or config.eval.split
        evaluate.evaluate_checkpoint(config, workdir, step=STEP.value, split=split)


if __name__ == "__main__":
    flags.mark_flag_as_required("config")
    commands.run(main, CONFIG)
