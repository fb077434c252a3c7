"""Accuracy of the nearest neighbour: each image gets the class of the training image nearest to it. Nothing is trained.

For training images the image itself is left out ("train: all") or, to see what an index misses, kept ("train: itself
in"). These times are measured as well:
- encoding the training images, from files to keys, after E is compiled;
- building an index over their keys, as for a memory, without writing it;
- searching the k + 1 neighbours that a lookup asks for, in batches of config.eval.batch_size.
"""

import dataclasses
import hashlib
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict
from tqdm import tqdm

from rac_jax import data, metrics, sharding
from rac_jax.data.dataset import Dataset
from rac_jax.memory import build, index, made
from rac_jax.metrics import Counts
from rac_jax.retrieval import encoder as encoders
from rac_jax.runtime import files

FEWEST = 5  # neighbours to search at least, for top-5
PART = 2**17  # synthetic keys that are made at once
LINK = 4  # bytes of a graph's link


@dataclasses.dataclass(frozen=True)
class Keys:
    """The keys of the training images and of the queries, as E computes them."""

    train: np.ndarray  # [N, D] float32
    queries: np.ndarray  # [M, D] float32
    seconds: float  # spent on encoding the training images


def measure(config: ConfigDict, folder: Path, up_to: int = 0) -> dict[str, Any]:
    """Accuracies between 0 and 1 by group, and the `figures` of a table in %, seconds and milliseconds.

    With `up_to`, synthetic rows are added up to that number, or to as many as half of the free memory holds, and only
    times are measured.
    """
    dataset = data.load(config)
    keys = open_or_encode(config, dataset, folder)
    rows = min(up_to, free_memory() // 2 // bytes_a_row(config, keys.train.shape[1]))
    stored = filled(config, keys.train, rows)
    started = time.perf_counter()
    built = index.build(stored, index.spec(config))
    indexed = time.perf_counter() - started
    of_split, milliseconds = search(config, built, keys.queries, config.eval.split)
    taken = {
        "built in, s": keys.seconds + indexed,
        "indexed in, s": indexed,
        "ms a query": milliseconds,
        "ms with E": milliseconds + 1e3 * keys.seconds / len(keys.train),
        "rows": len(stored),
    }
    if up_to:
        return {"rows": len(stored), "figures": taken}
    of_train, _ = search(config, built, keys.train, "train")
    own = of_train == np.arange(len(of_train))[:, None]
    others = index.leave_out(of_train, of_train, own, of_train.shape[1] - 1)[0]
    split = accuracy(dataset, config.eval.split, of_split)
    train, itself_in = accuracy(dataset, "train", others), accuracy(dataset, "train", of_train)
    figures = {group: 100 * share for group, share in split.items()} | {
        "train: all": 100 * train["all"],
        "train: itself in": 100 * itself_in["all"],
        **taken,
    }
    shares = {config.eval.split: split, "train": train, "train, itself in": itself_in}
    return {"accuracy": shares, "rows": len(stored), "figures": figures}


def open_or_encode(config: ConfigDict, dataset: Dataset, folder: Path) -> Keys:
    """Read the keys from a file in the folder if it was made by the same E from the same data; else make it."""
    mesh = sharding.make_mesh(config)
    encoder = encoders.load(config, mesh)
    recipe, splits = build.make_recipe(config, encoder), (config.eval.split, "train")
    made_of = [recipe["encoder"], recipe["preprocessing"], *map(dataset.fingerprint, splits)]
    path = folder / f"keys-{hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:16]}.npz"
    if path.exists():
        with np.load(path, allow_pickle=False) as content:
            return Keys(content["train"], content["queries"], float(content["seconds"]))
    encoded = []
    for name in splits:  # the training images come last, when E is compiled
        started = time.perf_counter()
        encoded.append(build.encode_split(config, dataset.split(name), encoder, mesh))
        seconds = time.perf_counter() - started
    queries, train = encoded
    with files.atomic(path) as temporary, temporary.open("wb") as file:
        np.savez(file, train=train, queries=queries, seconds=seconds)
    return Keys(train, queries, seconds)


def as_stored(config: ConfigDict, keys: np.ndarray) -> np.ndarray:
    """The keys in the form in which a memory of this config stores them."""
    return (index.unit(keys) if config.memory.metric == "cosine" else keys).astype(index.precision(config))


def filled(config: ConfigDict, keys: np.ndarray, rows: int) -> np.ndarray:
    """Keys [N, D] as stored, and then synthetic ones like them up to this number of rows, made a part at a time."""
    stored = np.empty((max(rows, len(keys)), keys.shape[1]), index.precision(config))
    stored[: len(keys)] = as_stored(config, keys)
    for number, start in enumerate(range(len(keys), rows, PART)):
        part = stored[start : start + PART]
        part[:] = as_stored(config, made.like(keys, len(part), seed=number))
    return stored


def bytes_a_row(config: ConfigDict, width: int) -> int:
    """Of memory while an index is built: the stored key and, unless all are compared, FAISS's own copy and links."""
    key = width * np.dtype(index.precision(config)).itemsize
    if config.memory.index in ("flat", "device"):
        return key
    return 2 * key + LINK * (2 * config.memory.hnsw_m + 8)  # the links of all upper layers are a few per row


def free_memory() -> int:
    """Bytes of memory that this process can still get, by the machine and by the limit of its container."""
    known = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free = 1024 * int(known["MemAvailable"].split()[0])
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.exists() else ""
    return min(free, int(text)) if text.isdecimal() else free


def search(config: ConfigDict, built: index.Index, queries: np.ndarray, name: str) -> tuple[np.ndarray, float]:
    """The nearest rows [M, k + 1] of queries [M, D], and the milliseconds per query."""
    k, ef_search, size = max(config.memory.k, FEWEST) + 1, index.ef_search(config), config.eval.batch_size
    started = time.perf_counter()
    starts = tqdm(range(0, len(queries), size), desc=f"neighbours of {name}", unit="batch")
    rows = [index.search(built, queries[start : start + size], k, ef_search)[0] for start in starts]
    return np.concatenate(rows), 1e3 * (time.perf_counter() - started) / len(queries)


def accuracy(dataset: Dataset, name: str, rows: np.ndarray) -> dict[str, float]:
    """Accuracy of a split whose nearest training rows are [M, k]: of the nearest one, and top-5 of the nearest five."""
    labels, classes = dataset.split(name).labels, dataset.split("train").labels
    right = (rows >= 0) & (classes[rows] == labels[:, None])
    hits = np.ones(len(labels), bool), right[:, 0], right[:, :FEWEST].any(axis=1)
    counts = Counts(*(np.bincount(labels[hit], minlength=dataset.num_classes) for hit in hits))
    return metrics.summary(counts, dataset.class_counts)
