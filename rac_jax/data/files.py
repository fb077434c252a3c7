"""Images that are files: lists of paths and labels, and access to the pixels."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from rac_jax.data import content
from rac_jax.data.dataset import Split
from rac_jax.data.decode import decode
from rac_jax.data.missing import MissingData
from rac_jax.data.reading import read_bytes
from rac_jax.data.text_files import read_lines

SPOT_CHECKS = 8  # files of a split that are looked for before a run starts; `prepare` checks all


@dataclasses.dataclass(frozen=True)
class FileImages:
    """Files under a root, read and decoded on access."""

    root: str
    paths: np.ndarray  # [N] bytes: relative to the root, UTF-8; an array is quick to send to workers
    enough: int = 0  # see decode

    def __len__(self) -> int:
        return len(self.paths)

    def path(self, position: int) -> Path:
        return Path(self.root, self.paths[position].decode())

    def __getitem__(self, position: int) -> np.ndarray:
        return decode(self.encoded(position), self.source_of(position), self.enough)

    def source_of(self, position: int) -> str:
        """The file, for error messages."""
        return str(self.path(position))

    def encoded(self, position: int) -> bytes:
        """The file's content, not decoded."""
        return read_bytes(self.path(position))

    def select(self, positions: np.ndarray) -> "FileImages":
        return dataclasses.replace(self, paths=self.paths[positions])

    def references(self) -> Sequence[str]:
        return [path.decode() for path in self.paths]

    def fingerprint(self) -> str:
        """Of the paths, the sizes and a sample of each file's content: see rac_jax.data.content."""
        return self._fingerprint

    @functools.cached_property
    def _fingerprint(self) -> str:
        return content.fingerprint_files(self.root, self.paths.tolist())


def file_split(name: str, root: Path, paths: Sequence[str], labels: Sequence[int]) -> Split:
    """A split of files: `paths` are relative to the root."""
    try:
        encoded = np.array([path.encode() for path in paths], dtype=np.bytes_)
    except UnicodeEncodeError as error:
        raise ValueError(f"{error.object!a}: the path is not valid Unicode") from error
    return Split(name, FileImages(str(root), encoded), np.array(labels, np.int32))


@dataclasses.dataclass(frozen=True)
class ListFile:
    """A text file with `path label` on every line, read and checked."""

    source: Path
    paths: list[str]
    labels: list[int]
    lines: list[int]  # the number of each image's line, from 1


def read_list(source: Path, num_classes: int) -> ListFile:
    """Read a list; errors name the line."""
    paths, labels, lines = [], [], []
    first_line: dict[str, int] = {}
    for number, line in enumerate(read_lines(source), start=1):
        if not line.strip():
            continue
        path, _, label = line.strip().replace("\t", " ").rpartition(" ")
        path = path.rstrip()
        if not path or not label.isdecimal() or len(label) > 9:
            raise ValueError(f"{source}, line {number}: expected `path label`, got {line!r}")
        if int(label) >= num_classes:
            raise ValueError(f"{source}, line {number}: label {label} of {path}; labels go from 0 to {num_classes - 1}")
        if first_line.setdefault(path, number) != number:
            raise ValueError(f"{source}, line {number}: {path} is already on line {first_line[path]}")
        paths.append(path)
        labels.append(int(label))
        lines.append(number)
    return ListFile(source, paths, labels, lines)


def check_count(part: ListFile, expected: int) -> None:
    """Refuse a list that does not have as many images as the benchmark."""
    if len(part.paths) != expected:
        raise ValueError(f"{part.source}: {len(part.paths)} images; the benchmark has {expected}")


def check_every_class(split: Split, class_names: Sequence[str], source: str) -> None:
    """Training needs at least one image of every class."""
    counts = np.bincount(split.labels, minlength=len(class_names))
    empty = np.flatnonzero(counts == 0)
    if len(empty):
        names = ", ".join(f"{class_names[label]!r} ({label})" for label in empty[:5])
        raise ValueError(f"{source}: {len(empty)} classes have no training image: {names}")


def folder_names(train: ListFile, classes: int, class_of: Callable[[str], str]) -> tuple[str, ...]:
    """The class that each label's paths name, by label; one label with two names is an error."""
    names: dict[int, str] = {}
    for path, label, line in zip(train.paths, train.labels, train.lines, strict=True):
        name = class_of(path)
        if names.setdefault(label, name) != name:
            raise ValueError(f"{train.source}, line {line}: label {label} is {name!r} here, {names[label]!r} before")
    absent = sorted(set(range(classes)) - set(names))
    if absent:
        raise ValueError(f"{train.source}: no image has the label {absent[0]}")
    return tuple(names[label] for label in range(classes))


def split_in_any_layout(
    title: str,
    name: str,
    root: Path,
    part: ListFile,
    layouts: Sequence[Callable[[str, int], str]],
    how_to_get: str,
) -> Split:
    """The list's images in the first layout (listed path, label -> path under the root) that exists."""
    nearest: list[str] = []
    for layout in layouts:
        paths = [layout(path, label) for path, label in zip(part.paths, part.labels, strict=True)]
        missing = [
            f"{root / paths[position]} ({part.source.name}, line {part.lines[position]})"
            for position in spread(len(paths))
            if not (root / paths[position]).is_file()
        ]
        if not missing:
            return file_split(name, root, paths, part.labels)
        nearest = missing if not nearest or len(missing) < len(nearest) else nearest
    raise MissingData(title, str(root), nearest, how_to_get)


def spread(count: int) -> list[int]:
    """A few positions from the first to the last."""
    return np.unique(np.linspace(0, count - 1, SPOT_CHECKS).astype(int)).tolist()
