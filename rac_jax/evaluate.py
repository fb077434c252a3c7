"""Evaluation: the answers of each voice for every image of a split, as a table, files and pictures."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from flax import nnx
from ml_collections import ConfigDict
from tqdm import tqdm

from rac_jax import config as configs
from rac_jax import data, metrics, sharding
from rac_jax.calibration import coverage
from rac_jax.calibration.coverage import SetCounts
from rac_jax.checkpoints import Checkpoints, warn_of_other_memory
from rac_jax.data import evaluation, pipeline, record
from rac_jax.data.dataset import Dataset
from rac_jax.metrics import Counts
from rac_jax.models.rac import FUSED, PAPER, VOICES
from rac_jax.models.voices import READ_FROM_MEMORY, Neighbours
from rac_jax.report import predictions, tables
from rac_jax.report.predictions import Predictions, Votes
from rac_jax.report.tensorboard import TensorBoard
from rac_jax.run import Run
from rac_jax.runtime import files, processes, workdirs
from rac_jax.weights import parameters

IMAGES = "images"  # a folder of the run's: pictures that were given as arrays (see rac_jax/api), with tables of them
ANSWERS = (FUSED, *VOICES, PAPER)  # the order of every table
NEAREST = "nearest"  # beside them: the class of the nearest neighbour, what E knows without training

Accuracy = dict[str, dict[str, float]]  # by voice, by group
Covered = dict[
    str, dict[str, dict[str, float]]
]  # by coverage, by group: the share that is `covered`, in how many `labels`


def restore(config: ConfigDict, workdir: Path, step: int | None, *, split: str = "") -> tuple[Run, Any, Any, int]:
    """A step (None: the newest) of the run in `workdir`: the run, its parameters and statistics, and the step.

    With a `split`, the data of the config are loaded to evaluate on; they may be others than those of training.
    Otherwise no data set is read.
    """
    workdirs.check(config, workdir, free=("data.name",) if split else ())
    config = with_own_table(config, workdir)
    with Checkpoints.read(workdir) as checkpoints:
        checkpoints.require(step)
        trained_on = record.read(workdir)
        if trained_on is None:
            logging.warning("%s is missing: the classes are read from the data", workdir / record.FILE)
            trained_on = record.describe(data.load(config), config.data.root)
        dataset = evaluation.load(config, split, trained_on) if split else None
        if dataset is not None:
            _say_what_is_new(config, trained_on, dataset)
        run = Run.to_answer(config, workdir, trained_on, dataset)
        _, params, stats = parameters.split(run.model)
        step, state, info = checkpoints.load(step, sharding.state(run.mesh, {"params": params, "stats": stats}))
        warn_of_other_memory(step, info, run.memory_record())
    run = run.with_offset(info.get("offset", 0.0))
    return run, state["params"], state["stats"], step


def with_own_table(config: ConfigDict, workdir: Path) -> ConfigDict:
    """The config with the table of images that lies in the run's own folder, wherever this folder is now."""
    kind, _, file = config.data.name.partition(":")
    inside = Path(*Path(file).parts[-3:])  # images/<name>/<table>
    here = Path(file).is_absolute() and Path(file).exists()
    if kind != "table" or here or inside.parts[:1] != (IMAGES,) or not (workdir / inside).is_file():
        return config
    config = config.copy_and_resolve_references()
    config.data.name = f"table:{(workdir / inside).resolve()}"
    return config


def _say_what_is_new(config: ConfigDict, trained_on: record.Record, dataset: Dataset) -> None:
    """Classes go by name. Some voices can answer classes without training; for others, no common class is an error."""
    new = [name for name in dataset.class_names if name not in set(trained_on.classes)]
    able = set(READ_FROM_MEMORY) & set(configs.voices(config))
    if not able and len(new) == len(dataset.class_names):
        raise record.OtherData(f"none of the classes of {dataset.name} is one that the run was trained on")
    if new:
        shown = ", ".join(new[:8]) + (" …" if len(new) > 8 else "")
        never = "" if able else ", so that they are never answered"
        logging.warning("%d classes of %s were not trained on%s: %s", len(new), dataset.name, never, shown)


