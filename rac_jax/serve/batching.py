"""Requests that wait at the same time are answered in one batch, of a size that has been compiled."""

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

import numpy as np

NEARLY = 0.75  # a larger batch is padded if it is as full as this; otherwise the next smaller one goes first

T = TypeVar("T")
Answers = Callable[[Sequence[np.ndarray]], Sequence[Any]]


class Busy(RuntimeError):
    """Too many requests are waiting."""


def batch_size(waiting: int, sizes: Sequence[int]) -> int:
    """How many of the waiting requests the next batch takes; `sizes` ascend."""
    larger = [size for size in sizes if size >= waiting]
    if larger and waiting >= NEARLY * larger[0]:
        return waiting
    return max((size for size in sizes if size <= waiting), default=waiting)


class Batcher(Generic[T]):
    """Threads that read images and answer them in batches.

    No batch waits to be filled. A thread that has read an image while none is being answered answers it at once: one
    image alone does not change threads. Then it answers what the others have read meanwhile, batch by batch.
    """

    def __init__(self, read: Callable[[T], np.ndarray], answers: Answers, sizes: Sequence[int], *, most_waiting: int):
        self._read, self._answers, self._sizes = read, answers, sorted(sizes)
        self._most_waiting = most_waiting
        self.waiting = 0  # images that are in no batch yet
        self._ready: list[tuple[np.ndarray, asyncio.Future]] = []  # those of them that have been read
        self._answering = False  # whether one of the threads is
        self._lock = threading.Lock()  # for these three
        self._threads = ThreadPoolExecutor((os.cpu_count() or 1) + 1, "answers")  # one answers, the others read

    async def ask(self, image: T) -> Any:
        """The answer for an image that `read` turns into pixels [S, S, 3], or what `read` raises."""
        future = asyncio.get_running_loop().create_future()
        with self._lock:
            if self.waiting >= self._most_waiting:
                raise Busy(f"{self.waiting} images are waiting already; try again in a moment")
            self.waiting += 1
        self._threads.submit(self._work, image, future)
        return await future

    def close(self) -> None:
        """Answer what waits, then end the threads."""
        self._threads.shutdown()

    def _work(self, image: T, future: asyncio.Future) -> None:
        try:
            pixels = self._read(image)
        except Exception as error:
            with self._lock:
                self.waiting -= 1
            _hand_over([future], [error])
            return
        with self._lock:
            self._ready.append((pixels, future))
            if self._answering:
                return
            self._answering = True
        while batch := self._next():
            self._answer(batch)

    def _next(self) -> list[tuple[np.ndarray, asyncio.Future]]:
        """What is answered now; empty when nothing is ready, and the next image that is read begins again."""
        with self._lock:
            wanted = [asked for asked in self._ready if not asked[1].cancelled()]
            number = batch_size(len(wanted), self._sizes)
            self.waiting -= len(self._ready) - len(wanted) + number
            batch, self._ready = wanted[:number], wanted[number:]
            self._answering = bool(batch)
            return batch

    def _answer(self, batch: list[tuple[np.ndarray, asyncio.Future]]) -> None:
        try:
            results: Sequence[Any] = self._answers([pixels for pixels, _ in batch])
        except Exception as error:
            results = [error] * len(batch)
        _hand_over([future for _, future in batch], results)


def _hand_over(futures: Sequence[asyncio.Future], results: Sequence[Any]) -> None:
    """Let those who asked go on, in their event loop."""
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
        futures[0].get_loop().call_soon_threadsafe(_set, futures, results)


def _set(futures: Sequence[asyncio.Future], results: Sequence[Any]) -> None:
    for future, result in zip(futures, results, strict=True):
        if future.cancelled():
            continue
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)
