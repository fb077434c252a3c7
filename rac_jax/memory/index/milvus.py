"""The keys of a memory in a Milvus collection, searched over the network: for more keys than one machine can hold.

The memory's folder is the same as for FAISS, except that the index file only names the collection. The collection has
the fields `row`, the primary key, and `key`. Rows are written by number, so an interrupted change can be repeated. What
it left over (rows after the memory's last, or a collection that no memory names) is never read and may be dropped.

Sources are ranges of rows, so enabled sources are a short filter. Rows kept at random would be a filter as long as the
memory: then more rows are requested, and those that are not kept are dropped here. If few rows are kept, they are
compared here, with the keys in the memory's own file.
"""

import dataclasses
import json
import logging
import os
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from tqdm import tqdm

from rac_jax.memory.index import faiss_index
from rac_jax.memory.index.faiss_index import FaissIndex
from rac_jax.memory.index.left_out import leave_out

WRITTEN, ASKED = 2_000, 1_000  # rows, queries in one call
ANSWERED = 200_000  # rows in one answer, at most
MOST_RANGES = 64  # in a filter
MOST_ROWS = 16_384  # that Milvus finds for a query
FEW = 16  # if fewer than one row in so many is kept, these are compared here
TRANSIENT = (1, 2, 4, 5, 8)  # Milvus's codes for not ready, unavailable, too many requests, internal error, rate limit
WAITS = (0.5, 1.0, 2.0, 4.0, 8.0)  # seconds between attempts
TIMEOUT = 30.0  # seconds for one attempt
NOT_FOUND = 100  # Milvus's code for a collection that is not there
METRICS = {"cosine": "COSINE", "l2": "L2"}

T = TypeVar("T")


class MilvusFailed(RuntimeError):
    """The server does not answer, or not as it should; the message says what would help."""