def evaluate_checkpoint(config: ConfigDict, workdir: Path, *, step: int | None, split: str) -> Accuracy:
    """Restore a step (None: the newest) of the run in `workdir` and evaluate it."""
    run, params, stats, step = restore(config, workdir, step, split=split)
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
    """Evaluate a split: print the table, write `eval/<split>*` and draw `report/`."""
    sets = set_counts(run, workdir, step)
    counts, predicted = answers(run, params, stats, split, sets)
    accuracy = accuracies(run, counts)
    nearest = {NEAREST: accuracy.pop(NEAREST)} if NEAREST in accuracy else {}
    result = {
        "split": split,
        "step": step,
        "images": len(predicted),
        "classes": len(run.classes),
        "voices": accuracy,
        "calibration_error": calibration_errors(predicted),
        **run.memory_record(),
    }
    if sets:
        result["coverage"] = covered(run, sets)
    note = ""
    if run.retriever is not None and "text" in accuracy:
        k, fitting = run.config.memory.k, round(run.retriever.mean_fitting, 2)
        result["snippets"] = {"k": k, "fitting": fitting}
        note = f"T's window holds {fitting} of {k} snippets, on average\n" if fitting < k else ""
    board.scalars(step, scalars(split, accuracy | nearest))
    if processes.first():
        files.write_json(workdir / "eval" / f"{split}.json", result)
        files.write_json(workdir / "eval" / f"{split}_classes.json", _per_class(run, counts))
        predictions.write(workdir / "eval" / f"{split}_predictions.arrow", predicted)
        from rac_jax.report import gallery  # imports matplotlib, which predictions do not need

        gallery.draw(run, counts, predicted, split, step, workdir / "report" / split, board)
        title = f"{split}: {len(predicted)} images, step {step}, accuracy in %"
        print(f"\n{title}\n{tables.accuracy_table(accuracy | nearest)}\n{note}{_calibration(result)}")
    return accuracy


def set_counts(run: Run, workdir: Path, step: int) -> SetCounts | None:
    """Counts how often the sets of labels hold the truth; None if this step has none."""
    kept = coverage.read(workdir, step)
    return SetCounts(kept, run.class_rows) if kept else None


def covered(run: Run, sets: SetCounts) -> Covered:
    """For each coverage and group of classes: how many images are covered, in how many labels."""
    return sets.summary(metrics.groups(run.class_counts, run.classes.trained))


def calibration_errors(predicted: Predictions) -> dict[str, float]:
    """The expected calibration error (ECE) of each voice, as a share."""
    from rac_jax.report import plots  # imports matplotlib

    return {
        voice: plots.calibration_error(votes.probability, predicted.right(voice))
        for voice, votes in predicted.votes.items()
    }


def _calibration(result: dict[str, Any]) -> str:
    errors = ", ".join(f"{voice} {100 * error:.1f}" for voice, error in result["calibration_error"].items())
    text = f"calibration error (ECE) in %: {errors}\n"
    if "coverage" in result:
        rows = tables.columns(tables.coverage_rows(result["coverage"]))
        text += f"sets of labels: how many images are covered, in how many labels\n{rows}\n"
    return text


def count(run: Run, params: Any, stats: Any, split: str) -> dict[str, Counts]:
    """Per-class counts of every voice over a split."""
    return answers(run, params, stats, split)[0]


def answers(
    run: Run, params: Any, stats: Any, split: str, sets: SetCounts | None = None
) -> tuple[dict[str, Counts], Predictions]:
    """Per-class counts of every voice over a split, and its answers for each image. `sets` are counted, too."""
    config = run.config
    images, size = run.dataset.split(split), sharding.padded_size(config.eval.batch_size, run.mesh.size)
    transform = data.eval_transform(config) if run.needs_images else None
    workers = config.data.workers if transform else 0
    batches = pipeline.eval_batches(images, transform, batch_size=size, workers=workers)
    renumbered = ({**batch, "label": run.labels[batch["label"]]} for batch in batches)
    eval_step = make_eval_step(run)
    total: dict[str, Counts] = {}
    predicted: list[Predictions] = []
    with tqdm(total=len(images), desc=f"eval {split}", unit="img", disable=not processes.first()) as bar:
        for batch, found in run.feed(renumbered, split=split, training=False):
            counted, said = jax.device_get(eval_step(params, stats, batch, found, run.knowledge))
            run.check()
            for name, arrays in counted.items():
                total[name] = total[name] + Counts(*arrays) if name in total else Counts(*arrays)
            if sets:
                sets.add(said["probabilities"][said["mask"]], said["label"][said["mask"]])
            predicted.append(_unpadded(said))
            bar.update(min(size, len(images) - bar.n))
    return {name: total[name] for name in (*ANSWERS, NEAREST) if name in total}, predictions.concatenate(predicted)


def of_true(run: Run, params: Any, stats: Any, split: str) -> tuple[np.ndarray, np.ndarray]:
    """The probability that a run gives the true label of each image of a split, and the labels: [N] each."""
    predicted = answers(run, params, stats, split)[1]
    return predicted.votes[run.model.output].of_true, predicted.label


