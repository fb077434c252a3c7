"""The model behind the routes: images are answered in batches, and edits made one after another."""

import asyncio
import itertools
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from absl import logging

from rac_jax import data
from rac_jax.answering import Answer
from rac_jax.api import Model
from rac_jax.calibration.coverage import LabelSets
from rac_jax.data.decode import BadImage
from rac_jax.memory.manifest import BY_ROW, REMOVED, BadMemory
from rac_jax.memory.store import Memory
from rac_jax.memory.view import MemoryView
from rac_jax.run import Run
from rac_jax.runtime import heap
from rac_jax.serve import uploads
from rac_jax.serve.batching import Batcher, Busy
from rac_jax.serve.guard import Refused
from rac_jax.serve.metrics import Metrics
from rac_jax.serve.uploads import Upload

MOST_WAITING = 512  # images to classify, and as many to search with
NEARLY_BEST = 0.97  # of the most images a second: a larger batch must be about as fast
FOLLOWED = 1.0  # seconds between two looks at the memory's folder, which other commands may change
TRIMMED = 5  # looks between two times that free memory is given back
NO_MEMORY = "this run has no memory, because none of its voices uses one"

T = TypeVar("T")


def worthwhile(seconds: Mapping[int, float]) -> list[int]:
    """The sizes of batches up to the one with the most images a second, from the seconds that each takes.

    On accelerators that is the largest. On a CPU it may be a small one, whose activations fit into its caches.
    """
    speed = {size: size / taken for size, taken in seconds.items()}
    best = max(size for size in speed if speed[size] >= NEARLY_BEST * max(speed.values()))
    return [size for size in sorted(speed) if size <= best]


def number_of(memory: Memory, row: int, image: str = "", *, renumbered: bool = False) -> int:
    """The number that a row has now; Refused if there is none.

    An edit may copy the rows of a source that were added one by one (memory/rows.py). A row that was copied is found by
    its image reference, if only one row has it. So is any row if rows were `renumbered` since its number was read.
    """
    if renumbered and not image:
        raise Refused(409, f"row {row} may have another number by now; name its image")
    inside = memory.holds(row) and not renumbered
    if inside and image in ("", memory.images[row]):
        return row
    copied = renumbered or inside or not 0 <= row < len(memory) or memory.source_of(row)[0].is_gap  # and not removed
    found = []
    for source, rows in memory.manifest.slices() if image and copied else ():
        if (source.origin == BY_ROW or renumbered) and source.state != REMOVED:
            found += [rows.start + place for place, own in enumerate(memory.images[rows]) if own == image]
    found = [number for number in found if memory.holds(number)]
    if len(found) > 1:
        shown = ", ".join(map(str, found))
        raise Refused(409, f"row {row} has another number by now, and several rows are of this image: {shown}")
    if not found:
        raise Refused(409, f"row {row} is another image by now") if inside else Refused(404, f"there is no row {row}")
    return found[0]


