"""Classify images with a trained run: python -m rac_jax.predict --workdir=DIR IMAGE|FOLDER… [--json]

Prints for each image the label, its probability, the vote of each voice, and the neighbours in the memory, with a
mark on those that have the same label. With --json, prints one JSON object per line. A file that is not a usable
image is skipped with a message, and the exit code is then 1.
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

from rac_jax import data, evaluate, rules, sharding
from rac_jax.data.decode import BadImage
from rac_jax.data.reading import pixels_of
from rac_jax.data.sets.folder import ENDINGS
from rac_jax.memory.store import Memory
from rac_jax.retrieval import familiarity, feed
from rac_jax.run import Run
from rac_jax.runtime import commands, compilation, workdirs

UNFAMILIAR = 0.01  # an image with a lower familiarity is marked

Answer = dict[str, Any]
Picture = str | Path | Image.Image | np.ndarray


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
    run, params, stats, _ = evaluate.restore(config, workdir, given.step)
    broken = 0
    with tqdm(total=len(paths), unit="img", disable=not sys.stderr.isatty()) as bar:
        for answer in predict(run, params, stats, paths):
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


def predict(run: Run, params: Any, stats: Any, images: Iterable[Picture]) -> Iterator[Answer]:
    """Yield an answer for each image, in order; for one that is not usable, the answer has an `error`.

    Images are paths of files, pictures of Pillow, or arrays; they are read a batch at a time.
    """
    transform, nothing = data.eval_transform(run.config), np.random.default_rng(0)
    eval_step, remaining = evaluate.make_eval_step(run), iter(images)
    while some := list(itertools.islice(remaining, run.config.eval.batch_size)):
        read = [_read(image, run.config.data.image_size) for image in some]
        pixels = [transform(image, nothing) for image in read if not isinstance(image, str)]
        answers = iter(_answers(run, params, stats, eval_step, pixels) if pixels else ())
        for given, image in zip(some, read, strict=True):
            named = {"image": str(given)} if isinstance(given, str | Path) else {}
            yield named | ({"error": image} if isinstance(image, str) else next(answers))


def _read(image: Picture, image_size: int) -> np.ndarray | str:
    """The image, or what is wrong with it."""
    try:
        return read(image, image_size)
    except BadImage as error:
        return str(error)


def read(image: Picture, image_size: int) -> np.ndarray:
    """The pixels of an image, as evaluation decodes it; BadImage if it is not usable."""
    return data.read_image(image, image_size) if isinstance(image, str | Path) else pixels_of(image)


def placed(run: Run, pixels: Sequence[np.ndarray]) -> dict[str, jax.Array]:
    """Images as a batch on the devices, padded to one of a few sizes, so that few programs are compiled."""
    size = sharding.padded_size(min(2 ** (len(pixels) - 1).bit_length(), run.config.eval.batch_size), run.mesh.size)
    padding = [np.zeros_like(pixels[0])] * (size - len(pixels))
    zeros = np.zeros(size, np.int32)
    batch = {"image": np.stack([*pixels, *padding]), "label": zeros, "id": zeros, "mask": np.ones(size, bool)}
    return sharding.put_batch(run.mesh, batch)


def _answers(run: Run, params: Any, stats: Any, eval_step: Any, pixels: list[np.ndarray]) -> list[Answer]:
    """The answers for up to a batch of images."""
    batch, found = placed(run, pixels), None
    if run.retriever is not None:
        found = feed.look_up(run.config, run.retriever, run.mesh, batch["image"])
    said = jax.device_get(eval_step(params, stats, batch, found, run.knowledge)[1])
    run.check()
    if run.retriever is not None:
        usual = run.retriever.usual_nearness
        said["familiarity"] = familiarity.shares(usual, said["rows"], said["similarities"])
    return [_answer(run, said, place) for place in range(len(pixels))]


def _answer(run: Run, said: dict[str, Any], place: int) -> Answer:
    names, votes, output = run.classes.names, said["votes"], run.model.output
    voices = {
        voice: {
            "label": names[votes[voice]["label"][place]],
            "probability": float(votes[voice]["probability"][place]),
        }
        for voice in sorted(votes, key=lambda name: (name != output, name))  # the run's own answer first
    }
    answer: Answer = {**voices[output], "voices": voices}
    if run.retriever is not None:
        label = names[votes[output]["label"][place]]
        answer["familiarity"] = round(float(said["familiarity"][place]), 4)
        answer["neighbours"] = neighbours(run.retriever.memory, said["rows"][place], said["similarities"][place], label)
    return answer


def neighbours(memory: Memory, rows: np.ndarray, similarities: np.ndarray, label: str | None) -> list[Answer]:
    """The rows [k] of a memory that are near an image, nearest first, and whether each has the label of the answer."""
    there = rows >= 0
    rows, similarities = rows[there], similarities[there]
    texts = memory.texts.take(memory.text_of[rows])
    labels = [memory.class_names[number] if number >= 0 else None for number in memory.label_of[rows]]
    return [
        {
            "label": own,
            "text": text,
            "similarity": round(float(similarity), 4),
            "source": memory.source_of(int(row))[0].name,
            "image": memory.images[int(row)],
            "row": int(row),
            "supports": own == label,
        }
        for row, similarity, own, text in zip(rows, similarities, labels, texts, strict=True)
    ]


def describe(answer: Answer, neighbours: int) -> str:
    """An answer as text."""
    if "error" in answer:
        return f"skipped: {answer['error']}"
    lines = [f"{answer['image']}: {answer['label']} ({100 * answer['probability']:.1f} %)"]
    if len(answer["voices"]) > 1:
        votes = (f"{name} {vote['label']} {100 * vote['probability']:.1f} %" for name, vote in answer["voices"].items())
        lines.append("  votes: " + ", ".join(votes))
    if found := answer.get("neighbours"):
        lines.append(f"  neighbours: {sum(n['supports'] for n in found)} of {len(found)} have this label")
        if answer["familiarity"] < UNFAMILIAR:
            lines.append(f"  unlike the memory: {100 * answer['familiarity']:.1f} % of its images have no nearer rows")
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
    flags.DEFINE_integer("neighbours", 5, "How many neighbours are shown.", lower_bound=0)


if __name__ == "__main__":
    _define_flags()
    commands.run(main)
