"""Batches on the devices, each with what the memory says of it: what a step is fed with."""

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from rac_jax import data, processes, sharding, system
from rac_jax.data import pipeline
from rac_jax.data.pipeline import Batch
from rac_jax.memory import cached

Fed = tuple[dict[str, jax.Array], Any]  # a placed batch, and what was found for it (None for a base-only model)


def feed(parts: system.System, batches: Iterable[Batch], *, split: str, training: bool) -> Iterator[Fed]:
    """The batches of a split, placed, with their neighbours, looked up as config.memory.lookup says.

    In training an image is no neighbour of its own.
    """
    lookup = parts.config.memory.lookup
    if parts.retrieval is None or lookup == "callback":
        return (parts.put(batch, training=training) for batch in batches)
    if lookup == "pipelined":
        return _pipelined(parts, parts.retrieval, batches, training=training)
    return _cached(parts, parts.retrieval, batches, split=split, training=training)


def _pipelined(
    parts: system.System, retrieval: system.Retrieval, batches: Iterable[Batch], *, training: bool
) -> Iterator[Fed]:
    """One batch ahead: a thread looks the next batch up while the devices work on this one.

    E is queued for the next batch before the caller queues its step on this one; else its keys would
    come only after that step, and there would be nothing to hide the search behind.
    """
    with ThreadPoolExecutor(1) as thread:
        waiting: tuple[dict[str, jax.Array], Future] | None = None
        for batch in batches:
            placed = sharding.put_batch(parts.mesh, batch)
            own = retrieval.own_rows(batch, training=training)
            search = thread.submit(retrieval.search, retrieval.keys(placed["image"]), own)
            if waiting is not None:
                yield waiting[0], sharding.put_batch(parts.mesh, waiting[1].result())
            waiting = placed, search
        if waiting is not None:
            yield waiting[0], sharding.put_batch(parts.mesh, waiting[1].result())


def _cached(
    parts: system.System, retrieval: system.Retrieval, batches: Iterable[Batch], *, split: str, training: bool
) -> Iterator[Fed]:
    """Neighbours of the plain images, found once; E and the index are not asked again."""
    made_of = retrieval.recipe | {"split": parts.dataset.fingerprint(split), "training": training}
    name = "train" if training else f"eval_{split}"
    found = cached.open_or_find(retrieval.cache, name, made_of, lambda: _find(parts, split, training=training))
    for batch in batches:
        rows = found.rows[batch["id"]]
        neighbours = {"tokens": retrieval.lookup.tokens(rows), "rows": rows}
        neighbours["similarities"] = found.similarities[batch["id"]]
        yield sharding.put_batch(parts.mesh, batch), sharding.put_batch(parts.mesh, neighbours)


def _find(parts: system.System, split: str, *, training: bool) -> cached.Found:
    config, images = parts.config, parts.dataset.split(split)
    size = sharding.rows(config.eval.batch_size, parts.mesh.size)
    batches = pipeline.eval_batches(images, data.eval_transform(config), batch_size=size, workers=config.data.workers)
    everywhere = jax.jit(lambda found: found, out_shardings=sharding.replicated(parts.mesh))
    rows, similarities = [], []
    with tqdm(total=len(images), desc=f"neighbours of {split}", unit="img", disable=not processes.first()) as bar:
        for batch in batches:
            _, found = parts.put(batch, training=training)
            found = everywhere({name: found[name] for name in ("rows", "similarities")})
            rows.append(np.asarray(found["rows"]))
            similarities.append(np.asarray(found["similarities"]))
            parts.check()  # never keep what a failed lookup answered
            bar.update(min(size, len(images) - bar.n))
    number = len(images)  # the last batch is padded
    return cached.Found(np.concatenate(rows)[:number], np.concatenate(similarities)[:number])
