"""Images held in memory as they were encoded (JPEG, PNG, …)."""

import dataclasses
import hashlib
from collections.abc import Sequence

import numpy as np

from rac_jax.data.decode import decode


@dataclasses.dataclass(frozen=True)
class EncodedImages:
    """Encoded images in memory, decoded on access."""

    source: str  # for error messages: the file that the images came from
    names: np.ndarray  # [N] str: a stable name for every image
    contents: tuple[bytes, ...]
    enough: int = 0  # see decode

    def __len__(self) -> int:
        return len(self.contents)

    def __getitem__(self, position: int) -> np.ndarray:
        return decode(self.encoded(position), self.source_of(position), self.enough)

    def source_of(self, position: int) -> str:
        """The file and the image in it, for error messages."""
        return f"{self.source}, {self.names[position]}"

    def encoded(self, position: int) -> bytes:
        """The image's bytes, not decoded."""
        return self.contents[position]

    def select(self, positions: np.ndarray) -> "EncodedImages":
        contents = tuple(self.contents[position] for position in positions)
        return dataclasses.replace(self, names=self.names[positions], contents=contents)

    def references(self) -> Sequence[str]:
        return self.names.tolist()

    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for name, content in zip(self.names, self.contents, strict=True):
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
        return digest.hexdigest()
