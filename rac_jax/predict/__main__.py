"""What a trained run says of images: python -m rac_jax.predict --workdir=DIR IMAGE|FOLDER… [--json]

For each image: the label, its probability, each branch's vote, and the neighbours in the memory, those that speak for
the label marked. With --json, one JSON object a line. A file that is no usable image is skipped with a message, and
the command then ends with exit code 1.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
from absl import app, flags
from tqdm import tqdm

from rac_jax import commands, evaluate, workdirs
from rac_jax import config as configs
from rac_jax.predict import answers

WORKDIR = flags.DEFINE_string("workdir", None, "The run's folder.")
STEP = flags.DEFINE_integer("step", None, "The checkpoint; default the newest.")
MEMORY = flags.DEFINE_string("memory", None, "Another memory than the run's own.")
JSON = flags.DEFINE_bool("json", False, "One JSON object a line.")
NEIGHBOURS = flags.DEFINE_integer("neighbours", 5, "How many neighbours are shown.", lower_bound=0)


def main(argv: Sequence[str]) -> None:
    if not WORKDIR.value or len(argv) < 2:
        raise app.UsageError(f"a --workdir and images are needed\n\n{__doc__}")
    workdir = Path(WORKDIR.value)
    config = workdirs.read_config(workdir)
    if MEMORY.value:
        config.memory.dir = MEMORY.value
    configs.validate(config, devices=jax.device_count())
    paths = list(answers.images_in(map(Path, argv[1:])))
    parts, params, stats, _ = evaluate.restore(config, workdir, STEP.value)
    broken = 0
    with tqdm(total=len(paths), unit="img", disable=not sys.stderr.isatty()) as bar:
        for answer in answers.predict(parts, params, stats, paths):
            broken += "error" in answer
            text = json.dumps(answer, ensure_ascii=False) if JSON.value else answers.describe(answer, NEIGHBOURS.value)
            tqdm.write(text, file=sys.stderr if "error" in answer else sys.stdout)
            bar.update()
    if broken:
        sys.exit(f"error: {broken} of {len(paths)} files are no usable images")


if __name__ == "__main__":
    commands.run(main)
