"""Batches on the devices, each with the neighbours of its images: the input of a training or evaluation step."""

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict
from tqdm import tqdm

from rac_jax import sharding
from rac_jax.data.dataset import Dataset
from rac_jax.data.pipeline import Batch
from rac_jax.memory import build, index
from rac_jax.retrieval import cached
from rac_jax.retrieval.lookup import KEEP_ALL
from rac_jax.retrieval.retriever import Retriever
from rac_jax.runtime import processes

LOOKED_UP = 1024  # images whose neighbours are looked up at once for the cache

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
    own = retriever.own_rows(batch["id"], training=training)
    placed = sharding.put_batch(mesh, batch | {"own": own, "inside": retriever.inside(own)})
    found = retriever(placed["image"], placed.pop("own"))
    return placed, found | {"inside": placed.pop("inside")}


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


def look_up(config: ConfigDict, retriever: Retriever, mesh: Mesh, images: jax.Array) -> dict[str, jax.Array]:
    """The neighbours of placed images, none left out. No program has a callback, so all of them can be cached."""
    own = np.full(images.shape[0], KEEP_ALL, np.int32)
    if config.memory.index == "device":
        return retriever(images, sharding.put_batch(mesh, {"own": own})["own"])
    return _searched(retriever, mesh, retriever.keys(images), own)


def _pipelined(retriever: Retriever, mesh: Mesh, batches: Iterable[Batch], *, training: bool) -> Iterator[Fed]:
    """One batch ahead: a thread looks up the next batch while the devices work on this one.

    E is queued for the next batch before the caller queues its step on this one. Otherwise the keys would arrive only
    after that step, and there would be nothing to hide the search behind.
    """
    with ThreadPoolExecutor(1) as thread:
        waiting: tuple[dict[str, jax.Array], Future] | None = None
        for batch in batches:
            placed = sharding.put_batch(mesh, batch)
            own = retriever.own_rows(batch["id"], training=training)
            keys = retriever.keys(placed["image"])
            found = thread.submit(_searched, retriever, mesh, keys, own)
            if waiting is not None:
                yield waiting[0], waiting[1].result()
            waiting = placed, found
        if waiting is not None:
            yield waiting[0], waiting[1].result()


def _searched(retriever: Retriever, mesh: Mesh, keys: jax.Array, own: np.ndarray) -> dict[str, jax.Array]:
    found = retriever.search(keys, own) | {"inside": retriever.inside(own)}
    return sharding.put_batch(mesh, found) | {"key": keys}


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
    keys = keys_of(config, retriever, mesh, dataset, split)
    found = neighbours_of(retriever, dataset, split, keys, training=training)
    for batch in batches:
        ids = batch["id"]
        own, rows = retriever.own_rows(ids, training=training), found["rows"][ids]
        some = {"tokens": retriever.lookup.tokens(rows), "inside": retriever.inside(own), "rows": rows}
        some |= {"similarities": found["similarities"][ids], "key": keys[ids]}
        yield sharding.put_batch(mesh, batch), sharding.put_batch(mesh, some)


def keys_of(config: ConfigDict, retriever: Retriever, mesh: Mesh, dataset: Dataset, split: str) -> np.ndarray:
    """The keys of a split's plain images, [N, D] float32: the memory's where it holds them, else encoded once."""
    memory, images = retriever.memory, dataset.split(split)
    rows = memory.row_of(dataset.fingerprint(split), np.arange(len(images), dtype=np.int32))
    if len(rows) and rows[0] >= 0:
        return np.asarray(memory.keys[rows], np.float32)
    recipe = {name: memory.recipe[name] for name in ("encoder", "preprocessing") if name in memory.recipe}
    made_of = {"recipe": recipe, "split": dataset.fingerprint(split), "metric": retriever.lookup.metric}

    def encode() -> cached.Arrays:
        keys = build.encode_split(config, images, retriever.encoder, mesh)
        return {"keys": index.unit(keys) if retriever.lookup.metric == "cosine" else keys}

    return cached.open_or_make(retriever.cache, f"keys_{split}", made_of, encode)["keys"]


def neighbours_of(
    retriever: Retriever, dataset: Dataset, split: str, keys: np.ndarray, *, training: bool
) -> cached.Arrays:
    """`rows` and `similarities` [N, k] of a split's keys [N, D], looked up once."""
    made_of = retriever.recipe | {"split": dataset.fingerprint(split), "training": training}

    def look_up() -> cached.Arrays:
        own = retriever.own_rows(np.arange(len(keys), dtype=np.int32), training=training)
        starts = range(0, len(keys), LOOKED_UP)
        shown = {"desc": f"neighbours of {split}", "unit": "batch", "disable": not processes.first()}
        found = [
            retriever.lookup.search(keys[start : start + LOOKED_UP], own[start : start + LOOKED_UP])
            for start in tqdm(starts, **shown)
        ]
        return {name: np.concatenate([getattr(f, name) for f in found]) for name in ("rows", "similarities")}

    name = "train" if training else f"eval_{split}"
    return cached.open_or_make(retriever.cache, name, made_of, look_up)
