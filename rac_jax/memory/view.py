"""The content of a memory, to look at from Python."""

import dataclasses
from typing import Any

import numpy as np
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
        """Name, state, number of rows and origin of each source that has rows."""
        found = self._memory.manifest
        rows = found.rows_by_source(manifest.ENABLED, manifest.DISABLED)
        first = {name: found.source(name) for name, number in rows.items() if number}
        return [
            {"name": name, "state": s.state, "rows": rows[name], "origin": s.origin, "added": s.added}
            for name, s in first.items()
        ]

    @property
    def counts(self) -> dict[str, int]:
        """How many of the enabled rows each class has."""
        counts = self._memory.class_counts()
        return {name: int(count) for name, count in zip(self._memory.class_names, counts, strict=True) if count}

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes of the enabled rows."""
        return tuple(self.counts)

    @property
    def version(self) -> int:
        """Goes up with every edit."""
        return self._memory.version

    @property
    def numbering(self) -> str:
        """Row numbers mean the same rows as long as this is the same: until the memory is compacted."""
        return self._memory.manifest.keys

    def holds(self, number: int) -> bool:
        """Whether there is a row of that number."""
        return self._memory.holds(number)

    def examples(self, each: int) -> dict[str, list[int]]:
        """The first enabled rows of each class, at most so many; those with thumbnails or not."""
        memory, allowed = self._memory, self._memory.allowed()
        rows = np.arange(len(memory)) if allowed is None else np.flatnonzero(allowed)
        order = rows[np.argsort(memory.label_of[rows], kind="stable")]
        found, starts = np.unique(memory.label_of[order], return_index=True)
        ends = np.append(starts[1:], len(order))
        return {
            memory.class_names[label]: order[start : min(end, start + each)].tolist()
            for label, start, end in zip(found.tolist(), starts.tolist(), ends.tolist(), strict=True)
            if label >= 0
        }

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
        """The image of a row, or its thumbnail if the file is not there; None if there is neither."""
        found = self._memory.file_of(number)
        encoded = self.thumbnail(number) if found is None else read_bytes(found)
        return None if encoded is None else Image.fromarray(decode(encoded, str(found or f"row {number}")))

    def thumbnail(self, number: int) -> bytes | None:
        """A small JPEG of a row, if the memory keeps them."""
        return self._memory.thumbnail(range(len(self._memory))[number])
