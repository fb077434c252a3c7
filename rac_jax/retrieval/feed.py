"""Batches on the devices, each with the neighbours of its images: the input of a training or evaluation step."""

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict
from tqdm import tqdm

from rac_jax import data, sharding
from rac_jax.data import pipeline
from rac_jax.data.dataset import Dataset
from rac_jax.data.pipeline import Batch
from rac_jax.retrieval import cached
from rac_jax.retrieval.retriever import Retriever
from rac_jax.runtime import processes

Fed = tuple[dict[str, jax.Array], Any]  # a placed batch and its neighbours (None for a model without retrieval)


def lookup_of(config: ConfigDict) -> str:
    """How neighbours are looked up, callback | pipelined | cached: config.memory.lookup with "auto" decided."""
    if config.memory.lookup != "auto":
        return config.memory.lookup
    on_host = config.memory.index != "device"
    return "pipelined" if on_host and jax.default_backend() != "cpu" else "callback"


def put(retriever: Retriever | None, mesh: Mesh, batch: Batch, *, training: bool) -> Fed:
    """A host batch on the devices, and the neighbours of its images."""
    if retriever is None:
        return sharding.put_batch(mesh, batch), None
    own = retriever.own_rows(batch, training=training)
    placed = sharding.put_batch(mesh, batch | {"own": own})
    return placed, retriever(placed["image"], placed.pop("own"))


def feed(
    config: ConfigDict,
    retriever: Retriever | None,
    mesh: Mesh,
    dataset: Dataset,
    batches: Iterable[Batch],
    *,
    split: str,
    training: bool,
) -> Iterator[Fed]:
    """The batches of a split, placed, with neighbours looked up as config.memory.lookup says.

    In training, an image is never its own neighbour.
    """
    lookup = lookup_of(config)
    if retriever is None or lookup == "callback":
        return (put(retriever, mesh, batch, training=training) for batch in batches)
    if lookup == "pipelined":
        return _pipelined(retriever, mesh, batches, training=training)
    return _cached(config, retriever, mesh, dataset, batches, split=split, training=training)


def _pipelined(retriever: Retriever, mesh: Mesh, batches: Iterable[Batch], *, training: bool) -> Iterator[Fed]:
    """One batch ahead: a thread looks up the next batch while the devices work on this one.

    E is queued for the next batch before the caller queues its step on this one. Otherwise the keys would arrive only
    after that step, and there would be nothing to hide the search behind.
    """
    with ThreadPoolExecutor(1) as thread:
        waiting: tuple[dict[str, jax.Array], Future] | None = None
        for batch in batches:
            placed = sharding.put_batch(mesh, batch)
            own = retriever.own_rows(batch, training=training)
            search = thread.submit(retriever.search, retriever.keys(placed["image"]), own)
            if waiting is not None:
                yield waiting[0], sharding.put_batch(mesh, waiting[1].result())
            waiting = placed, search
        if waiting is not None:
            yield waiting[0], sharding.put_batch(mesh, waiting[1].result())


def _cached(
    config: ConfigDict,
    retriever: Retriever,
    mesh: Mesh,
    dataset: Dataset,
    batches: Iterable[Batch],
    *,
    split: str,
    training: bool,
) -> Iterator[Fed]:
    """Neighbours of the plain images, found once; then neither E nor the index is used again."""
    made_of = retriever.recipe | {"split": dataset.fingerprint(split), "training": training}
    name = "train" if training else f"eval_{split}"

    def find() -> cached.Found:
        return _find(config, retriever, mesh, dataset, split, training=training)

    found = cached.open_or_find(retriever.cache, name, made_of, find)
    for batch in batches:
        rows = found.rows[batch["id"]]
        neighbours = {"tokens": retriever.lookup.tokens(rows), "rows": rows}
        neighbours["similarities"] = found.similarities[batch["id"]]
        yield sharding.put_batch(mesh, batch), sharding.put_batch(mesh, neighbours)


def _find(
    config: ConfigDict, retriever: Retriever, mesh: Mesh, dataset: Dataset, split: str, *, training: bool
) -> cached.Found:
    images = dataset.split(split)
    size = sharding.rows(config.eval.batch_size, mesh.size)
    batches = pipeline.eval_batches(images, data.eval_transform(config), batch_size=size, workers=config.data.workers)
    everywhere = jax.jit(lambda found: found, out_shardings=sharding.replicated(mesh))
    rows, similarities = [], []
    with tqdm(total=len(images), desc=f"neighbours of {split}", unit="img", disable=not processes.first()) as bar:
        for batch in batches:
            _, found = put(retriever, mesh, batch, training=training)
            found = everywhere({name: found[name] for name in ("rows", "similarities")})
            rows.append(np.asarray(found["rows"]))
            similarities.append(np.asarray(found["similarities"]))
            retriever.lookup.check()  # never keep the answers of a failed lookup
            bar.update(min(size, len(images) - bar.n))
    number = len(images)  # the last batch is padded
    return cached.Found(np.concatenate(rows)[:number], np.concatenate(similarities)[:number])
