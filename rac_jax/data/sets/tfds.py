"""Images in records that TensorFlow Datasets describes: any of its data sets, or what `prepare` wrote."""

import dataclasses
import functools
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from tqdm import tqdm

from rac_jax.data import content
from rac_jax.data.dataset import Dataset, Split, texts, with_test
from rac_jax.data.decode import BadImage, decode

SPLITS = {"train": ("train",), "val": ("validation", "val", "valid"), "test": ("test",)}


@dataclasses.dataclass(frozen=True)
class RecordImages:
    """Encoded images in ArrayRecord files, decoded on access."""

    name: str  # of the data set; "" = the root is its folder
    root: str
    split: str
    positions: np.ndarray  # [N] int64: the records of this split that are in it
    paths: np.ndarray | None = None  # [N] bytes: what file each image was, where that is known
    samples: np.ndarray | None = None  # [N] bytes: the sample of each image's file, where paths are known: see content
    enough: int = 0  # see decode

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, position: int) -> np.ndarray:
        return decode(self.encoded(position), self.source_of(position), self.enough)

    def source_of(self, position: int) -> str:
        """The data set and the record, for error messages."""
        return f"{self.name or self.root}, {self.split} {self.positions[position]}"

    def encoded(self, position: int) -> bytes:
        """The image's bytes, not decoded."""
        records = source(self.name, self.root, self.split)
        try:
            return records[int(self.positions[position])]["image"]
        except Exception as error:  # array_record and TFDS raise almost anything for a damaged file
            raise BadImage(f"{self.source_of(position)}: the record cannot be read ({_first_line(error)})") from error

    def select(self, positions: np.ndarray) -> "RecordImages":
        paths = None if self.paths is None else self.paths[positions]
        samples = None if self.samples is None else self.samples[positions]
        return dataclasses.replace(self, positions=self.positions[positions], paths=paths, samples=samples)

    def references(self) -> Sequence[str]:
        if self.paths is not None:
            return [path.decode() for path in self.paths]
        return [f"{self.split}/{position}" for position in self.positions]

    def fingerprint(self) -> str:
        if self.paths is not None and self.samples is not None:  # equal to that of the files that were packed
            return content.fingerprint(self.paths.tolist(), self.samples.tolist())
        info = builder(self.name, self.root).info
        digest = hashlib.sha256(f"{info.full_name} {self.split}".encode())
        digest.update(np.ascontiguousarray(self.positions).tobytes())
        return digest.hexdigest()


@functools.lru_cache(maxsize=8)
def builder(name: str, root: str) -> Any:
    """TFDS's object for the data set, which knows its files and features."""
    import tensorflow_datasets as tfds  # only where it is used: it takes half a second

    try:
        return tfds.builder(name, data_dir=root or None) if name else tfds.builder_from_directory(root)
    except Exception as error:  # TFDS raises almost anything
        if name:
            raise ValueError(
                f"config.data.name is 'tfds:{name}', which TFDS cannot load: {_first_line(error)}"
            ) from error
        raise ValueError(f"{root}: TFDS cannot read its description there: {_first_line(error)}") from error


@functools.lru_cache(maxsize=8)
def source(name: str, root: str, split: str) -> Any:
    """Random access to the records of a split: image bytes and label. Opened once a process."""
    import tensorflow_datasets as tfds

    skip = {"image": tfds.decode.SkipDecoding()}
    try:
        return builder(name, root).as_data_source(split, decoders=skip)
    except Exception as error:
        raise ValueError(f"{name or root}: the records of {split} cannot be opened: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def load(name: str, root: str) -> Dataset:
    """The TFDS data set `name`, prepared as ArrayRecord under the root ("" = TFDS's own folder)."""
    found = builder(name, root)
    features = found.info.features
    if "image" not in features or "label" not in features:
        raise ValueError(f"tfds:{name} has the features {list(features)}; an image and a label are needed")
    if not known_splits(found):
        raise FileNotFoundError(
            f"tfds:{name} is not prepared: there is no {found.data_dir}. Where TensorFlow is installed:\n"
            f"  tfds build {name} --file_format=array_record --data_dir={root or '~/tensorflow_datasets'}"
        )
    if not getattr(features["label"], "names", None):
        raise ValueError(f"tfds:{name} has labels without names; a ClassLabel is needed")
    class_names = tuple(features["label"].names)
    splits = {}
    for split, spellings in SPLITS.items():
        known = next((spelling for spelling in spellings if spelling in known_splits(found)), None)
        if known:
            splits[split] = _split(name, root, split, known)
    if "train" not in splits:
        raise ValueError(f"tfds:{name} has the splits {known_splits(found)}; train is needed")
    return Dataset(name, class_names, texts(class_names), with_test(splits))


def known_splits(found: Any) -> list[str]:
    """The names of its splits; empty if it is not prepared."""
    return list(found.info.splits)


def _split(name: str, root: str, split: str, known_as: str) -> Split:
    records = source(name, root, known_as)
    bar = tqdm(range(len(records)), desc=f"{name}: labels of {split}", unit="img", leave=False)
    try:
        labels = np.array([records[position]["label"] for position in bar], np.int32)
    except Exception as error:
        raise ValueError(f"tfds:{name}: the records of {split} cannot be read: {_first_line(error)}") from error
    return Split(split, RecordImages(name, root, known_as, np.arange(len(records))), labels)
