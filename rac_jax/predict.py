"""Classify images with a trained run: python -m rac_jax.predict --workdir=DIR IMAGE|FOLDER… [--json] [--coverage=0.9]

Prints for each image the label, its probability, the answer of each voice, and the neighbours in the memory, with a
mark on those that have the same label. With --json, prints one JSON object per line. With --coverage, also prints a set
of labels that contains the true one with that probability. A file that is not a usable image is skipped with a
message, and the exit code is then 1.
"""

import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import app, flags
from ml_collections import ConfigDict
from PIL import Image
from tqdm import tqdm

from rac_jax import data, evaluate, rules
from rac_jax.answering import Answer, Answering
from rac_jax.calibration import coverage
from rac_jax.calibration.coverage import LabelSets
from rac_jax.data.decode import BadImage
from rac_jax.data.reading import at_home, pixels_of
from rac_jax.data.sets.folder import ENDINGS
from rac_jax.run import Run
from rac_jax.runtime import commands, compilation, workdirs

UNFAMILIAR = 0.01  # an image with a lower familiarity is marked

Picture = str | Path | Image.Image | np.ndarray | jax.Array


def main(argv: Sequence[str]) -> None:
    given = flags.FLAGS
    if not given.workdir or len(argv) < 2:
        raise app.UsageError(f"name a --workdir and images\n\n{__doc__}")
    workdir = Path(given.workdir)
    config = here(workdir)
    if given.memory:
        config.memory.dir = given.memory
    if given.weights_dir:
        config.weights_dir = given.weights_dir
    rules.validate(config, devices=jax.device_count())
    compilation.keep_programs(config, also_small=True)
    paths = list(images_in(map(Path, argv[1:])))
    sets = None
    run, params, stats, step = evaluate.restore(config, workdir, given.step)
    if given.coverage is not None:
        sets = coverage.require(workdir, step, run.memory_record()["memory"]).at(given.coverage)
    broken = 0
    with tqdm(total=len(paths), unit="img", disable=not sys.stderr.isatty()) as bar:
        for answer in predict(run, params, stats, paths, sets):
            broken += "error" in answer
            text = json.dumps(answer, ensure_ascii=False) if given.json else describe(answer, given.neighbours)
            tqdm.write(text, file=sys.stderr if "error" in answer else sys.stdout)
            bar.update()
    if broken:
        sys.exit(f"error: {broken} of {len(paths)} files are not usable images")


def here(workdir: Path) -> ConfigDict:
    """The config of a run for this machine: all of its devices, and a memory that moved with the run's folder."""
    config = workdirs.read_config(workdir)
    config.mesh.data, config.mesh.fsdp = -1, 1
    if config.memory.dir and not Path(config.memory.dir).exists() and (workdir / "memory").exists():
        config.memory.dir = ""
    return config


def images_in(paths: Iterable[Path]) -> Iterator[Path]:
    """The files, and all images below the folders, sorted by name."""
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        found = [inside for inside in sorted(path.rglob("*")) if inside.suffix.lower() in ENDINGS]
        if not found:
            raise FileNotFoundError(f"there are no images in {path} (looked for {', '.join(sorted(ENDINGS))})")
        yield from found


def sorted_out(images: Any) -> tuple[Iterable[Picture], bool]:
    """The images, and whether it is a single one."""
    if isinstance(images, str | Path) and at_home(images).is_dir():
        return images_in([at_home(images)]), False
    if hasattr(images, "__array__"):  # of numpy or another library
        single = np.ndim(images) not in (1, 4)  # several paths, or several images
        return ([images] if single else np.asarray(images)), single
    single = isinstance(images, str | Path | bytes) or not isinstance(images, Iterable)
    return ([images] if single else images), single


def predict(
    run: Run, params: Any, stats: Any, images: Iterable[Picture], sets: LabelSets | None = None
) -> Iterator[Answer]:
    """Yield an answer for each image, in order; for one that is not usable, the answer has an `error`.

    Images are paths of files, pictures of Pillow, or arrays; they are read a batch at a time.
    """
    return answers(Answering.of(run, params, stats), images, sets)


def answers(answering: Answering, images: Iterable[Picture], sets: LabelSets | None = None) -> Iterator[Answer]:
    """The same, with a state of a run that is kept between calls."""
    config, remaining = answering.run.config, iter(images)
    transform, nothing = data.eval_transform(config), np.random.default_rng(0)
    while some := list(itertools.islice(remaining, config.eval.batch_size)):
        read = [_read(image, config.data.image_size) for image in some]
        pixels = [transform(image, nothing) for image in read if not isinstance(image, str)]
        found = iter(answering.answers(pixels, sets) if pixels else ())
        for given, image in zip(some, read, strict=True):
            named = {"image": str(given)} if isinstance(given, str | Path) else {}
            yield named | ({"error": image} if isinstance(image, str) else next(found))


def _read(image: Picture, image_size: int) -> np.ndarray | str:
    """The image, or what is wrong with it."""
    try:
        return read(image, image_size)
    except BadImage as error:
        return str(error)


def read(image: Picture, image_size: int) -> np.ndarray:
    """The pixels of an image, as evaluation decodes it; BadImage if it is not usable."""
    return data.read_image(at_home(image), image_size) if isinstance(image, str | Path) else pixels_of(image)


def describe(answer: Answer, neighbours: int) -> str:
    """An answer as text."""
    if "error" in answer:
        return f"skipped: {answer['error']}"
    lines = [f"{answer['image']}: {answer['label']} ({100 * answer['probability']:.1f} %)"]
    if len(answer["voices"]) > 1:
        votes = (f"{name} {vote['label']} {100 * vote['probability']:.1f} %" for name, vote in answer["voices"].items())
        lines.append("  votes: " + ", ".join(votes))
    if "labels" in answer:
        lines.append(f"  {len(answer['labels'])} labels in the set: " + ", ".join(answer["labels"]))
    if found := answer.get("neighbours"):
        lines.append(f"  neighbours: {sum(n['supports'] for n in found)} of {len(found)} have this label")
        if answer.get("familiarity", 1.0) < UNFAMILIAR:
            lines.append(
                f"  unlike the memory: {100 * answer['familiarity']:.1f} % of held-out images have no nearer rows"
            )
        for n in found[:neighbours]:
            mark = "+" if n["supports"] else " "
            lines.append(f"  {mark} {n['similarity']:.3f}  {n['text']}  ({n['source']}: {n['image']})")
    return "\n".join(lines)


def _define_flags() -> None:
    """Called by the command only, so that importing this module defines no flags."""
    flags.DEFINE_string("workdir", None, "The run's folder.")
    flags.DEFINE_integer("step", None, "The checkpoint; default the newest.")
    flags.DEFINE_string("memory", None, "A memory to use instead of the run's own.")
    flags.DEFINE_string("weights_dir", None, "Where E's weights lie; default as the run's config says.")
    flags.DEFINE_bool("json", False, "Print one JSON object per line.")
    flags.DEFINE_float("coverage", None, "Also a set of labels that holds the true one this often, as 0.9.")
    flags.DEFINE_integer("neighbours", 5, "How many neighbours are shown.", lower_bound=0)


if __name__ == "__main__":
    _define_flags()
    commands.run(main)
