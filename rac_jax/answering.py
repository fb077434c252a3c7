"""Answers for batches of images, with a state of a run: each voice's label and probability, and the neighbours.

Arrays of the memory are padded. An edit that adds rows or classes fills the padding, so that the compiled programs can
be reused; new shapes are compiled only when the padding is full.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from ml_collections import ConfigDict

from rac_jax import data, sharding
from rac_jax.calibration.coverage import LabelSets
from rac_jax.data.transforms import Transform
from rac_jax.memory.store import Memory
from rac_jax.models.rac import RAC
from rac_jax.models.voices import Knowledge, Neighbours
from rac_jax.retrieval import familiarity, feed, knowledge
from rac_jax.retrieval.knowledge import Room
from rac_jax.run import Run

Answer = dict[str, Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Answering:
    """A trained run with one state of its memory, which answers. Threads may share it."""

    run: Run
    params: Any
    stats: Any
    room: Room | None  # of what the memory knows; None without a memory
    knowledge: Knowledge | None

    @classmethod
    def of(cls, run: Run, params: Any, stats: Any, room: Room | None = None) -> "Answering":
        """With this room, if it is enough, or else with more."""
        if run.retriever is None:
            return cls(run, params, stats, None, None)
        classes, rows = len(run.classes), len(run.retriever.memory)
        if room is None or not room.holds(classes, rows):
            room = Room.for_more_than(classes, rows)
        return cls(run, params, stats, room, knowledge.padded(run.retriever.knowledge, room, run.mesh))

    def after(self, run: Run) -> "Answering":
        """The same trained run with another state of its memory."""
        return Answering.of(run, self.params, self.stats, self.room)

    def sizes(self, most: int) -> list[int]:
        """The sizes of batches of up to `most` images that programs are compiled for."""
        return sorted({self._padded(step) for step in self._steps(most) if step <= most})

    def _size(self, images: int) -> int:
        """The size of the batch for so many images: one of `sizes`, if these go as far."""
        return min(size for step in self._steps(images) if (size := self._padded(step)) >= images)

    def _steps(self, images: int) -> set[int]:
        """Powers of 2 until there are enough for so many images, and the size of a batch of evaluation."""
        return {2**power for power in range(images.bit_length() + 1)} | {self.run.config.eval.batch_size}

    def _padded(self, size: int) -> int:
        """The next size that the devices can share."""
        return sharding.padded_size(size, self.run.mesh.size)

    def warm_up(self, sizes: Sequence[int]) -> None:
        """Compile the programs for batches of these sizes, and for the key of one image (`teach`, `search`)."""
        for size in sizes:
            self.answers([self._blank(data.eval_transform)] * size)
        if self.run.retriever is not None:
            for transform in (data.plain_transform, data.eval_transform):
                self.keys([self._blank(transform)])

    def seconds(self, size: int, turns: int = 3) -> float:
        """How long a batch of this size takes, at best."""
        images, times = [self._blank(data.eval_transform)] * size, []
        for _ in range(turns):
            started = time.perf_counter()
            self.said(images)
            times.append(time.perf_counter() - started)
        return min(times)

    def _blank(self, transform: Callable[[ConfigDict], Transform]) -> np.ndarray:
        side = self.run.config.data.image_size
        return transform(self.run.config)(np.zeros((side, side, 3), np.uint8), np.random.default_rng(0))

    def place(self, pixels: Sequence[np.ndarray]) -> jax.Array:
        """Images [S, S, 3], or their crops [5, S, S, 3], as a batch on the devices, padded to one of a few sizes."""
        padding = [np.zeros_like(pixels[0])] * (self._size(len(pixels)) - len(pixels))
        return sharding.put_batch(self.run.mesh, {"image": np.stack([*pixels, *padding])})["image"]

    def keys(self, pixels: Sequence[np.ndarray]) -> np.ndarray:
        """E's keys of images as evaluation sees them: [b, D] float32."""
        assert self.run.retriever is not None
        return sharding.rows_of_this_process(self.run.retriever.keys(self.place(pixels)))[: len(pixels)]

    def answers(self, pixels: Sequence[np.ndarray], sets: LabelSets | None = None) -> list[Answer]:
        """The answers for a batch of images, transformed as for evaluation; with `sets`, their `labels`."""
        said, run = self.said(pixels), self.run
        result = [self._answer(said, place) for place in range(len(pixels))]
        if sets is not None:
            of_all = said["probabilities"][: len(pixels), : len(run.classes)]
            unknown = len(run.classes) - of_all.shape[1]  # new classes, for voices that do not read the memory
            of_all = np.pad(of_all, ((0, 0), (0, unknown)))
            for answer, values, inside in zip(result, of_all, sets.inside(of_all, run.class_rows), strict=True):
                answer["labels"] = [run.classes.names[i] for i in np.argsort(-values, kind="stable") if inside[i]]
        return result

    def said(self, pixels: Sequence[np.ndarray]) -> dict[str, Any]:
        """The forward pass and the lookup: labels and probabilities by voice, rows and similarities, as arrays."""
        run, images, found = self.run, self.place(pixels), None
        if run.retriever is not None:
            found = feed.look_up(run.config, run.retriever, run.mesh, images)
        step = _step(run.model, run.mesh)
        said: dict[str, Any] = jax.device_get(step(self.params, self.stats, images, found, self.knowledge))
        run.check()
        if run.retriever is not None and found is not None:
            said |= {name: jax.device_get(found[name]) for name in ("rows", "similarities")}
            said["familiarity"] = familiarity.shares(run.retriever.usual_nearness, said["rows"], said["similarities"])
        return said

    def _answer(self, said: dict[str, Any], place: int) -> Answer:
        run, names, output = self.run, self.run.classes.names, self.run.model.output
        voices = {
            voice: {"label": names[vote["label"][place]], "probability": float(vote["probability"][place])}
            for voice, vote in sorted(said["voices"].items(), key=lambda item: (item[0] != output, item[0]))
        }  # the run's own answer first
        answer: Answer = {**voices[output], "voices": voices}
        if run.retriever is not None:
            rows, similarities = said["rows"][place], said["similarities"][place]
            if said["familiarity"] is not None:
                answer["familiarity"] = round(float(said["familiarity"][place]), 4)
            answer["neighbours"] = neighbours(run.retriever.memory, rows, similarities, answer["label"])
        return answer