@dataclasses.dataclass
class MilvusIndex:
    """The rows of a memory in a collection."""

    spec: dict[str, Any]
    collection: str
    client: Any
    exact: FaissIndex  # the memory's own keys, where few rows are allowed
    more_there: bool = False  # rows in the collection that are not, or not yet, the memory's

    def __post_init__(self) -> None:
        self._described: tuple[np.ndarray, str | None, int] | None = None

    def __len__(self) -> int:
        return len(self.exact)

    @property
    def width(self) -> int:
        return self.exact.width

    def find(
        self, queries: np.ndarray, k: int, ef_search: int, allowed: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """See `index.search`; the server searches its own graph."""
        mine = f"row < {len(self)}" if self.more_there else ""
        expression, count = (mine, len(self)) if allowed is None else self._description(allowed)
        if expression is not None:
            return self._search(queries, k, ef_search, expression)
        assert allowed is not None
        if count * FEW < len(self) or k > MOST_ROWS:
            return self.exact.find(queries, k, ef_search, allowed)
        limit = max(min(2 * k * len(self) // count, MOST_ROWS), k)
        rows, similarities = self._search(queries, limit, ef_search, mine)
        rows, similarities = leave_out(rows, similarities, (rows < 0) | ~allowed[rows], k)
        short = np.flatnonzero((rows >= 0).sum(axis=1) < min(k, count))
        if len(short):
            rows[short], similarities[short] = self.exact.find(queries[short], k, ef_search, allowed)
        return rows, similarities

    def _description(self, allowed: np.ndarray) -> tuple[str | None, int]:
        """The expression for the allowed rows, if a short one will do, and their number; made once for an array."""
        described = self._described  # several threads may search
        if described is None or described[0] is not allowed:
            described = self._described = allowed, within(allowed, MOST_RANGES), int(np.count_nonzero(allowed))
        return described[1:]

    def _search(self, queries: np.ndarray, k: int, ef_search: int, expression: str) -> tuple[np.ndarray, np.ndarray]:
        """The k nearest of the rows that the expression describes, in calls of a bounded size."""
        rows = np.full((len(queries), k), -1, np.int64)
        similarities = np.zeros((len(queries), k), np.float32)
        asked = max(1, min(ASKED, ANSWERED // k))
        for start in range(0, len(queries), asked):
            hits = self._ask(
                "search",
                data=list(queries[start : start + asked]),
                limit=k,
                filter=expression,
                output_fields=["row"],
                search_params={"params": {"ef": max(ef_search, k)}},
            )
            for number, hit in enumerate(hits, start):
                rows[number, : len(hit.ids)] = hit.ids
                similarities[number, : len(hit.ids)] = hit.distances
        return rows, similarities if self.spec["metric"] == "cosine" else -similarities

    def add(self, every: np.ndarray) -> None:
        """The keys of `every` [N, D] after the last row's; each gets its row in `every`."""
        starts = range(len(self), len(every), WRITTEN)
        for start in tqdm(starts, desc="milvus: write", unit_scale=WRITTEN, unit="row", disable=len(starts) < 10):
            part = np.asarray(every[start : start + WRITTEN], np.float32)
            self._ask("upsert", data=[{"row": row, "key": key} for row, key in enumerate(part, start)])
        self._ask("flush")
        self.exact.add(every)

    def write(self, path: Path) -> None:
        """Where the collection is."""
        path.write_text(json.dumps({"uri": self.spec["uri"], "collection": self.collection}) + "\n")

    def _count(self, among: str) -> int:
        return self._ask("query", filter=among, output_fields=["count(*)"])[0]["count(*)"]

    def _ask(self, method: str, **arguments: Any) -> Any:
        arguments |= {"collection_name": self.collection, "timeout": TIMEOUT}
        return _patiently(self.spec["uri"], lambda: getattr(self.client, method)(**arguments))


def build(keys: np.ndarray, spec: dict[str, Any]) -> MilvusIndex:
    """A new collection of keys [N, D]."""
    client, name = _connect(spec["uri"]), f"rac_jax_{uuid.uuid4().hex}"  # an error message if the package is missing
    from pymilvus import DataType, MilvusClient

    schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("row", DataType.INT64, is_primary=True)
    schema.add_field("key", DataType.FLOAT_VECTOR, dim=keys.shape[1])
    graph = client.prepare_index_params()
    params = {"M": spec["m"], "efConstruction": spec["ef_construction"]}
    graph.add_index("key", index_type="HNSW", metric_type=METRICS[spec["metric"]], params=params)
    create = {"schema": schema, "index_params": graph, "consistency_level": "Strong", "timeout": TIMEOUT}
    _patiently(spec["uri"], lambda: client.create_collection(name, **create))
    index = MilvusIndex(spec, name, client, faiss_index.build(keys[:0], "flat", spec))
    index.add(keys)
    return index


def read(path: Path, keys: np.ndarray, spec: dict[str, Any]) -> MilvusIndex:
    """The collection that a file names, which must hold a row for each of the memory's keys [N, D]."""
    name = json.loads(path.read_text())["collection"]
    index = MilvusIndex(spec, name, _connect(spec["uri"]), faiss_index.build(keys, "flat", spec))
    index._ask("load_collection")
    there = index._count(f"row < {len(keys)}")
    if there != len(keys):
        raise MilvusFailed(f"{spec['uri']} holds {there} of the {len(keys)} rows of {name}; rebuild the memory")
    index.more_there = index._count("") > len(keys)
    return index


def within(allowed: np.ndarray, most: int) -> str | None:
    """Milvus's expression for the allowed rows [N]; None if they are more than so many ranges."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], allowed, [False]]).astype(np.int8)))
    if len(edges) > 2 * most:
        return None
    ranges = [f"(row >= {start} and row < {stop})" for start, stop in edges.reshape(-1, 2)]
    return " or ".join(ranges) or "row < 0"


def _connect(uri: str) -> Any:
    try:
        from pymilvus import MilvusClient
    except ImportError as error:
        raise MilvusFailed(
            "config.memory.index is 'milvus', which needs: pip install -r requirements-milvus.txt"
        ) from error
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # errors are raised, so they need not be logged too
    token = os.environ.get("MILVUS_TOKEN", "")
    return _patiently(uri, lambda: MilvusClient(uri=uri, token=token, timeout=TIMEOUT))


def _patiently(uri: str, ask: Callable[[], T]) -> T:
    """The server's answer. Requests that may succeed later are repeated, with increasing waits."""
    from pymilvus.exceptions import MilvusException

    for wait in (*WAITS, None):
        try:
            return ask()
        except MilvusException as error:
            if error.code == NOT_FOUND:
                raise MilvusFailed(f"{uri} has no such collection ({error}); rebuild the memory") from error
            if not _is_transient(error):
                raise MilvusFailed(f"{uri} refuses a request ({error})") from error
            if wait is None:
                raise MilvusFailed(
                    f"the Milvus server at {uri} does not answer ({error}); "
                    "start it, or name another in config.memory.milvus_uri"
                ) from error
            time.sleep(wait)
    raise AssertionError("not reached")


def _is_transient(error: Any) -> bool:
    """May the same request succeed later?"""
    from pymilvus import exceptions

    if isinstance(error, exceptions.MilvusUnavailableException | exceptions.ConnectError):
        return True
    plain = type(error) is exceptions.MilvusException and not error.is_input_error
    return error.retriable or (plain and error.code in TRANSIENT)
