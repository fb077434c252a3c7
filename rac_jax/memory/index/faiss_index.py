"""FAISS indexes over keys that stay in their file.

kind        finds a query's neighbours                     stores, beside the keys
flat        exactly, by reading all keys                   nothing
hnsw        along a graph of links between neighbours      4 · 2m bytes a row and a little more
hnsw_sq     the same, over float16 keys                    the same
ivf_sq      by reading the lists with the nearest centres  each key again, in float16
ivf_rabitq  the same, then compares the best with the keys a bit for each number of a key, and 16 bytes a row

Keys are stored once, in the memory's key file. FAISS reads them in place; an index file holds only the graph or lists.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from tqdm import tqdm

METRICS = {"cosine": faiss.METRIC_INNER_PRODUCT, "l2": faiss.METRIC_L2}
HALF = faiss.ScalarQuantizer.QT_fp16
CHUNK = 2**16  # keys that are converted to float32 at once
SAME_GRAPH_UP_TO = 20_000  # rows: built by one thread; with more threads, links depend on which comes first
LISTS = ("ivf_sq", "ivf_rabitq")
LEARNT_FROM, ROUNDS = 40, 6  # keys for each list, and rounds of k-means, when centres are learnt
RERANKED, FEWEST_RERANKED = 8, 64  # if lists hold bits, 8 k candidates are compared with the keys, and at least 64
FEWEST_PROBES = 16  # lists that a search reads: twice the root of their number, and at least so many
WIDEST = 16  # times as many candidates as usual, when only some of the rows are allowed; beyond, all allowed are read


@dataclasses.dataclass
class FaissIndex:
    """An open index."""

    spec: dict[str, Any]
    finder: Any  # the graph or the lists; for flat, `exact` itself
    exact: Any  # all keys, compared one by one
    keys: np.ndarray  # what `exact` reads in place

    def __post_init__(self) -> None:
        self._selected: tuple[np.ndarray, Any, int] | None = None

    @property
    def width(self) -> int:
        return self.exact.d

    def __len__(self) -> int:
        return self.finder.ntotal

    def find(
        self, queries: np.ndarray, k: int, ef_search: int, allowed: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """See `index.search`; the queries are float32, contiguous, and of unit length for cosine."""
        selector, count = (None, len(self)) if allowed is None else self._selection(allowed)
        read_all = faiss.SearchParameters(sel=selector)
        if self.finder is self.exact or count * WIDEST < len(self):
            distances, rows = self.exact.search(queries, k, params=read_all)
        else:
            wider = len(self) / max(count, 1)  # candidates that are not allowed take up room too
            distances, rows = self._search(queries, k, self._parameters(ef_search, wider, selector))
            short = np.flatnonzero((rows >= 0).sum(axis=1) < min(k, count))
            if len(short):
                distances[short], rows[short] = self.exact.search(queries[short], k, params=read_all)
        return rows, -distances if self.exact.metric_type == faiss.METRIC_L2 else distances

    def _search(self, queries: np.ndarray, k: int, parameters: Any) -> tuple[np.ndarray, np.ndarray]:
        if not isinstance(self.finder, faiss.IndexIVFRaBitQ):
            return self.finder.search(queries, k, params=parameters)
        both = faiss.IndexRefine(self.finder, self.exact)
        factor = max(RERANKED, FEWEST_RERANKED / k)
        reranked = faiss.IndexRefineSearchParameters(k_factor=factor, base_index_params=parameters)
        return both.search(queries, k, params=reranked)

    def _parameters(self, ef_search: int, wider: float, selector: Any) -> Any:
        if isinstance(self.finder, faiss.IndexHNSW):
            return faiss.SearchParametersHNSW(efSearch=round(wider * ef_search), sel=selector)
        lists = self.finder.nlist
        probes = min(lists, round(wider * max(FEWEST_PROBES, 2 * lists**0.5)))
        return faiss.SearchParametersIVF(nprobe=probes, sel=selector)

    def _selection(self, allowed: np.ndarray) -> tuple[Any, int]:
        """FAISS's selector of the allowed rows and their number; made once for an array that comes again."""
        selected = self._selected  # several threads may search
        if selected is None or selected[0] is not allowed:
            selector = faiss.IDSelectorBitmap(np.packbits(allowed, bitorder="little"))
            selected = self._selected = allowed, selector, int(np.count_nonzero(allowed))
        return selected[1:]

    def add(self, every: np.ndarray) -> None:
        """Add the keys of `every` [N, D] that come after the last one. The index must be new, or opened as writable."""
        new, exact = every[len(self) :], _in_place(every, self.exact.metric_type)
        if isinstance(self.finder, faiss.IndexHNSW):
            copy = _added(_empty(self.width, every.dtype, exact.metric_type), self.keys)  # FAISS adds to it
            self.finder.storage = copy
            _added(self.finder, new)
            self.finder.storage = exact
        elif self.finder is not self.exact:
            _added(self.finder, new)
        self.finder = exact if self.finder is self.exact else self.finder
        self.exact, self.keys = exact, every

    def write(self, path: Path) -> None:
        """What it adds to the keys, in one file."""
        if self.finder is self.exact:
            faiss.write_index(_empty(self.width, np.dtype(np.float32), self.exact.metric_type), str(path))
        else:
            faiss.write_index(self.finder, str(path), faiss.IO_FLAG_SKIP_STORAGE)