@functools.lru_cache(maxsize=1)  # evaluations while training share what the first one compiled
def make_eval_step(run: Run) -> Callable[..., tuple[dict[str, jax.Array], Any]]:
    """Compiled: parameters, statistics, batch, neighbours, knowledge -> [3, L] counts by voice, and answers."""
    graph, classes = nnx.graphdef(run.model), len(run.classes)

    def eval_step(params: Any, stats: Any, batch: dict[str, jax.Array], found: Any, knowledge: Any) -> Any:
        labels, mask = batch["label"], batch["mask"]
        model = nnx.merge(graph, sharding.gathered(run.mesh, params), stats)
        logits = model.with_paper(model(batch.get("image"), Neighbours.of(found), knowledge))
        known = model.probabilities(logits)  # before the padding, since the paper's fusion takes norms over classes
        probabilities = {voice: _padded(values, classes) for voice, values in known.items()}
        logits = {voice: _for_all(values, classes) for voice, values in logits.items()}
        counts = {voice: metrics.batch_counts(values, labels, mask) for voice, values in logits.items()}
        nothing = jnp.zeros((len(labels), 0))
        said: dict[str, Any] = {"id": batch["id"], "label": labels, "mask": mask}
        said |= {"rows": nothing.astype(jnp.int32), "similarities": nothing}
        said["votes"], said["probabilities"] = _votes(probabilities, labels), probabilities[model.output]
        if found is not None:
            named = classes_of(knowledge.row_label, found["rows"])
            counts[NEAREST] = metrics.nearest_counts(named, labels, mask, classes)
            said |= {name: found[name] for name in ("rows", "similarities")}
        return counts, said

    return jax.jit(eval_step, out_shardings=sharding.replicated(run.mesh))


def _for_all(logits: jax.Array, classes: int) -> jax.Array:
    """Logits for all classes: a class that a voice does not know gets a value below all others."""
    missing = classes - logits.shape[1]
    lowest = jnp.min(logits, axis=1, keepdims=True) - 30.0
    return jnp.concatenate([logits, jnp.broadcast_to(lowest, (len(logits), missing))], axis=1) if missing else logits


def _padded(probabilities: jax.Array, classes: int) -> jax.Array:
    """Probabilities for all classes: 0 for a class that a voice does not know."""
    return jnp.pad(probabilities, ((0, 0), (0, classes - probabilities.shape[1])))


def _votes(probabilities: dict[str, jax.Array], labels: jax.Array) -> dict[str, Any]:
    """For each voice: its answer, the probability of the answer, and that of the true class; [B] each."""
    return {
        voice: {
            "label": values.argmax(axis=-1).astype(jnp.int32),
            "probability": values.max(axis=-1),
            "of_true": jnp.take_along_axis(values, labels[:, None], axis=1)[:, 0],
        }
        for voice in ANSWERS
        if (values := probabilities.get(voice)) is not None
    }


def _unpadded(said: dict[str, Any]) -> Predictions:
    """The answers of a batch, without its padding."""
    said = jax.tree.map(lambda values: values[said["mask"]], said)
    votes = {voice: Votes(**said["votes"][voice]) for voice in ANSWERS if voice in said["votes"]}
    return Predictions(said["id"], said["label"], votes, said["rows"], said["similarities"])


def accuracies(run: Run, counts: dict[str, Counts]) -> Accuracy:
    """The accuracy of each voice on all, many, medium and few, and top-5."""
    return {voice: metrics.summary(c, run.class_counts, run.classes.trained) for voice, c in counts.items()}


def scalars(split: str, accuracy: Accuracy) -> dict[str, float]:
    """TensorBoard tags `<split>/<voice>/<group>`."""
    return {f"{split}/{voice}/{group}": value for voice, groups in accuracy.items() for group, value in groups.items()}


@jax.jit
def classes_of(row_class: jax.Array, rows: jax.Array) -> jax.Array:
    """The classes of neighbours [B, k], −1 for none: [B, k]."""
    return jnp.where(rows < 0, -1, row_class[rows])


def share_of_true_class(row_class: jax.Array, rows: jax.Array, labels: jax.Array) -> jax.Array:
    """For each query, the share of its neighbours [B, k] that have its label [B]: [B]."""
    matches = jnp.sum(classes_of(row_class, rows) == labels[:, None], axis=1)
    return matches / jnp.maximum(jnp.sum(rows >= 0, axis=1), 1)


def _per_class(run: Run, counts: dict[str, Counts]) -> dict[str, Any]:
    """Columns by name, each with one value per class."""
    first = next(iter(counts.values()))
    table: dict[str, Any] = {
        "class": list(run.classes.names),
        "train_images": run.class_counts.tolist(),
        "images": first.seen.tolist(),
    }
    for voice, c in counts.items():
        table[voice] = {"correct": c.correct.tolist(), "correct_top5": c.correct5.tolist()}
    return table
