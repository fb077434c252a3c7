"""A run whose memory changes: the state that answers now, and how the next one takes its place."""

import contextlib
import threading
from collections.abc import Iterator

from rac_jax.answering import Answering
from rac_jax.memory import build, edit, manifest
from rac_jax.memory.edit import Editor
from rac_jax.memory.store import Memory


class Live:
    """Threads may ask while one of them edits: they see the memory before the edit, or after it."""

    def __init__(self, answering: Answering):
        self.answering = answering  # an edit replaces it, when everything is compiled and read
        self.editing = threading.RLock()  # edits are made one after another
        self._sizes: list[int] = []  # of batches that are compiled ahead
        self._seen = self._stamp()  # of the memory that is open
        if self._seen and manifest.read(self._memory.folder) != self._memory.manifest:
            self._seen = ()  # it was changed while the run was loaded

    def warm_up(self, most: int) -> list[int]:
        """Compile the programs for batches of up to `most` images, now and after each edit. Returns their sizes."""
        self._sizes = self.answering.sizes(most)
        self.answering.warm_up(self._sizes)
        return self._sizes

    @contextlib.contextmanager
    def edited(self) -> Iterator[Editor]:
        """A change of the memory, which is on the disk and in the next answer when this ends."""
        with self.editing:
            with edit.editing(self._memory.folder) as editor:
                yield editor
            self.reopen()

    def refresh(self) -> bool:
        """Read the memory again if another process has changed it. Returns whether it has."""
        with self.editing:
            if self._stamp() == self._seen:
                return False
            self.reopen()
            return True

    def reopen(self) -> None:
        """Read the memory again; nothing is left to be done by the next answer."""
        run, before, stamp = self.answering.run, self._memory, self._stamp()
        run = run.with_memory(build.opened(run.config, before.folder, before))
        assert run.retriever is not None
        answering = self.answering.after(run)
        _ = run.retriever.usual_nearness  # is computed at its first use
        if answering.room != self.answering.room or run.config.memory.index == "device":
            answering.warm_up(self._sizes)
        self.answering, self._seen = answering, stamp

    @property
    def _memory(self) -> Memory:
        assert self.answering.run.retriever is not None
        return self.answering.run.retriever.memory

    def _stamp(self) -> tuple[int, ...]:
        """Changes when the memory's manifest is replaced."""
        if self.answering.run.retriever is None:
            return ()
        found = (self._memory.folder / manifest.NAME).stat()
        return found.st_ino, found.st_mtime_ns, found.st_size
