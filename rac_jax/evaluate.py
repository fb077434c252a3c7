"""Evaluation: every image of a split once; what each branch says of it, a table, files and pictures."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from ml_collections import ConfigDict
from tqdm import tqdm

from rac_jax import data, metrics, sharding
from rac_jax.checkpoints import Checkpoints, warn_of_other_memory
from rac_jax.data import pipeline, record
from rac_jax.metrics import Counts
from rac_jax.report import gallery, predictions, tables
from rac_jax.report.predictions import Predictions, Votes
from rac_jax.report.tensorboard import TensorBoard
from rac_jax.run import Run
from rac_jax.runtime import files, processes, workdirs
from rac_jax.weights import parameters

BRANCHES = ("rac", "base", "retrieval")  # the order of every table
NEAREST = "nearest"  # beside them: the class of the nearest neighbour, what E knows without training

Accuracy = dict[str, dict[str, float]]  # by branch, by group


def restore(config: ConfigDict, workdir: Path, step: int | None) -> tuple[Run, Any, Any, int]:
    """A step (None: the newest) of the run in `workdir`: its run, parameters, statistics, and which step it is."""
    workdirs.check(config, workdir)
    with Checkpoints.read(workdir) as checkpoints:
        checkpoints.require(step)
        accept = functools.partial(record.require_classes, workdir=workdir)
        run = Run.from_config(config, workdir, accept=accept, may_build=False)
        _, params, stats = parameters.split(run.model)
        step, state, info = checkpoints.load(step, sharding.state(run.mesh, {"params": params, "stats": stats}))
        warn_of_other_memory(step, info, run.memory_record())
    return run, state["params"], state["stats"], step


def evaluate_checkpoint(config: ConfigDict, workdir: Path, *, step: int | None, split: str) -> Accuracy:
    """Restore a step (None: the newest) of the run in `workdir` and evaluate it."""
    run, params, stats, step = restore(config, workdir, step)
    with TensorBoard.of(workdir) as board:
        return evaluate(run, params, stats, step, split, workdir, board)


def evaluate(
    run: Run,
    params: Any,
    stats: Any,
    step: int,
    split: str,
    workdir: Path,
    board: TensorBoard,
) -> Accuracy:
    """Evaluate a split: print the table, write `eval/<split>.json` with what it rests on, and draw `report/`."""
    counts, predicted = answers(run, params, stats, split)
    accuracy = accuracies(run, counts)
    nearest = {NEAREST: accuracy.pop(NEAREST)} if NEAREST in accuracy else {}
    result = {
        "split": split,
        "step": step,
        "images": len(predicted),
        "classes": run.dataset.num_classes,
        "branches": accuracy,
        **run.memory_record(),
    }
    cut = ""
    if run.retriever is not None:
        k, whole = run.config.memory.k, round(run.retriever.mean_fitting, 2)
        result["snippets"] = {"k": k, "whole": whole}
        cut = f"T's window holds {whole} of {k} snippets, on average\n" if whole < k else ""
    board.scalars(step, scalars(split, accuracy | nearest))
    if processes.first():
        files.write_json(workdir / "eval" / f"{split}.json", result)
        files.write_json(workdir / "eval" / f"{split}_classes.json", _per_class(run, counts))
        predictions.write(workdir / "eval" / f"{split}_predictions.arrow", predicted)
        gallery.draw(run, counts, predicted, split, step, workdir / "report" / split, board)
        title = f"{split}: {len(predicted)} images, step {step}, accuracy in %"
        print(f"\n{title}\n{tables.accuracy_table(accuracy | nearest)}\n{cut}")
    return accuracy


def count(run: Run, params: Any, stats: Any, split: str) -> dict[str, Counts]:
    """Per-class counts of every branch over a split."""
    return answers(run, params, stats, split)[0]


def answers(run: Run, params: Any, stats: Any, split: str) -> tuple[dict[str, Counts], Predictions]:
    """Per-class counts of every branch over a split, and what it says of each image."""
    config = run.config
    images, size = run.dataset.split(split), sharding.rows(config.eval.batch_size, run.mesh.size)
    batches = pipeline.eval_batches(images, data.eval_transform(config), batch_size=size, workers=config.data.workers)
    eval_step = make_eval_step(run)
    total: dict[str, Counts] = {}
    predicted: list[Predictions] = []
    with tqdm(total=len(images), desc=f"eval {split}", unit="img", disable=not processes.first()) as bar:
        for batch, found in run.feed(batches, split=split, training=False):
            row_class = run.retriever.row_class if run.retriever else None
            counted, said = jax.device_get(eval_step(params, stats, batch, found, row_class))
            run.check()
            for name, arrays in counted.items():
                total[name] = total[name] + Counts(*arrays) if name in total else Counts(*arrays)
            predicted.append(_unpadded(said))
            bar.update(min(size, len(images) - bar.n))
    return {name: total[name] for name in (*BRANCHES, NEAREST) if name in total}, predictions.concatenate(predicted)


@functools.lru_cache(maxsize=1)  # evaluations while training share what the first one compiled
def make_eval_step(run: Run) -> Callable[..., tuple[dict[str, jax.Array], Any]]:
    """Compiled: parameters, statistics, batch, neighbours, their classes -> [3, C] counts by branch, and answers."""
    graph, classes = nnx.graphdef(run.model), run.dataset.num_classes

    def eval_step(params: Any, stats: Any, batch: dict[str, jax.Array], found: Any, row_class: Any) -> Any:
        labels, mask = batch["label"], batch["mask"]
        model = nnx.merge(graph, params, stats)
        logits = model(batch["image"], found and found["tokens"])
        counts = {branch: metrics.batch_counts(values, labels, mask) for branch, values in logits.items()}
        nothing = jnp.zeros((len(labels), 0))
        said: dict[str, Any] = {"id": batch["id"], "label": labels, "mask": mask}
        said |= {"rows": nothing.astype(jnp.int32), "similarities": nothing}
        said["votes"] = _votes(model.probabilities(logits), labels)
        if found is not None:
            named = classes_of(row_class, found["rows"])
            counts[NEAREST] = metrics.nearest_counts(named, labels, mask, classes)
            said |= {name: found[name] for name in ("rows", "similarities")}
        return counts, said

    return jax.jit(eval_step, out_shardings=sharding.replicated(run.mesh))


def _votes(probabilities: dict[str, jax.Array], labels: jax.Array) -> dict[str, Any]:
    """Of each branch: its answer, how probable it finds it, how probable it finds the true class; [B] each."""
    return {
        branch: {
            "label": values.argmax(axis=-1).astype(jnp.int32),
            "probability": values.max(axis=-1),
            "of_true": jnp.take_along_axis(values, labels[:, None], axis=1)[:, 0],
        }
        for branch in BRANCHES
        if (values := probabilities.get(branch)) is not None
    }


def _unpadded(said: dict[str, Any]) -> Predictions:
    """The answers of a batch without those to its padding."""
    said = jax.tree.map(lambda values: values[said["mask"]], said)
    votes = {branch: Votes(**said["votes"][branch]) for branch in BRANCHES if branch in said["votes"]}
    return Predictions(said["id"], said["label"], votes, said["rows"], said["similarities"])


def accuracies(run: Run, counts: dict[str, Counts]) -> Accuracy:
    """What the counts of each branch say of all, many, medium, few, and top-5."""
    class_counts = run.dataset.class_counts
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
def share_of_true_class(row_class: jax.Array, rows: jax.Array, labels: jax.Array, mask: jax.Array) -> jax.Array:
    """Which share of the neighbours [B, k] is of the label [B] of its query; queries that are padding do not count."""
    counted = (rows >= 0) & mask[:, None].astype(bool)
    matches = (classes_of(row_class, rows) == labels[:, None]) & counted
    return jnp.sum(matches) / jnp.maximum(jnp.sum(counted), 1)


def _per_class(run: Run, counts: dict[str, Counts]) -> dict[str, Any]:
    """One list a column, a number a class."""
    first = next(iter(counts.values()))
    table: dict[str, Any] = {
        "class": list(run.dataset.class_names),
        "train_images": run.dataset.class_counts.tolist(),
        "images": first.seen.tolist(),
    }
    for branch, c in counts.items():
        table[branch] = {"correct": c.correct.tolist(), "correct_top5": c.correct5.tolist()}
    return table
