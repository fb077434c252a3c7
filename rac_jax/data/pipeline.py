"""Batches of examples, on Grain: deterministic, resumable, the same for any number of processes.

A batch is a dict: image uint8 [b, S, S, 3], label int32 [b], id int32 [b] (the position in the
split) and mask bool [b] (False for the padding of a last batch). b is this process's share of it.
"""

import dataclasses
from collections.abc import Iterator

import grain
import jax
import numpy as np

from rac_jax.data.dataset import Split
from rac_jax.data.transforms import Transform

Batch = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Examples:
    """Position in the global stream of examples -> example. Holds no state, so any worker agrees.

    A training stream is one shuffled epoch after another; what is drawn for an example depends on
    the seed and its place in the stream alone: not on workers, processes or devices.
    """

    split: Split
    transform: Transform
    seed: int | None  # None: in order, for evaluation

    def __call__(self, place: int) -> Batch:
        epoch, position = divmod(place, len(self.split))
        if self.seed is not None:
            epoch_seed = int(np.random.SeedSequence([self.seed, epoch]).generate_state(1)[0])
            position = grain.experimental.index_shuffle(
                position, max_index=len(self.split) - 1, seed=epoch_seed, rounds=4
            )
        inside = self.seed is not None or epoch == 0  # evaluation pads by starting over, masked
        image = self.transform(self.split.images[position], self._random(place))
        return {
            "image": image,
            "label": np.asarray(self.split.labels[position], np.int32),
            "id": np.asarray(position, np.int32),
            "mask": np.asarray(inside),
        }

    def _random(self, place: int) -> np.random.Generator:
        return np.random.Generator(np.random.Philox(key=[self.seed or 0, place]))


@dataclasses.dataclass(frozen=True)
class ProcessShare:
    """Place in this process's stream -> place in the global one: a slice of every global batch."""

    batch_size: int
    process: int
    processes: int

    @property
    def local_batch(self) -> int:
        return self.batch_size // self.processes

    def __call__(self, place: int) -> int:
        batch, offset = divmod(place, self.local_batch)
        return batch * self.batch_size + self.process * self.local_batch + offset


def train_batches(
    split: Split, transform: Transform, *, batch_size: int, seed: int, workers: int
) -> grain.DatasetIterator:
    """Endless shuffled batches; the iterator's position can be saved and restored."""
    return _batches(Examples(split, transform, seed), batch_size, 2**40, workers)


def eval_batches(
    split: Split, transform: Transform, *, batch_size: int, workers: int = 0
) -> Iterator[Batch]:
    """Every image of the split once, in order; the last batch is padded and masked."""
    return _batches(
        Examples(split, transform, None), batch_size, -(-len(split) // batch_size), workers
    )


def _batches(
    examples: Examples, batch_size: int, batches: int, workers: int
) -> grain.DatasetIterator:
    share = ProcessShare(batch_size, jax.process_index(), jax.process_count())
    stream = grain.MapDataset.range(batches * share.local_batch).map(share).map(examples)
    reading = grain.ReadOptions(num_threads=2, prefetch_buffer_size=2 * share.local_batch)
    result = stream.batch(share.local_batch).to_iter_dataset(reading)
    if workers:
        result = result.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
    return iter(result)
