"""Train, evaluate, or check the machine: `python -m rac_jax.main --config=configs/demo.py`."""

import sys
from pathlib import Path

import jax
from absl import app, flags, logging
from ml_collections import config_flags

from rac_jax import evaluate, rules, train
from rac_jax.runtime import commands, compilation, processes

CONFIG = config_flags.DEFINE_config_file("config", None, "A file of configs/, as configs/demo.py:base.")
WORKDIR = flags.DEFINE_string("workdir", None, "The run's folder; default runs/<the config's name>.")
MODE = flags.DEFINE_enum(
    "mode",
    "train",
    ["train", "eval", "check"],
    "Train (and then evaluate), evaluate, or see if this machine can run the config.",
)
STEP = flags.DEFINE_integer("step", None, "With --mode=eval: the checkpoint; default the newest.")
SPLIT = flags.DEFINE_string("split", None, "With --mode=eval: the split; default config.eval.split.")
PROFILE = flags.DEFINE_bool("profile", False, "Write a JAX trace of a few steps for TensorBoard's Profile tab.")
DISTRIBUTED = flags.DEFINE_bool(
    "distributed", False, "One of many processes that Slurm, Kubernetes or a TPU pod started."
)
COORDINATOR = flags.DEFINE_string("coordinator", None, "Without any of these: <host>:<port> of process 0.")
PROCESSES = flags.DEFINE_integer("processes", None, "With --coordinator: how many there are.")
PROCESS = flags.DEFINE_integer("process", None, "With --coordinator: which one this is, from 0.")


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unknown arguments: {' '.join(argv[1:])}")
    config = CONFIG.value
    if DISTRIBUTED.value or COORDINATOR.value:
        processes.join(COORDINATOR.value, PROCESSES.value, PROCESS.value)
    compilation.keep_programs(config)
    workdir = Path(WORKDIR.value or Path("runs") / config.name)
    if MODE.value == "check":
        from rac_jax.compile import check  # not needed to train

        sys.exit(0 if check.check(config, workdir) else 1)
    rules.validate(config, devices=jax.device_count())
    logging.info("%s in %s on %d × %s", MODE.value, workdir, jax.device_count(), jax.default_backend())
    if MODE.value == "train":
        train.train(config, workdir, profile=PROFILE.value)
        if config.train.then:
            from rac_jax.compile import outlook  # only short runs have it

            outlook.say(config, workdir)
    else:
        split = SPLIT.value or config.eval.split
        evaluate.evaluate_checkpoint(config, workdir, step=STEP.value, split=split)


if __name__ == "__main__":
    flags.mark_flag_as_required("config")
    commands.run(main, CONFIG)
