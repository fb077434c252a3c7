"""What a trained run says of image files."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rac_jax import data, evaluate, sharding, system
from rac_jax.data.decode import BadImage, decode
from rac_jax.data.folder import ENDINGS
from rac_jax.memory.lookup import KEEP_ALL

Answer = dict[str, Any]


def images_in(paths: Iterable[Path]) -> Iterator[Path]:
    """The files themselves, and the images in folders and the folders in them, by name."""
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        found = [inside for inside in sorted(path.rglob("*")) if inside.suffix.lower() in ENDINGS]
        if not found:
            raise FileNotFoundError(f"there are no images in {path} (looked for {', '.join(sorted(ENDINGS))})")
        yield from found


def predict(parts: system.System, params: Any, stats: Any, paths: Sequence[Path]) -> Iterator[Answer]:
    """An answer for each path, in order; a file that is no usable image gets one with an `error`."""
    size = sharding.rows(min(parts.config.eval.batch_size, len(paths)), parts.mesh.size)
    transform, nothing = data.eval_transform(parts.config), np.random.default_rng(0)
    eval_step = evaluate.make_eval_step(parts)
    for start in range(0, len(paths), size):
        some = paths[start : start + size]
        images = [_read(path) for path in some]
        pixels = [transform(image, nothing) for image in images if not isinstance(image, str)]
        answers = iter(_answers(parts, params, stats, eval_step, pixels, size) if pixels else ())
        for path, image in zip(some, images, strict=True):
            yield {"image": str(path)} | ({"error": image} if isinstance(image, str) else next(answers))


def _read(path: Path) -> np.ndarray | str:
    """The image, or what is wrong with it."""
    try:
        return decode(path.read_bytes(), str(path))
    except OSError as error:
        return f"{path}: cannot be read ({error.strerror})"
    except BadImage as error:
        return str(error)


def _answers(
    parts: system.System, params: Any, stats: Any, eval_step: Any, pixels: list[np.ndarray], size: int
) -> list[Answer]:
    """What is said of up to `size` images."""
    padding = [np.zeros_like(pixels[0])] * (size - len(pixels))
    zeros = np.zeros(size, np.int32)
    batch = {"image": np.stack([*pixels, *padding]), "label": zeros, "id": zeros, "mask": np.ones(size, bool)}
    placed = sharding.put_batch(parts.mesh, batch | {"own": np.full(size, KEEP_ALL, np.int32)})
    own, found, row_class = placed.pop("own"), None, None
    if parts.retrieval is not None:
        found, row_class = parts.retrieval(placed["image"], own), parts.retrieval.row_class
    said = jax.device_get(eval_step(params, stats, placed, found, row_class)[1])
    parts.check()
    return [_answer(parts, said, place) for place in range(len(pixels))]


def _answer(parts: system.System, said: dict[str, Any], place: int) -> Answer:
    names = parts.dataset.class_names
    branches = {
        branch: {"label": names[votes["label"][place]], "probability": float(votes["probability"][place])}
        for branch in evaluate.BRANCHES
        if (votes := said["votes"].get(branch))
    }
    answer: Answer = {**branches[parts.model.output], "branches": branches}
    if parts.retrieval is not None:
        text = parts.dataset.class_texts[said["votes"][parts.model.output]["label"][place]]
        answer["neighbours"] = _neighbours(parts.retrieval, said["rows"][place], said["similarities"][place], text)
    return answer


def _neighbours(retrieval: system.Retrieval, rows: np.ndarray, similarities: np.ndarray, text: str) -> list[Answer]:
    """The neighbours, nearest first, and whether each speaks for a text."""
    memory, there = retrieval.memory, rows >= 0
    rows, similarities = rows[there], similarities[there]
    texts = memory.texts.take(memory.text_of[rows])
    return [
        {
            "text": said,
            "similarity": round(float(similarity), 4),
            "source": memory.source_of(int(row))[0].name,
            "image": memory.images[int(row)],
            "supports": said == text,
        }
        for row, similarity, said in zip(rows, similarities, texts, strict=True)
    ]


def describe(answer: Answer, neighbours: int) -> str:
    """An answer for people."""
    if "error" in answer:
        return f"skipped: {answer['error']}"
    lines = [f"{answer['image']}: {answer['label']} ({100 * answer['probability']:.1f} %)"]
    if len(answer["branches"]) > 1:
        votes = (
            f"{name} {vote['label']} {100 * vote['probability']:.1f} %" for name, vote in answer["branches"].items()
        )
        lines.append("  votes: " + ", ".join(votes))
    if found := answer.get("neighbours"):
        lines.append(f"  neighbours: {sum(n['supports'] for n in found)} of {len(found)} say so")
        for n in found[:neighbours]:
            mark = "+" if n["supports"] else " "
            lines.append(f"  {mark} {n['similarity']:.3f}  {n['text']}  ({n['source']}: {n['image']})")
    return "\n".join(lines)
