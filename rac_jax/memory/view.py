"""The content of a memory, to look at from Python."""

import dataclasses
from typing import Any

from PIL import Image

from rac_jax.data.decode import decode
from rac_jax.data.reading import read_bytes
from rac_jax.memory import manifest
from rac_jax.memory.store import Memory


@dataclasses.dataclass(frozen=True)
class MemoryView:
    """The content of a memory, to look at."""

    _memory: Memory

    @property
    def rows(self) -> int:
        """How many images can be neighbours."""
        return self._memory.enabled

    @property
    def sources(self) -> list[dict[str, Any]]:
        """Name, state, number of rows and origin of each source."""
        shown = ("name", "state", "rows", "origin", "added")
        kept = [source for source in self._memory.manifest.sources if source.state != manifest.REMOVED]
        return [{name: getattr(source, name) for name in shown} for source in kept]

    @property
    def counts(self) -> dict[str, int]:
        """How many of the enabled rows each class has."""
        counts = self._memory.class_counts()
        return {name: int(count) for name, count in zip(self._memory.class_names, counts, strict=True) if count}

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes of the enabled rows."""
        return tuple(self.counts)

    def row(self, number: int) -> dict[str, Any]:
        """Label, text, source and image reference of a row."""
        memory, number = self._memory, range(len(self._memory))[number]
        label = int(memory.label_of[number])
        return {
            "label": memory.class_names[label] if label >= 0 else None,
            "text": memory.texts[int(memory.text_of[number])],
            "source": memory.source_of(number)[0].name,
            "image": memory.images[number],
        }

    def image(self, number: int) -> Image.Image | None:
        """The image of a row, if its file is still there."""
        path = self._memory.file_of(number)
        return None if path is None else Image.fromarray(decode(read_bytes(path), str(path)))
