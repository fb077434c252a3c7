"""The cost of the memory: lookups, building, storage, and the recall of its indexes.

Every figure is a ratio, or is measured in turns with what it is compared with, in one process. Recall is measured on
the keys of a real encoder for real images, because independent noise has no near neighbours. The times of searches are
measured on synthetic keys (see made.py).
"""

import argparse
import dataclasses
import functools
import os
import shutil
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import faiss
import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from rac_jax import config as configs
from rac_jax import data, sharding
from rac_jax.bench import large, made, opening
from rac_jax.bench.race import median, race, ratio
from rac_jax.data import pipeline
from rac_jax.data.dataset import Dataset, Split
from rac_jax.memory import build, index, sources
from rac_jax.memory import made as made_keys
from rac_jax.retrieval import callback, feed
from rac_jax.retrieval import encoder as encoders
from rac_jax.retrieval.lookup import KEEP_ALL, Lookup

PARTS = ("lookups", "recall", "build", "opening", "growth")  # the last takes minutes: it indexes a million keys
K, BATCH = 30, 200
EF_SEARCH = 120  # the default for this k


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    rows: int  # made keys
    width: int
    rounds: int  # turns of each contender
    built: int  # images of the build that is timed
    queries: int  # images whose neighbours are compared with the exact ones
    image_size: int  # of what E sees, for recall
    grown: int  # made keys, 16 times as many as those they are compared with
    opened: int  # rows of the memory that is opened
    captions: int  # rows with captions of their own


FULL = Sizes(62_500, 768, 15, 1024, 1000, 64, 1_000_000, 10_000_000, 1_000_000)
QUICK = Sizes(6_000, 128, 5, 64, 100, 32, 16_000, 20_000, 20_000)


