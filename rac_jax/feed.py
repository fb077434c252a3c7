"""Batches on the devices, each with what the memory says of it: what a step is fed with."""

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax

from rac_jax import sharding, system
from rac_jax.data.pipeline import Batch

Fed = tuple[dict[str, jax.Array], Any]  # a placed batch, and what was found for it (None for a base-only model)


def feed(parts: system.System, batches: Iterable[Batch], *, training: bool) -> Iterator[Fed]:
    """The batches, placed, with their neighbours, looked up as config.memory.lookup says."""
    if parts.retrieval is not None and parts.config.memory.lookup == "pipelined":
        return _pipelined(parts, parts.retrieval, batches, training=training)
    return (parts.put(batch, training=training) for batch in batches)


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
