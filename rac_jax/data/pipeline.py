"""Batches of examples with Grain: deterministic, resumable, the same for any number of processes.

A batch is a dict: image uint8 [b, S, S, 3], label int32 [b], id int32 [b] (the position in the
split) and mask bool [b] (False for padding: in a last batch, and where a batch does not divide among the devices). b is
this process's share of the batch.
"""

import atexit
import contextlib
import dataclasses
import functools
import gc
import os
import weakref
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import jax
import numpy as np

from rac_jax.data.dataset import Split
from rac_jax.data.transforms import Transform

if TYPE_CHECKING:
    import grain  # elsewhere imported by the functions that need it: 0.2 s that a prediction does not need

Batch = dict[str, np.ndarray]
ENDLESS = 2**40  # batches
MOST_THREADS = 16


@dataclasses.dataclass(frozen=True)
class Examples:
    """Position in the global stream of examples -> example. It has no state, so every worker computes the same.

    A training stream is one shuffled epoch after another. The random numbers of an example depend only on the seed and
    its place in the stream, not on workers, processes or devices.
    """

    split: Split
    transform: Transform | None  # None: without images, for training on keys
    seed: int | None  # None: in order, for evaluation
    views: int = 0  # of each image, used in turn: the example says which one; 0 = it does not
    draw: int = 0  # in order: the seed of the random numbers

    def __call__(self, place: int) -> Batch:
        epoch, position = divmod(place, len(self.split))
        if self.seed is not None:
            import grain

            seed = epoch_seed(self.seed, epoch)
            last = len(self.split) - 1
            position = grain.experimental.index_shuffle(position, max_index=last, seed=seed, rounds=4)
        inside = self.seed is not None or epoch == 0  # evaluation pads by starting over, masked
        example = {
            "label": np.asarray(self.split.labels[position], np.int32),
            "id": np.asarray(position, np.int32),
            "mask": np.asarray(inside),
        }
        if self.views:
            example["view"] = np.asarray((epoch + position) % self.views, np.int32)
        if self.transform is not None:
            example["image"] = self.transform(self.split.images[position], self.random(place))
        return example

    def random(self, place: int) -> np.random.Generator:
        """The random numbers for a place in the stream."""
        return np.random.Generator(np.random.Philox(key=[self.seed or self.draw, place]))


@functools.lru_cache(maxsize=4)
def epoch_seed(seed: int, epoch: int) -> int:
    """A seed of its own for each epoch."""
    return int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0])


@dataclasses.dataclass(frozen=True)
class Batches:
    """Number of a batch -> this process's share of it: a slice of the global batch.

    The global batch is filled up to `rows` with copies of its first examples, which are masked.
    """

    examples: Examples
    batch_size: int
    rows: int
    process: int
    processes: int

    def __call__(self, number: int) -> Batch:
        share = self.rows // self.processes
        batch: Batch = {}
        for row in range(share):
            again, place = divmod(self.process * share + row, self.batch_size)
            for name, value in self.examples(number * self.batch_size + place).items():
                if row == 0:
                    batch[name] = np.empty((share, *value.shape), value.dtype)
                batch[name][row] = value
            batch["mask"][row] &= not again
        return batch


def train_batches(
    split: Split,
    transform: Transform | None,
    *,
    batch_size: int,
    seed: int,
    workers: int,
    start: int = 0,
    rows: int | None = None,
    views: int = 0,
    process: int | None = None,
    processes: int | None = None,
) -> Iterator[Batch]:
    """Endless shuffled batches from batch number `start` on.

    A batch depends only on the seed and its number. So a checkpoint needs to store nothing but the step, and a run may
    continue with another number of workers or processes. If `rows` is given, a batch is filled up to it with masked
    examples. With `views`, it also has view int32 [b]: which of an image's views to use. `process` and `processes` are
    JAX's by default.
    """
    batches = _of_process(Examples(split, transform, seed, views), batch_size, rows or batch_size, process, processes)
    return _iterate(batches, start, ENDLESS, workers)


def eval_batches(
    split: Split,
    transform: Transform | None,
    *,
    batch_size: int,
    workers: int = 0,
    draw: int = 0,
    process: int | None = None,
    processes: int | None = None,
) -> Iterator[Batch]:
    """Every image of the split once, in order; the last batch is padded and masked. `draw` seeds the transform."""
    batches = _of_process(Examples(split, transform, None, draw=draw), batch_size, batch_size, process, processes)
    return _iterate(batches, 0, -(-len(split) // batch_size), workers)


def _of_process(examples: Examples, size: int, rows: int, process: int | None, processes: int | None) -> Batches:
    if process is None or processes is None:
        process, processes = jax.process_index(), jax.process_count()
    if rows % processes:
        raise ValueError(f"a batch of {rows} rows does not divide among {processes} processes")
    return Batches(examples, size, rows, process, processes)


def _iterate(batches: Batches, first: int, last: int, workers: int) -> Iterator[Batch]:
    import grain

    # The unit of work is a batch: a thread or worker process makes complete ones.
    threads = 1 if workers else min(os.cpu_count() or 1, MOST_THREADS)
    reading = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=threads + 1)
    result = grain.MapDataset.range(first, last).map(batches).to_iter_dataset(reading)
    if not workers:
        return iter(result)
    shared = result.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
    iterator = _until_closed(iter(shared.map(_own)))
    atexit.register(_release_shared_memory)
    atexit.register(_close, weakref.ref(iterator))
    return iterator


def _until_closed(batches: "grain.DatasetIterator") -> Generator[Batch, None, None]:
    """The batches. At their end, after an error or when nobody needs them any more, workers and memory are released."""
    try:
        yield from batches
    finally:
        batches.close()
        _release_shared_memory()


def _release_shared_memory() -> None:
    """Wait until Grain has freed the batches that nobody took. It does so in a thread, which exit would interrupt."""
    from grain._src.python.ipc.shared_memory_array import SharedMemoryArray  # has no public name

    gc.collect()  # some arrays are in reference cycles
    pool = getattr(SharedMemoryArray, "_del_thread_pool", None)
    if pool is not None:
        pool.apply(int)  # it has one thread, so everything before this is done when it returns


def _own(batch: Batch) -> Batch:
    """A copy outside the memory shared with a worker, which is released at once.

    Grain releases it when the last reference to an array is gone, which may be too late when the process ends.
    """
    from grain._src.python.ipc.shared_memory_array import SharedMemoryArray

    copies = {name: np.array(values) for name, values in batch.items()}
    for values in batch.values():
        if isinstance(values, SharedMemoryArray) and values._unlink_on_del:
            values._unlink_on_del = False
            values.shm.unlink()
    return copies


def _close(iterator: "weakref.ref[Generator[Batch, None, None]]") -> None:
    """Stop the workers of an iterator that is still in use when the process ends."""
    alive = iterator()
    if alive is not None:
        with contextlib.suppress(ValueError):  # a thread is waiting for the next batch
            alive.close()
