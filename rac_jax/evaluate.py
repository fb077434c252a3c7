"""Evaluation: every image of a split once, per-class counts by branch, a table and its files."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from ml_collections import ConfigDict
from tqdm import tqdm

from rac_jax import data, feed, files, metrics, processes, sharding, states, system, workdirs
from rac_jax.checkpoints import Checkpoints
from rac_jax.data import pipeline
from rac_jax.memory.lookup import KEEP_ALL
from rac_jax.metrics import Counts
from rac_jax.report import pictures, tables
from rac_jax.report.tensorboard import TensorBoard

BRANCHES = ("rac", "base", "retrieval")  # the order of every table
NEAREST = "nearest"  # beside them: the class of the nearest neighbour, what E knows without training
SHOWN_NEIGHBOURS = 8

Accuracy = dict[str, dict[str, float]]  # by branch, by group


def evaluate_checkpoint(config: ConfigDict, workdir: Path, *, step: int | None, split: str) -> Accuracy:
    """Restore a step (None: the newest) of the run in `workdir` and evaluate it."""
    workdirs.check(config, workdir)
    with Checkpoints.read(workdir) as checkpoints:
        step = checkpoints.require(step)
        parts = system.create(config, workdir)
        _, params, stats = states.split(parts.model)
        state = checkpoints.restore(step, sharding.state(parts.mesh, {"params": params, "stats": stats}))
        checkpoints.compare_memory(step, parts.memory_record())
    with TensorBoard.of(workdir) as board:
        return evaluate(parts, state["params"], state["stats"], step, split, workdir, board)


def evaluate(
    parts: system.System,
    params: Any,
    stats: Any,
    step: int,
    split: str,
    workdir: Path,
    board: TensorBoard,
) -> Accuracy:
    """Evaluate a split: print the table, write `eval/<split>.json` and the counts beside it."""
    counts = count(parts, params, stats, split)
    accuracy = accuracies(parts, counts)
    nearest = {NEAREST: accuracy.pop(NEAREST)} if NEAREST in accuracy else {}
    images = int(next(iter(counts.values())).seen.sum())
    result = {
        "split": split,
        "step": step,
        "images": images,
        "classes": parts.dataset.num_classes,
        "branches": accuracy,
        **parts.memory_record(),
    }
    cut = ""
    if parts.retrieval is not None:
        k, whole = parts.config.memory.k, round(parts.retrieval.whole, 2)
        result["snippets"] = {"k": k, "whole": whole}
        cut = f"T's window holds {whole} of {k} snippets, on average\n" if whole < k else ""
    board.scalars(step, scalars(split, accuracy | nearest))
    if parts.retrieval is not None and parts.config.eval.show:
        _show_neighbours(parts, split, step, board)
    if processes.first():
        files.write_json(workdir / "eval" / f"{split}.json", result)
        files.write_json(workdir / "eval" / f"{split}_classes.json", _per_class(parts, counts))
        table = tables.accuracy_table(accuracy | nearest)
        print(f"\n{split}: {images} images, step {step}, accuracy in %\n{table}\n{cut}")
    return accuracy


def count(parts: system.System, params: Any, stats: Any, split: str) -> dict[str, Counts]:
    """Per-class counts of every branch over a split."""
    config = parts.config
    images = parts.dataset.split(split)
    batches = pipeline.eval_batches(
        images,
        data.eval_transform(config),
        batch_size=config.eval.batch_size,
        workers=config.data.workers,
    )
    eval_step = make_eval_step(parts)
    total: dict[str, Counts] = {}
    with tqdm(total=len(images), desc=f"eval {split}", unit="img", disable=not processes.first()) as bar:
        for batch, found in feed.feed(parts, batches, split=split, training=False):
            tokens = found and found["tokens"]
            named = classes_of(parts.retrieval.row_class, found["rows"]) if parts.retrieval else None
            counted = jax.device_get(eval_step(params, stats, batch, tokens, named))
            parts.check()
            for name, arrays in counted.items():
                total[name] = total[name] + Counts(*arrays) if name in total else Counts(*arrays)
            bar.update(min(config.eval.batch_size, len(images) - bar.n))
    return {name: total[name] for name in (*BRANCHES, NEAREST) if name in total}


@functools.lru_cache(maxsize=1)  # evaluations while training share what the first one compiled
def make_eval_step(parts: system.System) -> Callable[..., dict[str, jax.Array]]:
    """Compiled: parameters, statistics, batch, tokens, the classes neighbours name -> [3, C] counts by branch."""
    graph, classes = nnx.graphdef(parts.model), parts.dataset.num_classes

    def eval_step(params: Any, stats: Any, batch: dict[str, jax.Array], tokens: Any, named: Any) -> Any:
        labels, mask = batch["label"], batch["mask"]
        logits = nnx.merge(graph, params, stats)(batch["image"], tokens)
        counts = {branch: metrics.batch_counts(values, labels, mask) for branch, values in logits.items()}
        if named is not None:
            counts[NEAREST] = metrics.nearest_counts(named, labels, mask, classes)
        return counts

    return jax.jit(eval_step, out_shardings=sharding.replicated(parts.mesh))


def accuracies(parts: system.System, counts: dict[str, Counts]) -> Accuracy:
    """What the counts of each branch say of all, many, medium, few, and top-5."""
    class_counts = parts.dataset.class_counts
    return {branch: metrics.summary(c, class_counts) for branch, c in counts.items()}


def scalars(split: str, accuracy: Accuracy) -> dict[str, float]:
    """TensorBoard tags `<split>/<branch>/<group>`."""
    return {
        f"{split}/{branch}/{group}": value for branch, groups in accuracy.items() for group, value in groups.items()
    }


@jax.jit
def classes_of(row_class: jax.Array, rows: jax.Array) -> jax.Array:
    """The classes that neighbours [B, k] name, −1 for none, [B, k]."""
    return jnp.where(rows < 0, -1, row_class[rows])


@jax.jit
def share_of_true_class(row_class: jax.Array, rows: jax.Array, labels: jax.Array) -> jax.Array:
    """Which share of the neighbours [B, k] names the label [B] of its query."""
    return jnp.mean(classes_of(row_class, rows) == labels[:, None])


def _per_class(parts: system.System, counts: dict[str, Counts]) -> dict[str, Any]:
    """One list a column, a number a class."""
    first = next(iter(counts.values()))
    table: dict[str, Any] = {
        "class": list(parts.dataset.class_names),
        "train_images": parts.dataset.class_counts.tolist(),
        "images": first.seen.tolist(),
    }
    for branch, c in counts.items():
        table[branch] = {"correct": c.correct.tolist(), "correct_top5": c.correct5.tolist()}
    return table


def _show_neighbours(parts: system.System, split: str, step: int, board: TensorBoard) -> None:
    """Pictures of a few images, evenly spread over the split, with what the memory found for them."""
    assert parts.retrieval is not None
    images, memory = parts.dataset.split(split), parts.retrieval.memory
    size = parts.config.eval.batch_size // jax.process_count()  # each process asks for the same images
    chosen = np.unique(np.linspace(0, len(images) - 1, min(parts.config.eval.show, size)).astype(int))
    transform = data.eval_transform(parts.config)
    nothing = np.random.default_rng(0)  # evaluation draws nothing
    pixels = np.stack([transform(images.images[i], nothing) for i in np.resize(chosen, size)])
    placed = sharding.put_batch(parts.mesh, {"image": pixels, "own": np.full(size, KEEP_ALL, np.int32)})
    neighbours = sharding.rows_of_this_process(parts.retrieval(placed["image"], placed["own"])["rows"])
    for number, i in enumerate(chosen):
        rows = neighbours[number][:SHOWN_NEIGHBOURS]
        rows = rows[rows >= 0]
        strip = pictures.neighbour_strip(
            images.images[i],
            parts.dataset.class_texts[images.labels[i]],
            [_picture(parts, row) for row in rows],
            memory.texts.take(memory.text_of[rows]),
        )
        board.image(step, f"neighbours/{split}_{images.images.references()[i]}", strip)


def _picture(parts: system.System, row: int) -> np.ndarray:
    """The image of a memory's row, where it can be had: of the training split, or a file that is still there."""
    assert parts.retrieval is not None
    memory = parts.retrieval.memory
    source, position = memory.source_of(row)
    if source.fingerprint == parts.retrieval.train_fingerprint:
        return parts.dataset.split("train").images[position]
    return pictures.of_file(memory.file_of(row))
