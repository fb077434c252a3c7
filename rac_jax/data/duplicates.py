"""Images that occur in more than one class or split: exact copies of a file."""

import collections
import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path

from absl import logging

from rac_jax.data import content
from rac_jax.data.dataset import Dataset
from rac_jax.data.decode import BadImage
from rac_jax.data.files import FileImages
from rac_jax.data.reading import read_bytes

MOST_FILES = 100_000  # images; copies are not searched for in larger data sets


@dataclasses.dataclass(frozen=True)
class Copy:
    """One occurrence of a file's content."""

    split: str
    label: int
    root: str
    path: bytes

    def __str__(self) -> str:
        return self.path.decode(errors="backslashreplace")


def warn(dataset: Dataset) -> None:
    """Log how many files occur, byte for byte, in more than one class or in more than one split."""
    files = [
        Copy(name, int(label), split.images.root, path)
        for name, split in dataset.splits.items()
        if isinstance(split.images, FileImages)
        for path, label in zip(split.images.paths, split.labels, strict=True)
    ]
    roots = {file.root for file in files}
    if not files or len(files) > MOST_FILES or len(roots) > 1:
        return
    root = roots.pop()
    told = "\n".join(f"{file.split} {file.label}" for file in files).encode()
    message = content.remembered("copies", root, [f.path for f in files], lambda: describe(identical(files)), told)
    if message:
        logging.warning("%s: %s", dataset.name, message)


def identical(files: list[Copy]) -> list[list[Copy]]:
    """Groups of files with the same content. Only files of one size and one sample are read."""
    if not files:
        return []
    sizes = [state[0] for state in content.states(files[0].root, [file.path for file in files])]
    filled = [(file, size) for file, size in zip(files, sizes, strict=True) if size > 0]
    same_size = _flat(_groups([file for file, _ in filled], [size for _, size in filled]))
    same_sample = _flat(_groups(same_size, content.samples(files[0].root, [file.path for file in same_size])))
    return _groups(same_sample, [_hash(file) for file in same_sample])


def describe(groups: list[list[Copy]]) -> str:
    """A message about groups of copies; "" if each group is within one class and one split."""
    said = []
    for what, of in (("class", lambda file: file.label), ("split", lambda file: file.split)):
        mixed = [group for group in groups if len(set(map(of, group))) > 1]
        if mixed:
            first = mixed[0][0]
            other = next(file for file in mixed[0] if of(file) != of(first))
            said.append(f"{len(mixed)} images occur in more than one {what} ({first} is the same file as {other})")
    return "; ".join(said)


def _flat(groups: list[list[Copy]]) -> list[Copy]:
    return [file for group in groups for file in group]


def _groups(files: list[Copy], keys: Sequence[object]) -> list[list[Copy]]:
    """The files of each key that several of them have."""
    found: dict[object, list[Copy]] = collections.defaultdict(list)
    for file, key in zip(files, keys, strict=True):
        found[key].append(file)
    return [group for group in found.values() if len(group) > 1]


def _hash(file: Copy) -> str:
    try:
        return hashlib.sha256(read_bytes(Path(file.root, file.path.decode()))).hexdigest()
    except BadImage:
        return str(file)  # equal to no other
