"""Compile a run's programs for devices that are not there, and print what they would need.

    python -m rac_jax.compile --config=configs/places.py --target=a100:8
    python -m rac_jax.compile --config=configs/inat.py:384 --target=h100:8,v5e:8 --config.mesh.fsdp=8
    python -m rac_jax.compile --config=configs/places.py --target=v5p:16 --largest-batch

No data, weights or accelerator are needed. GPUs want `pip install "jax[cuda12]"` and TPUs `pip install "jax[tpu]"`.
"""

import sys

from absl import app, flags
from ml_collections import ConfigDict, config_flags

from rac_jax import rules
from rac_jax.compile import estimate, programs, report, targets
from rac_jax.compile.largest import largest_batch
from rac_jax.runtime import commands

CONFIG = config_flags.DEFINE_config_file("config", None, "A file of configs/, as configs/places.py.")
TARGET = flags.DEFINE_string("target", None, "DEVICE:COUNT, as a100:8; several separated by commas.")
PROGRAMS = flags.DEFINE_list("programs", None, "Only train and these: evaluate, keys, callback, device; default all.")
CLASSES = flags.DEFINE_integer("classes", None, "With --images: for a data set whose size is not known by its name.")
IMAGES = flags.DEFINE_integer("images", None, "Training images, which are also the rows of the memory.")
LARGEST = flags.DEFINE_bool("largest-batch", False, "Search the largest batch that fits.")
MARKDOWN = flags.DEFINE_bool("markdown", False, "Also print a row of a Markdown table.")


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unknown arguments: {' '.join(argv[1:])}")
    wanted = targets.parse(TARGET.value or "")
    targets.prepare_environment(wanted)
    failed = 0
    for target in wanted:
        try:
            show(CONFIG.value, target)
        except (targets.MissingCompiler, estimate.TooLarge) as error:
            print(f"error: {error}", file=sys.stderr)
            failed += 1
    if failed:
        sys.exit(1)


def show(config: ConfigDict, target: targets.Target) -> None:
    """Compile and print everything about one target."""
    devices = targets.devices(target)
    rules.validate(config, devices=len(devices))
    sizes = programs.sizes(config, CLASSES.value, IMAGES.value)
    every = programs.of_run(config, devices, *sizes).values()
    always = ("train", "device") if config.memory.index == "device" else ("train",)
    chosen = [program for program in every if not PROGRAMS.value or program.name in (*always, *PROGRAMS.value)]
    compiled, lowered, too_large = estimate.compile_each(chosen, target)
    if too_large and not LARGEST.value:
        raise next(iter(too_large.values()))
    notes = [f"  {name}: {why}" for name, why in [*lowered.items(), *too_large.items()]]
    if "train" in compiled:
        print("\n" + "\n".join([report.report(config, target, compiled, sizes[1]), *notes]))
        if MARKDOWN.value and target.name != "cpu":
            print(report.row(config, target, compiled, sizes[1]))
    else:
        print("\n" + "\n".join(notes))
    if LARGEST.value:
        print(largest_batch(config, target, devices, sizes, compiled))
    sys.stdout.flush()


if __name__ == "__main__":
    flags.mark_flags_as_required(["config", "target"])
    commands.run(main, CONFIG)