def build(keys: np.ndarray, kind: str, spec: dict[str, Any]) -> FaissIndex:
    """An index of keys [N, D], as a memory keeps them."""
    metric, width = METRICS[spec["metric"]], keys.shape[1]
    exact = _in_place(keys, metric)
    if kind == "flat":
        return FaissIndex(spec, exact, exact, keys)
    if kind in LISTS:
        return FaissIndex(spec, _added(_trained_lists(keys, kind, metric), keys), exact, keys)
    if keys.dtype == np.float16:
        graph: faiss.IndexHNSW = faiss.IndexHNSWSQ(width, HALF, spec["m"], metric)
    else:
        graph = faiss.IndexHNSWFlat(width, spec["m"], metric)
    graph.hnsw.efConstruction = spec["ef_construction"]
    _added(graph, keys)
    copy = faiss.downcast_index(graph.storage)
    copy.this.own(True)  # it goes with this name
    return _over(graph, exact, keys, spec)


def read(path: Path, keys: np.ndarray, kind: str, spec: dict[str, Any], *, writable: bool) -> FaissIndex:
    """The index in a file over its memory's keys [N, D], all of it mapped unless it is to be added to."""
    metric = METRICS[spec["metric"]]
    exact = _in_place(keys, metric)
    if kind == "flat":
        return FaissIndex(spec, exact, exact, keys)
    if kind in LISTS:
        lists = faiss.read_index(str(path), 0 if writable else faiss.IO_FLAG_MMAP)
        return FaissIndex(spec, lists, exact, keys)
    graph = faiss.read_index(str(path), 0 if writable else faiss.IO_FLAG_MMAP_IFC)
    return _over(graph, exact, keys, spec)


def _over(graph: faiss.IndexHNSW, exact: faiss.Index, keys: np.ndarray, spec: dict[str, Any]) -> FaissIndex:
    """A graph whose keys are read in place."""
    graph.storage, graph.own_fields = exact, False
    return FaissIndex(spec, graph, exact, keys)


def _empty(width: int, dtype: np.dtype, metric: int) -> faiss.Index:
    if dtype == np.float16:
        return faiss.IndexScalarQuantizer(width, HALF, metric)
    return faiss.IndexFlat(width, metric)


def _in_place(keys: np.ndarray, metric: int) -> faiss.Index:
    """All keys as an index that reads them in place; they must outlive it."""
    if not keys.flags.c_contiguous:
        raise ValueError("keys must be one contiguous array")
    exact = _empty(keys.shape[1], keys.dtype, metric)
    codes = faiss.MaybeOwnedVectorUInt8
    nobody = codes()  # has no owner, as a view of memory that FAISS does not own needs
    address = faiss.cast_integer_to_void_ptr(keys.ctypes.data)
    exact.codes = codes.create_view(address, keys.nbytes, nobody.owner)
    exact.ntotal = len(keys)
    return exact


def _trained_lists(keys: np.ndarray, kind: str, metric: int) -> faiss.Index:
    """Empty lists, 4 √N of them but none too short, around the centres of a sample of the keys, if there are any."""
    width, number = keys.shape[1], max(1, min(round(4 * len(keys) ** 0.5), len(keys) // LEARNT_FROM))
    centres = faiss.IndexFlat(width, metric)
    if kind == "ivf_rabitq":
        lists: faiss.IndexIVF = faiss.IndexIVFRaBitQ(centres, width, number, metric)
    else:
        lists = faiss.IndexIVFScalarQuantizer(centres, width, number, HALF, metric, False)
    lists.cp.niter = ROUNDS
    if len(keys):
        lists.train(np.ascontiguousarray(keys[:: max(1, len(keys) // (LEARNT_FROM * number))], np.float32))
    return lists


def _added(index: faiss.Index, keys: np.ndarray) -> faiss.Index:
    """The index after `keys` were added to it, a part at a time."""
    with _threads(1 if index.ntotal + len(keys) <= SAME_GRAPH_UP_TO else faiss.omp_get_max_threads()):
        parts = range(0, len(keys), CHUNK)
        for start in tqdm(parts, desc="memory: index", unit_scale=CHUNK, unit="key", disable=len(parts) < 2):
            index.add(np.ascontiguousarray(keys[start : start + CHUNK], np.float32))
    return index


@contextlib.contextmanager
def _threads(number: int) -> Iterator[None]:
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(number)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)
