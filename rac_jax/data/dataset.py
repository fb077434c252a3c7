"""Data sets: images by position, labels, and for each class a name and a text."""

import dataclasses
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np


class Images(Protocol):
    """Random access to decoded images. Picklable, because input workers are processes."""

    def __len__(self) -> int: ...

    def __getitem__(self, position: int) -> np.ndarray:
        """One image: uint8 [H, W, 3], any size."""
        ...

    def select(self, positions: np.ndarray) -> "Images":
        """Only the images at these positions, in this order."""
        ...

    def references(self) -> Sequence[str]:
        """A stable name for every image: what a memory stores to show where a key came from."""
        ...

    def fingerprint(self) -> str:
        """A digest of names and content. Stable when files are copied elsewhere; see rac_jax.data.content."""
        ...


@dataclasses.dataclass(frozen=True)
class Split:
    """A part of a data set. An image's position in it is its id."""

    name: str
    images: Images
    labels: np.ndarray  # [N] int32
    captions: Sequence[str] | None = None  # a text for each image; "" = its class's text
    memory_labels: np.ndarray | None = None  # [N] int32: the labels in a memory of these images, where they differ

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, positions: np.ndarray) -> "Split":
        """Only the images at these positions, in this order."""
        captions = self.captions and [self.captions[position] for position in positions]
        images, labels = self.images.select(positions), self.labels[positions]
        inside = None if self.memory_labels is None else self.memory_labels[positions]
        return dataclasses.replace(self, images=images, labels=labels, captions=captions, memory_labels=inside)


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Splits that share classes. A class is identified by its label; `class_texts` are what a memory stores."""

    name: str
    class_names: tuple[str, ...]
    class_texts: tuple[str, ...]
    splits: Mapping[str, Split]
    held_out: bool = False  # val and test were drawn here, by data.seed, val_share and test_share
    class_groups: tuple[str, ...] = ()  # the group that each class belongs to, where the data set has groups

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def class_counts(self) -> np.ndarray:
        """How often each class occurs in training: [C] int64; 0 for all without a training split."""
        labels = self.splits["train"].labels if "train" in self.splits else np.zeros(0, np.int32)
        return np.bincount(labels, minlength=self.num_classes)

    def split(self, name: str) -> Split:
        """The named split; an unknown name is an error that lists the known ones."""
        if name not in self.splits:
            raise ValueError(f"data set {self.name} has no split {name!r}; it has {list(self.splits)}")
        return self.splits[name]

    def fingerprint(self, split: str) -> str:
        """A digest of what a memory built from this split would contain: images, labels and texts."""
        part = self.split(split)
        digest = hashlib.sha256(part.images.fingerprint().encode())
        digest.update(np.ascontiguousarray(part.labels, np.int32).tobytes())
        digest.update("\0".join(self.class_texts).encode())
        digest.update("\0".join(part.captions or ()).encode())
        if part.memory_labels is not None:
            digest.update(np.ascontiguousarray(part.memory_labels, np.int32).tobytes())
        return digest.hexdigest()


def with_test(splits: dict[str, Split]) -> dict[str, Split]:
    """The splits, with val renamed to test where there is no test: results are reported on test."""
    if "test" in splits or "val" not in splits:
        return splits
    test = dataclasses.replace(splits["val"], name="test")
    return {"train": splits["train"], "test": test}


def words(name: str) -> str:
    """A class's folder name as text: airport_terminal and forest/broadleaf become plain words."""
    return " ".join(re.sub(r"[_/-]", " ", name).split())


def texts(class_names: Sequence[str]) -> tuple[str, ...]:
    """The text of each class: its name in plain words; a name without any (as "_") stands for itself."""
    return tuple(words(name) or name.strip() or f"class {label}" for label, name in enumerate(class_names))


def same_texts(dataset: Dataset) -> list[tuple[str, ...]]:
    """Groups of classes that share a text: a memory tells them apart by label, but its texts do not."""
    classes: dict[str, list[str]] = {}
    for name, text in zip(dataset.class_names, dataset.class_texts, strict=True):
        classes.setdefault(text, []).append(name)
    return [tuple(names) for names in classes.values() if len(names) > 1]


@dataclasses.dataclass(frozen=True)
class ArrayImages:
    """Images held in memory, all of one size."""

    name: str
    pixels: np.ndarray  # [N, H, W, 3] uint8

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, position: int) -> np.ndarray:
        return self.pixels[position]

    def select(self, positions: np.ndarray) -> "ArrayImages":
        return dataclasses.replace(self, pixels=self.pixels[positions])

    def references(self) -> Sequence[str]:
        return [f"{self.name}/{i}" for i in range(len(self))]

    def fingerprint(self) -> str:
        digest = hashlib.sha256(str(self.pixels.shape).encode())
        digest.update(np.ascontiguousarray(self.pixels).tobytes())
        return digest.hexdigest()