def main(arguments: Sequence[str] = ()) -> None:
    """Print one table after another."""
    parser = argparse.ArgumentParser("rac_jax.bench memory", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it runs, not how fast")
    parser.add_argument("--images", default="", help="class folders (train/, test/), or a zip of them; default: digits")
    parser.add_argument("--rows", default="", help="only the table of large memories (large.py), as 1000000,4000000")
    parser.add_argument("--indexes", default=",".join(large.INDEXES), help="with --rows: which indexes")
    parser.add_argument("--folder", default="", help="with --rows: where keys and indexes are written meanwhile")
    options = parser.parse_args(arguments)
    sizes, parts = QUICK if options.quick else FULL, options.parts or PARTS
    print(f"{os.cpu_count()} cores, {jax.device_count()} × {jax.default_backend()}")
    with tempfile.TemporaryDirectory(dir=options.folder or None) as folder:
        if options.rows:
            numbers = [int(number) for number in options.rows.split(",")]
            large.print_table(numbers, options.indexes.split(","), Path(folder))
            return
        if "lookups" in parts:
            print_lookups(sizes, Path(folder))
        if "recall" in parts or "build" in parts:
            dataset = _images(options.images, Path(folder))
        if "recall" in parts:
            print_recall(sizes, dataset)
        if "build" in parts:
            print_build(sizes, dataset, Path(folder))
        if "opening" in parts:
            opening.print_opening(sizes.opened, sizes.rounds, Path(folder) / "opened")
            opening.print_captions(sizes.captions, Path(folder) / "captions")
        if "growth" in parts:
            print_growth(sizes, Path(folder))


# What is measured against what.


def print_lookups(sizes: Sizes, folder: Path) -> None:
    """Through the callback, a step ahead, on the device; and the assembly of tokens."""
    keys = made_keys.keys(sizes.rows, sizes.width)
    memories = {kind: made.memory(folder / kind, keys, kind) for kind in ("hnsw", "flat")}
    queries = made_keys.keys(BATCH, sizes.width, seed=1)
    config, snippets = _settings(), made.snippets()
    mesh = sharding.make_mesh(config)
    graph, flat = (Lookup(memory, snippets, K, index.ef_search(config), "id") for memory in memories.values())
    own = np.full(BATCH, KEEP_ALL, np.int32)
    placed = sharding.put_batch(mesh, {"image": queries, "own": own})
    asked = placed["image"], placed["own"]
    through = callback.through_host(made.same, graph, mesh)
    on_device = {dtype: callback.on_device(made.same, flat, mesh, dtype) for dtype in ("float32", "bfloat16")}
    contenders: dict[str, Callable[[], Any]] = {
        "hnsw, FAISS alone": lambda: _faiss_alone(graph, queries),
        "hnsw, through the callback": lambda: jax.block_until_ready(through({}, *asked)),
        "flat, FAISS alone": lambda: _faiss_alone(flat, queries),
    }
    for dtype, program in on_device.items():
        contenders[f"device, {dtype}"] = functools.partial(lambda run: jax.block_until_ready(run({}, *asked)), program)
    times = race(contenders, sizes.rounds, "lookups")
    print(f"\n{BATCH} queries, k = {K} + 1, {len(keys):,} made keys × {sizes.width}: ms (median of {sizes.rounds})")
    for name, base in [
        *((n, "hnsw, FAISS alone") for n in list(times)[:2]),
        *((n, "flat, FAISS alone") for n in list(times)[2:]),
    ]:
        print(f"  {name:<28}{median(times[name]) * 1e3:>9.1f}  {ratio(times, name, base):.2f} × {base}")
    exact = flat.search(queries, own)
    for dtype, program in on_device.items():
        found = jax.device_get(program({}, *asked))
        same = agreement(found["rows"], exact.rows)
        gap = float(np.max(exact.similarities - np.sort(_cosines(queries, keys, found["rows"]))[:, ::-1]))
        print(
            f"  device, {dtype}: {same:.4f} of flat's neighbours; the others are farther by {max(gap, 0):.0e} at most"
        )
    texts = memories["hnsw"].text_of[exact.rows]
    times = race({"tokens": lambda: snippets.join(texts)}, 20 * sizes.rounds, "tokens")
    print(f"  tokens of {BATCH} × {K} texts     {median(times['tokens']) * 1e3:>9.2f}")
    print_pipelined(sizes, graph, mesh, config, queries)


def print_pipelined(sizes: Sizes, graph: Lookup, mesh: Any, config: ConfigDict, queries: np.ndarray) -> None:
    """How much of a lookup a step hides that leaves the host's cores free, as on an accelerator: here it waits."""
    retriever = made.retriever(graph, mesh)
    nothing: Any = None  # no split is cached
    own = np.full(BATCH, KEEP_ALL, np.int32)
    search = median(race({"search": lambda: graph.search(queries, own)}, sizes.rounds, "search")["search"])
    step = jax.jit(_waiting(1.2 * search))
    batches = [{"image": queries, "id": np.arange(BATCH, dtype=np.int32)}] * 30  # the first search is never hidden

    def run(lookup: str) -> None:
        config.memory.lookup = lookup
        for batch, found in feed.feed(config, retriever, mesh, nothing, batches, split="train", training=False):
            jax.block_until_ready(step(found["tokens"]))
            del batch

    def steps_alone() -> None:
        for _ in batches:
            jax.block_until_ready(step(jnp.zeros((BATCH, 2), jnp.int32)))

    contenders = {"step": steps_alone, "callback": lambda: run("callback"), "pipelined": lambda: run("pipelined")}
    times = {name: median(values) / len(batches) for name, values in race(contenders, 3, "pipelined").items()}
    hidden = 1 - (times["pipelined"] - times["step"]) / (times["callback"] - times["step"])
    print(f"  a step that waits {1e3 * times['step']:.1f} ms: with the callback {1e3 * times['callback']:.1f}, "
          f"pipelined {1e3 * times['pipelined']:.1f}: {hidden:.0%} of the lookup is hidden")  # fmt: skip


def print_recall(sizes: Sizes, dataset: Dataset) -> None:
    """How many of the 30 truly nearest each index finds, and what a query costs."""
    config = _settings(sizes.image_size)
    some = np.linspace(0, len(dataset.split("test")) - 1, sizes.queries).astype(int)
    keys = _encoded(config, dataset.split("train"))
    queries = _encoded(config, dataset.split("test").select(np.unique(some)))
    exact = index.build(index.unit(keys), {"kind": "flat", "metric": "cosine"})
    true, _ = index.search(exact, queries, K, 0)
    print(f"\nrecall@{K} on EfficientNet-Lite0's keys of {dataset.name}, {len(keys):,} × {keys.shape[1]}, "
          f"{len(queries)} test images as queries")  # fmt: skip
    for kind, ef_search in [("hnsw", 0), ("hnsw", 16), ("hnsw_sq", 0), ("ivf_sq", 0), ("ivf_rabitq", 0), ("flat", 0)]:
        config.memory.index, config.memory.ef_search = kind, ef_search
        stored = index.unit(keys).astype(index.precision(config))
        built = index.build(stored, index.spec(config))
        search = functools.partial(index.search, built, queries, K, index.ef_search(config))
        times = race({"search": search}, sizes.rounds, f"{kind}: recall")
        name = f"{kind}, efSearch {index.ef_search(config)}" if "hnsw" in kind else kind
        per_query = 1e3 * median(times["search"]) / len(queries)
        print(f"  {name:<24}{agreement(search()[0], true):>7.4f}{per_query:>9.3f} ms a query")


def print_build(sizes: Sizes, dataset: Dataset, folder: Path) -> None:
    """A whole build beside its two necessary parts: E's forward passes and FAISS's inserts."""
    size = 224 if sizes is FULL else sizes.image_size
    config = _settings(size)
    split = dataset.split("train").select(np.arange(sizes.built) % len(dataset.split("train")))
    dataset = dataclasses.replace(dataset, splits={**dataset.splits, "train": split})
    mesh = sharding.make_mesh(config)
    encoder = encoders.load(config, mesh)
    recipe = build.make_recipe(config, encoder)
    batches = list(_batches(config, dataset, "train"))
    compiled = jax.jit(encoder.encode, out_shardings=sharding.replicated(mesh))
    placed = [sharding.put_batch(mesh, {"image": batch["image"]})["image"] for batch in batches]
    keys = np.concatenate([np.asarray(compiled(encoder.parameters, images)) for images in placed])[: len(split)]

    def necessary() -> None:
        for images in placed:
            jax.block_until_ready(compiled(encoder.parameters, images))
        graph = faiss.IndexHNSWFlat(keys.shape[1], config.memory.hnsw_m, faiss.METRIC_INNER_PRODUCT)
        graph.hnsw.efConstruction = config.memory.ef_construction
        graph.add(index.unit(keys))

    def whole() -> None:
        shutil.rmtree(folder / "built", ignore_errors=True)
        content = sources.of_split(dataset, "train")
        build.add(config, recipe, "train", content, encoder, folder=folder / "built", mesh=mesh)

    times = race({"forward and insert": necessary, "build": whole}, 2, "build")
    seconds, against = median(times["build"]), ratio(times, "build", "forward and insert")
    print(
        f"\na memory of {len(split)} images of {dataset.name}, {size} pixels, batches of {config.memory.encode_batch}"
    )
    print(f"  built in {seconds:.1f} s, {against:.2f} × E's forward passes and FAISS's inserts")


def print_growth(sizes: Sizes, folder: Path) -> None:
    """What 16 times as many keys cost, in time and bytes."""
    width, few = 128, sizes.grown // 16
    spec = {"kind": "hnsw_sq", "metric": "cosine", "m": 32, "ef_construction": 40}
    queries = made_keys.keys(BATCH, width, seed=1)
    contenders: dict[str, Callable[[], Any]] = {}
    print(f"\n{few:,} and {sizes.grown:,} made keys × {width}, {BATCH} queries, k = {K} + 1")
    for rows in (few, sizes.grown):
        keys = made_keys.keys(rows, width).astype(np.float16)
        started = time.perf_counter()
        graph = index.build(keys, spec)
        seconds = time.perf_counter() - started
        flat = index.build(keys.astype(np.float32), {"kind": "flat", "metric": "cosine"})
        contenders[f"hnsw_sq {rows}"] = functools.partial(index.search, graph, queries, K + 1, EF_SEARCH)
        contenders[f"flat {rows}"] = functools.partial(index.search, flat, queries, K + 1, 0)
        recall = agreement(contenders[f"hnsw_sq {rows}"]()[0], contenders[f"flat {rows}"]()[0])
        print(f"  hnsw_sq of {rows:,}: built in {seconds:.0f} s, recall@{K + 1} {recall:.4f}")
    times = race(contenders, sizes.rounds, "growth")
    for kind in ("hnsw_sq", "flat"):
        small, large = f"{kind} {few}", f"{kind} {sizes.grown}"
        before, after = (1e3 * median(times[name]) / BATCH for name in (small, large))
        print(
            f"  {kind:<8} {before:.3f} -> {after:.3f} ms a query, {ratio(times, large, small):.1f} × for 16 × the keys"
        )
    graph.write(folder / "index")
    links = (folder / "index").stat().st_size / sizes.grown  # a row's, whatever its key's width
    total = 1e6 * (links + 768 * 2) / 1e9
    print(f"  a million float16 keys × 768, once, and {links:.0f} bytes of links a row: {total:.2f} GB")


def agreement(found: np.ndarray, true: np.ndarray) -> float:
    """Which share of the true neighbours [B, k] was found."""
    return float(np.mean([len(np.intersect1d(a, b)) / len(b) for a, b in zip(found, true, strict=True)]))


# What is measured on.


def _cosines(queries: np.ndarray, keys: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return np.einsum("bd,bkd->bk", index.unit(queries), keys[rows])


def _faiss_alone(lookup: Lookup, queries: np.ndarray) -> None:
    finder = lookup.memory.index.finder
    params = None
    if isinstance(finder, faiss.IndexHNSW):
        params = faiss.SearchParametersHNSW(efSearch=lookup.ef_search)
    finder.search(queries, K + 1, params=params)


def _waiting(seconds: float) -> Callable[[jax.Array], jax.Array]:
    def wait(tokens: Any) -> np.ndarray:
        time.sleep(seconds)
        return np.zeros((), np.int32)

    return lambda tokens: jax.pure_callback(wait, jax.ShapeDtypeStruct((), jnp.int32), tokens)


def _settings(image_size: int = 64) -> ConfigDict:
    config = configs.default()
    config.data.image_size, config.data.crop = image_size, 1.0
    config.model.encoder.update(name="efficientnet_lite0", weights="efficientnet_lite0:imagenet")
    config.model.dtype = "float32"
    config.memory.k = K
    return config


def _images(path: str, folder: Path) -> Dataset:
    config = _settings()
    if path:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                archive.extractall(folder / "images")
            path = str(folder / "images")
        config.data.name, config.data.root = "folder", path
    else:
        print("no --images given: recall and build are measured on scikit-learn's digits")
    return data.load(config)


def _batches(config: ConfigDict, dataset: Dataset, split: str) -> Iterator[dict[str, np.ndarray]]:
    size = config.memory.encode_batch
    return pipeline.eval_batches(dataset.split(split), data.eval_transform(config), batch_size=size)


def _encoded(config: ConfigDict, images: Split) -> np.ndarray:
    mesh = sharding.make_mesh(config)
    encoder = encoders.load(config, mesh)
    return build.encode_split(config, images, encoder, mesh)
