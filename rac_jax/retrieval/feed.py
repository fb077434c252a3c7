"""Batches on the devices, each with the neighbours of its images: the input of a training or evaluation step."""

import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict
from tqdm import tqdm

from rac_jax import config as configs
from rac_jax import sharding
from rac_jax.data.dataset import Dataset
from rac_jax.data.pipeline import Batch
from rac_jax.retrieval import cached, views
from rac_jax.retrieval.lookup import KEEP_ALL
from rac_jax.retrieval.retriever import Retriever
from rac_jax.runtime import processes

LOOKED_UP = 1024  # images whose neighbours are looked up at once for the cache
ROUNDED = 16  # the number of tokens that T reads is a multiple of it, or T's window

Fed = tuple[dict[str, jax.Array], Any]  # a placed batch and its neighbours (None for a model without retrieval)


def lookup_of(config: ConfigDict) -> str:
    """How neighbours are looked up, callback | pipelined | cached: config.memory.lookup with "auto" decided."""
    if config.memory.lookup != "auto":
        return config.memory.lookup
    on_host = config.memory.index != "device"
    return "pipelined" if on_host and jax.default_backend() != "cpu" else "callback"


def needs_images(config: ConfigDict) -> bool:
    """Whether a step needs the images themselves: for B, or to look up augmented ones."""
    sees = "base" in configs.roles(config) and not config.train.views
    return sees or lookup_of(config) != "cached"


def put(retriever: Retriever | None, mesh: Mesh, batch: Batch, *, training: bool) -> Fed:
    """A host batch on the devices, and the neighbours of its images."""
    if retriever is None:
        return sharding.put_batch(mesh, batch), None
    own = retriever.own_rows(batch["id"], training=training)
    left_out = retriever.left_out(own)
    placed = sharding.put_batch(mesh, batch | {"own": own} | left_out)
    found = retriever(placed["image"], placed.pop("own"))
    return placed, found | {name: placed.pop(name) for name in left_out}


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
    seen = retriever.see(images)
    return seen | _searched(retriever, mesh, seen["key"], own)


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
    found = retriever.search(keys, own) | retriever.left_out(own)
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
    """Neighbours of the views of each image, found once; then neither E nor the index is used again."""
    numbers = range(max(1, config.train.views)) if training else [views.EVALUATED]
    seen = [views.of_split(config, retriever, mesh, dataset, split, number) for number in numbers]
    found = [neighbours_of(retriever, dataset, split, view.keys, training=training, view=view.name) for view in seen]
    width = _width(retriever, [arrays["rows"] for arrays in found])
    for batch in batches:
        ids = batch["id"]
        which = batch.pop("view", np.zeros_like(ids))
        own = retriever.own_rows(ids, training=training)
        some = _rows_of_views([view.rows for view in seen], which, ids)
        some |= _rows_of_views([functools.partial(_rows, arrays) for arrays in found], which, ids)
        some |= {"tokens": retriever.lookup.tokens(some["rows"])[:, :width]}
        some |= retriever.left_out(own, plain=len(seen) == 1)
        yield sharding.put_batch(mesh, batch), sharding.put_batch(mesh, some)


def _width(retriever: Retriever, rows: list[np.ndarray]) -> int:
    """Tokens that T has to read of the neighbours' texts, the further ones being padding in every sequence.

    It is rounded up, so that an edit of the memory seldom leads to another shape, for which T is compiled again.
    """
    parts = (some[start : start + LOOKED_UP] for some in rows for start in range(0, len(some), LOOKED_UP))
    return -(-max(map(retriever.lookup.longest, parts), default=0) // ROUNDED) * ROUNDED


def _rows(arrays: cached.Arrays, ids: np.ndarray) -> cached.Arrays:
    return {name: values[ids] for name, values in arrays.items()}


def _rows_of_views(
    of: list[Callable[[np.ndarray], dict[str, np.ndarray]]], which: np.ndarray, ids: np.ndarray
) -> dict[str, np.ndarray]:
    """For each image [b] its row in the arrays of its view; `of` gives the rows of some images, by view."""
    order = np.argsort(which, kind="stable")
    parts = [of[view](ids[which == view]) for view in np.unique(which)]
    places = np.argsort(order)
    return {name: np.concatenate([part[name] for part in parts])[places] for name in parts[0]}


def keys_of(config: ConfigDict, retriever: Retriever, mesh: Mesh, dataset: Dataset, split: str) -> np.ndarray:
    """The keys of a split's plain images, [N, D] float32: the memory's where it holds them, else encoded once."""
    return views.of_split(config, retriever, mesh, dataset, split).keys


def neighbours_of(
    retriever: Retriever, dataset: Dataset, split: str, keys: np.ndarray, *, training: bool, view: str = ""
) -> cached.Arrays:
    """`rows` and `similarities` [N, k] of a split's keys [N, D], looked up once. `view` is "" for plain images."""
    made_of = retriever.recipe | {"split": dataset.fingerprint(split), "training": training}
    if view:
        made_of["keys"] = hashlib.sha256(keys.tobytes()).hexdigest()

    def look_up() -> cached.Arrays:
        own = retriever.own_rows(np.arange(len(keys), dtype=np.int32), training=training)
        starts = range(0, len(keys), LOOKED_UP)
        shown = {"desc": f"neighbours of {split}", "unit": "batch", "disable": not processes.first()}
        found = [
            retriever.lookup.search(keys[start : start + LOOKED_UP], own[start : start + LOOKED_UP])
            for start in tqdm(starts, **shown)
        ]
        return {name: np.concatenate([getattr(f, name) for f in found]) for name in ("rows", "similarities")}

    name = ("train" if training else f"eval_{split}") + (f"_{view}" if view else "")
    return cached.open_or_make(retriever.cache, name, made_of, look_up)