class Service:
    """A model that many clients use at the same time. All programs are compiled when this returns."""

    def __init__(
        self, model: Model, *, most_batch: int = 32, most_pixels: int = 50_000_000, sets: LabelSets | None = None
    ):
        self.model, self.metrics, self._sets = model, Metrics(), sets
        self._nonce = secrets.token_hex(4)  # browsers keep pictures, perhaps of another run at the same address
        self._decoded = uploads.Decoder(model.config.data.image_size, most_pixels)
        self._transform, self._nothing = data.eval_transform(model.config), np.random.default_rng(0)
        sizes = worthwhile({size: model.live.answering.seconds(size) for size in model.live.warm_up(most_batch)})
        self._batcher = Batcher(self._pixels, self._answers, sizes, most_waiting=MOST_WAITING)
        self._searches, self._searching = ThreadPoolExecutor(os.cpu_count(), "search"), 0
        self._others = ThreadPoolExecutor(os.cpu_count(), "others")
        self._editor = ThreadPoolExecutor(1, "edit")
        self._measure()

    def close(self) -> None:
        """Finish what was begun."""
        self._editor.shutdown()
        self._searches.shutdown()
        self._others.shutdown()
        self._batcher.close()

    @property
    def waiting(self) -> int:
        return self._batcher.waiting

    @property
    def has_memory(self) -> bool:
        return self.model.live.answering.run.retriever is not None

    @property
    def memory(self) -> MemoryView:
        """What the memory holds now."""
        if not self.has_memory:
            raise BadMemory(NO_MEMORY)
        return self.model.memory

    def now(self) -> tuple[Run, MemoryView | None]:
        """The run and what its memory holds, both of the same moment; None without a memory."""
        run = self.model.live.answering.run
        return run, MemoryView(run.retriever.memory) if run.retriever is not None else None

    def description(self) -> dict[str, Any]:
        """What is served."""
        run, memory = self.now()
        return {
            "run": self.model.workdir.resolve().name,
            "step": self.model.step,
            "voices": list(run.model.settings.speaking),
            "classes": len(run.classes),
            "rows": memory.rows if memory else 0,
            "memory": memory is not None,
            "coverage": self._sets.level if self._sets else None,
            "calibrated": self._sets.memory == run.memory_record()["memory"] if self._sets else None,
            **self._state(memory),
        }

    def _state(self, memory: MemoryView | None) -> dict[str, Any]:
        """Which state of the memory something is of."""
        return {"keys": self._keys(memory), "version": memory.version if memory else 0}

    def _keys(self, memory: MemoryView | None) -> str:
        """Changes when row numbers do, and with every start of the server."""
        return f"{self._nonce} {memory.numbering if memory else ''}".strip()

    async def predict(self, upload: Upload) -> Answer:
        """The answer for an image, and which state of the memory it is of; BadImage if the image is not usable."""
        answer = await self._batcher.ask(upload)
        self.metrics.images.inc()
        return ({"image": upload.name} if upload.name else {}) | answer

    async def predict_many(self, several: Sequence[Upload]) -> list[Answer]:
        """Answers in the order of the images; an unusable one has an `error` in place of them."""

        async def one(upload: Upload) -> Answer:
            try:
                return await self.predict(upload)
            except BadImage as error:
                return {"image": upload.name, "error": str(error)}

        return list(await asyncio.gather(*map(one, several)))

    async def search(self, upload: Upload, k: int) -> list[Answer]:
        """The nearest rows of the memory. As many searches may wait as images for an answer."""
        _ = self.memory
        if self._searching >= MOST_WAITING:
            raise Busy(f"{self._searching} searches are waiting already; try again in a moment")
        self._searching += 1
        try:
            work = lambda: self.model.search(self._decoded(upload), k)  # noqa: E731
            return await asyncio.get_running_loop().run_in_executor(self._searches, work)
        finally:
            self._searching -= 1

    async def teach(self, upload: Upload, label: str | None, text: str, source: str | None) -> dict[str, Any]:
        """Add an image to a source of the memory, or to the one of taught images; returns its row."""
        _ = self.memory

        def add() -> dict[str, Any]:
            row = self.model.teach(self._decoded(upload), label, text=text, source=source)
            return {"row": row, **self.memory.row(row)}  # before the next edit, which may copy it elsewhere

        return await self.edit(add)

    async def forget(self, row: int, image: str, keys: str = "") -> dict[str, Any]:
        """Remove a row; returns what it was. With `image`, its reference, it is found if it has another number.

        With other `keys` than those of now (see `description`), only the image tells which row it is.
        """

        def remove() -> dict[str, Any]:
            self.model.live.refresh()
            run, memory = self.now()
            if memory is None or run.retriever is None:
                raise BadMemory(NO_MEMORY)
            renumbered = keys not in ("", self._keys(memory))
            number = number_of(run.retriever.memory, row, image, renumbered=renumbered)
            self.model.forget(number)
            return {"row": number, **memory.row(number)}

        return await self.edit(remove)

    async def edit(self, change: Callable[[], T]) -> T:
        """Make a change of the memory. When this returns it is on the disk, and in the next answer."""
        result = await asyncio.get_running_loop().run_in_executor(self._editor, change)
        self.metrics.edits.inc()
        self._measure()
        return result

    async def in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run something that takes milliseconds beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._others, work, *arguments)

    async def follow(self) -> None:
        """Read the memory again when another command has changed it, and give back what is free; until cancelled."""
        said = ""
        for second in itertools.count(1):
            await asyncio.sleep(FOLLOWED)
            if second % TRIMMED == 0:
                self._others.submit(heap.trim)  # it is not waited for
            try:
                if await asyncio.get_running_loop().run_in_executor(self._editor, self.model.live.refresh):
                    self._measure()
            except Exception as error:  # whatever it is, the next look may succeed
                if repr(error) != said:
                    logging.warning("the memory was changed and cannot be read (%r); answers are from before", error)
                said = repr(error)

    def _pixels(self, upload: Upload) -> np.ndarray:
        return self._transform(self._decoded(upload), self._nothing)

    def _answers(self, pixels: Sequence[np.ndarray]) -> list[Answer]:
        self.metrics.batches.observe(len(pixels))
        answering = self.model.live.answering
        found = answering.run.retriever
        state = self._state(MemoryView(found.memory) if found else None)
        return [answer | state for answer in answering.answers(pixels, self._sets)]

    def _measure(self) -> None:
        run, memory = self.now()
        self.metrics.classes.set(len(run.classes))
        if memory is not None:
            self.metrics.rows.set(memory.rows)
            self.metrics.version.set(memory.version)