@functools.lru_cache(maxsize=2)  # by the model and not by the run, which is another one after an edit
def _step(model: RAC, mesh: Mesh) -> Callable[..., Any]:
    """Compiled: parameters, statistics, images, neighbours, knowledge -> answers.

    These are the label and its probability by voice, [B] each, and the probabilities of all labels, [B, L].
    """
    graph = nnx.graphdef(model)

    def step(params: Any, stats: Any, images: jax.Array, found: Any, knowledge: Any) -> Any:
        merged = nnx.merge(graph, params, stats)
        probabilities = merged.probabilities(merged(images, Neighbours.of(found), knowledge))
        voices = {
            voice: {"label": values.argmax(axis=-1).astype(jnp.int32), "probability": values.max(axis=-1)}
            for voice, values in probabilities.items()
        }
        return {"voices": voices, "probabilities": probabilities[merged.output]}

    return jax.jit(step, out_shardings=sharding.replicated(mesh))


def neighbours(memory: Memory, rows: np.ndarray, similarities: np.ndarray, label: str | None) -> list[Answer]:
    """The rows [k] of a memory that are near an image, nearest first, and whether each has the label of the answer."""
    there = rows >= 0
    rows, similarities = rows[there], similarities[there]
    texts, images = memory.texts.take(memory.text_of[rows]), memory.images.take(rows)
    labels = [memory.class_names[number] if number >= 0 else None for number in memory.label_of[rows].tolist()]
    columns = (rows.tolist(), similarities.tolist(), labels, texts, images, memory.source_names(rows))
    return [
        {
            "label": own,
            "text": text,
            "similarity": round(similarity, 4),
            "source": source,
            "image": image,
            "row": row,
            "supports": own == label,
        }
        for row, similarity, own, text, image, source in zip(*columns, strict=True)
    ]
