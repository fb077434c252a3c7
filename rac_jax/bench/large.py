"""Large memories: what indexes over made keys take to build, to keep and to search, and what they find.

Each index is built in a process of its own, as a memory builds it: from keys in a mapped file into a file of its own,
which is then opened mapped and searched.
"""

import dataclasses
import functools
import multiprocessing
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from tqdm import tqdm

from rac_jax.bench.race import median, race
from rac_jax.memory import index
from rac_jax.memory import made as made_keys

INDEXES = ("hnsw_sq", "ivf_sq", "ivf_rabitq")
WIDTH, K, QUERIES, EF_SEARCH = 768, 31, 200, 120  # k = 30 and the query itself, as a lookup asks for them
ROUNDS = 3
CALCULATED = (11_200_000, 100_000_000)  # rows that the last lines of the table are calculated for
# How the seconds of building and of a query grow with the rows, as exponents. A graph's are those from 250,000 to a
# million rows. Lists, of which there are 4 √N, are built by comparing each key with all centres, and 2 √lists of them
# are read for a query.
GROWTH = {"hnsw_sq": (1.35, 0.2), "ivf_sq": (1.5, 0.75), "ivf_rabitq": (1.5, 0.75)}


@dataclasses.dataclass(frozen=True)
class Figures:
    """Of one index over so many keys."""

    kind: str
    rows: int
    built: float  # seconds, without those of writing it
    building: int  # bytes of memory beside the mapped keys, at most
    bytes: int  # of its file
    searched: float  # seconds for a query
    recall: float | None  # None if calculated


def print_table(rows: Sequence[int], kinds: Sequence[str], folder: Path) -> None:
    """Measure every index at every size and print the table line by line."""
    threads = faiss.omp_get_max_threads()
    print(f"\nmade float16 keys × {WIDTH}, {QUERIES} queries, k = {K}, efSearch {EF_SEARCH}, {threads} threads")
    print(
        "| index | rows | keys, GB | index, GB | RAM to search, GB | RAM to build, GB | built | ms a query | recall |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    last = {}
    for number in sorted(rows):
        keys = _write_keys(number, folder / f"keys-{number}.bin")
        nearest = _in_a_process(_exact, keys, number)
        for kind in kinds:
            last[kind] = _in_a_process(measure, kind, keys, number, nearest)
            print(line(last[kind]), flush=True)
        keys.unlink()
    for found in last.values():
        for number in CALCULATED:
            if number > found.rows:
                print(line(calculated(found, number)))


def line(found: Figures) -> str:
    """A row of the table. RAM to search is what a query may touch: with lists of bits, the keys can stay on disk."""
    keys = found.rows * WIDTH * 2
    ram = found.bytes + (keys if found.kind == "hnsw_sq" else 0)
    seconds = f"{found.built:,.0f} s" if found.built < 3600 else f"{found.built / 3600:.1f} h"
    sizes = " | ".join(f"{size / 1e9:.2f}" for size in (keys, found.bytes, ram, found.building))
    recall = "calculated" if found.recall is None else f"{found.recall:.4f}"
    return f"| {found.kind} | {found.rows:,} | {sizes} | {seconds} | {1e3 * found.searched:.2f} | {recall} |"


def calculated(found: Figures, rows: int) -> Figures:
    """The same index over more rows, by its bytes a row and the exponents of GROWTH.

    While lists are built there are a sample of the keys, which grows as the number of lists, and the lists.
    """
    times = rows / found.rows
    building, searching = GROWTH[found.kind]
    spare = max(found.building - found.bytes, 0) * (times if found.kind == "hnsw_sq" else times**0.5)
    return dataclasses.replace(
        found,
        rows=rows,
        built=found.built * times**building,
        building=round(spare + found.bytes * times),
        bytes=round(found.bytes * times),
        searched=found.searched * times**searching,
        recall=None,
    )


def measure(kind: str, path: Path, rows: int, nearest: np.ndarray) -> Figures:
    """Build an index over the keys in a file, write it, open it and search it."""
    keys, queries = _mapped(path, rows), made_keys.keys(QUERIES, WIDTH, seed=1)
    spec = {"kind": kind, "metric": "cosine"} | ({"m": 32, "ef_construction": 40} if kind == "hnsw_sq" else {})
    file = path.with_suffix(".faiss")
    started = time.perf_counter()
    built, memory = peak_of(lambda: index.build(keys, spec))
    seconds = time.perf_counter() - started
    built.write(file)
    del built
    opened = index.read(file, keys, spec)
    search = functools.partial(index.search, opened, queries, K, EF_SEARCH)
    searched = median(race({kind: search}, ROUNDS, f"{kind}: search")[kind]) / QUERIES
    found, size = search()[0], file.stat().st_size
    file.unlink()
    recall = np.mean([len(np.intersect1d(a, b)) / K for a, b in zip(found, nearest, strict=True)])
    return Figures(kind, rows, seconds, memory, size, searched, float(recall))


def peak_of(work: Callable[[], Any]) -> tuple[Any, int]:
    """What `work` returns, and the most bytes of memory, mapped files left out, that it had meanwhile beyond before."""
    before, done = _anonymous(), threading.Event()
    most = before

    def watch() -> None:
        nonlocal most
        while not done.wait(0.2):
            most = max(most, _anonymous())

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        result = work()
    finally:
        done.set()
        watching.join()
    return result, max(most, _anonymous()) - before


def _anonymous() -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("RssAnon:")[2].split()[0])


def _write_keys(rows: int, path: Path) -> Path:
    with path.open("wb") as file, tqdm(total=rows, desc="keys", unit="key", leave=False) as bar:
        for part in made_keys.parts(rows, WIDTH):
            file.write(part.astype(np.float16).tobytes())
            bar.update(len(part))
    return path


def _exact(path: Path, rows: int) -> np.ndarray:
    """The true neighbours of the queries, [QUERIES, K]."""
    flat = index.build(_mapped(path, rows), {"kind": "flat", "metric": "cosine"})
    return index.search(flat, made_keys.keys(QUERIES, WIDTH, seed=1), K, 0)[0]


def _mapped(path: Path, rows: int) -> np.ndarray:
    return np.memmap(path, np.float16, "r", shape=(rows, WIDTH))


def _in_a_process(work: Callable, *arguments: Any) -> Any:
    """work(*arguments) in a new process, whose memory is its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(work, *arguments).result()
