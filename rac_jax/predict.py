"""Classify images with a trained run: python -m rac_jax.predict --workdir=DIR IMAGE|FOLDER… [--json]

Prints for each image the label, its probability, the vote of each voice, and the neighbours in the memory, with a
mark on those that have the same label. With --json, prints one JSON object per line. A file that is not a usable
image is skipped with a message, and the exit code is then 1.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import app, flags
from tqdm import tqdm

from rac_jax import config as configs
from rac_jax import data, evaluate, sharding
from rac_jax.data.decode import BadImage
from rac_jax.data.sets.folder import ENDINGS
from rac_jax.retrieval.lookup import KEEP_ALL
from rac_jax.retrieval.retriever import Retriever
from rac_jax.run import Run
from rac_jax.runtime import commands, workdirs

Answer = dict[str, Any]


def main(argv: Sequence[str]) -> None:
    given = flags.FLAGS
    if not given.workdir or len(argv) < 2:
        raise app.UsageError(f"name a --workdir and images\n\n{__doc__}")
    workdir = Path(given.workdir)
    config = workdirs.read_config(workdir)
    if given.memory:
        config.memory.dir = given.memory
    configs.validate(config, devices=jax.device_count())
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


def predict(run: Run, params: Any, stats: Any, paths: Sequence[Path]) -> Iterator[Answer]:
    """Yield an answer for each path, in order; for a file that is not a usable image, the answer has an `error`."""
    size = sharding.padded_size(min(run.config.eval.batch_size, len(paths)), run.mesh.size)
    transform, nothing = data.eval_transform(run.config), np.random.default_rng(0)
    eval_step = evaluate.make_eval_step(run)
    for start in range(0, len(paths), size):
        some = paths[start : start + size]
        images = [_read(path, run.config.data.image_size) for path in some]
        pixels = [transform(image, nothing) for image in images if not isinstance(image, str)]
        answers = iter(_answers(run, params, stats, eval_step, pixels, size) if pixels else ())
        for path, image in zip(some, images, strict=True):
            yield {"image": str(path)} | ({"error": image} if isinstance(image, str) else next(answers))


def _read(path: Path, image_size: int) -> np.ndarray | str:
    """The image, or what is wrong with it."""
    try:
        return data.read_image(path, image_size)
    except BadImage as error:
        return str(error)


def _answers(run: Run, params: Any, stats: Any, eval_step: Any, pixels: list[np.ndarray], size: int) -> list[Answer]:
    """The answers for up to `size` images."""
    padding = [np.zeros_like(pixels[0])] * (size - len(pixels))
    zeros = np.zeros(size, np.int32)
    batch = {"image": np.stack([*pixels, *padding]), "label": zeros, "id": zeros, "mask": np.ones(size, bool)}
    placed = sharding.put_batch(run.mesh, batch | {"own": np.full(size, KEEP_ALL, np.int32)})
    own = placed.pop("own")
    found = run.retriever(placed["image"], own) if run.retriever is not None else None
    said = jax.device_get(eval_step(params, stats, placed, found, run.knowledge)[1])
    run.check()
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
        answer["neighbours"] = _neighbours(run.retriever, said["rows"][place], said["similarities"][place], label)
    return answer


def _neighbours(retriever: Retriever, rows: np.ndarray, similarities: np.ndarray, label: str) -> list[Answer]:
    """The neighbours, nearest first, and whether each has the label of the answer."""
    memory, there = retriever.memory, rows >= 0
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
        for n in found[:neighbours]:
            mark = "+" if n["supports"] else " "
            lines.append(f"  {mark} {n['similarity']:.3f}  {n['text']}  ({n['source']}: {n['image']})")
    return "\n".join(lines)


def _define_flags() -> None:
    """Called by the command only, so that importing this module defines no flags."""
    flags.DEFINE_string("workdir", None, "The run's folder.")
    flags.DEFINE_integer("step", None, "The checkpoint; default the newest.")
    flags.DEFINE_string("memory", None, "A memory to use instead of the run's own.")
    flags.DEFINE_bool("json", False, "Print one JSON object per line.")
    flags.DEFINE_integer("neighbours", 5, "How many neighbours are shown.", lower_bound=0)


if __name__ == "__main__":
    _define_flags()
    commands.run(main)
