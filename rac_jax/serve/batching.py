"""Requests that wait at the same time are answered in one batch, of a size that has been compiled."""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

NEARLY = 0.75  # a larger batch is padded if it is as full as this; otherwise the next smaller one goes first

Answers = Callable[[Sequence[np.ndarray]], Sequence[Any]]


class Busy(RuntimeError):
    """Too many requests are waiting."""


def batch_size(waiting: int, sizes: Sequence[int]) -> int:
    """How many of the waiting requests the next batch takes; `sizes` ascend."""
    larger = [size for size in sizes if size >= waiting]
    if larger and waiting >= NEARLY * larger[0]:
        return waiting
    return max((size for size in sizes if size <= waiting), default=waiting)


class Batcher:
    """One thread that answers. It never waits for a batch to fill: what came while it was busy is the next batch."""

    def __init__(self, answers: Answers, sizes: Sequence[int], *, most_waiting: int):
        self._answers, self._sizes = answers, sorted(sizes)
        self._waiting: queue.Queue[tuple[np.ndarray, asyncio.Future] | None] = queue.Queue()
        self._most_waiting = most_waiting
        self._left: list[tuple[np.ndarray, asyncio.Future]] = []
        self._thread = threading.Thread(target=self._work, name="answers", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """How many images wait."""
        return self._waiting.qsize() + len(self._left)

    async def ask(self, pixels: np.ndarray) -> Any:
        """The answer for an image [S, S, 3]."""
        if self.waiting >= self._most_waiting:
            raise Busy(f"{self.waiting} images are waiting already; try again in a moment")
        future = asyncio.get_running_loop().create_future()
        self._waiting.put((pixels, future))
        return await future

    def close(self) -> None:
        """Answer what waits, then end the thread."""
        self._waiting.put(None)
        self._thread.join()

    def _work(self) -> None:
        ending = False
        while not ending or self._left:
            if not self._left:
                ending |= not self._take(self._waiting.get())
            with contextlib.suppress(queue.Empty):
                while len(self._left) < self._sizes[-1]:
                    ending |= not self._take(self._waiting.get_nowait())
            if self._left:
                number = batch_size(len(self._left), self._sizes)
                batch, self._left = self._left[:number], self._left[number:]
                self._answer(batch)

    def _take(self, asked: tuple[np.ndarray, asyncio.Future] | None) -> bool:
        if asked is not None and not asked[1].cancelled():
            self._left.append(asked)
        return asked is not None

    def _answer(self, batch: list[tuple[np.ndarray, asyncio.Future]]) -> None:
        try:
            results: Sequence[Any] = self._answers([pixels for pixels, _ in batch])
        except Exception as error:
            results = [error] * len(batch)
        loop = batch[0][1].get_loop()
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_hand_over, [future for _, future in batch], results)


def _hand_over(futures: Sequence[asyncio.Future], results: Sequence[Any]) -> None:
    for future, result in zip(futures, results, strict=True):
        if future.cancelled():
            continue
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)
