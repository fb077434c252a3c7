"""What a run was trained on: `<workdir>/data.json`. Labels are positions in its list of classes.

The file holds everything about the data that evaluation and prediction need: the name of the data set, the names and
texts of the classes, and the number of training images of each class. The root is there for information.
"""

import dataclasses
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from rac_jax.config import ConfigError
from rac_jax.data.dataset import Dataset
from rac_jax.runtime import files, processes, workdirs

FILE = "data.json"
SHOWN = 8  # differences in a message


class OtherData(ValueError):
    """The data differ from those that the run was trained on."""


@dataclasses.dataclass(frozen=True)
class Record:
    """The contents of data.json."""

    name: str
    root: str
    classes: list[str]
    texts: list[str]
    train_images: list[int]  # of each class
    splits: dict[str, dict[str, Any]]  # by name: number of images, fingerprint of the content

    @property
    def train_fingerprint(self) -> str:
        """Of the training split, as Dataset.fingerprint gives it; "" if it is not known."""
        return self.splits.get("train", {}).get("fingerprint", "")

    def without_images(self) -> Dataset:
        """The data set without its splits: class names and texts."""
        return Dataset(self.name, tuple(self.classes), tuple(self.texts), {})


def start(config: ConfigDict, dataset: Dataset, workdir: Path) -> None:
    """Before training: check that the data fit the run, then record the config and the data in its folder."""
    _require_splits(config, dataset)
    found, before = describe(dataset, config.data.root), read(workdir)
    if before is not None:
        _refuse(workdir, [*_class_differences(before, found), *_content_differences(before, found)])
    if processes.first():
        workdirs.write_config(config, workdir)
        files.write_json(workdir / FILE, dataclasses.asdict(found))


def describe(dataset: Dataset, root: str) -> Record:
    """The record of a data set."""
    splits = {
        name: {"images": len(split), "fingerprint": dataset.fingerprint(name)} for name, split in dataset.splits.items()
    }
    classes, texts = list(dataset.class_names), list(dataset.class_texts)
    return Record(dataset.name, root, classes, texts, dataset.class_counts.tolist(), splits)


def read(workdir: Path) -> Record | None:
    """The record in a run's folder, if there is one."""
    path = workdir / FILE
    if not path.exists():
        return None
    try:
        record = Record(**json.loads(path.read_text(encoding="utf-8")))
        names = [*record.classes, *record.texts, *record.splits, *(s["fingerprint"] for s in record.splits.values())]
        numbers = [*record.train_images, *(split["images"] for split in record.splits.values())]
        if not all(isinstance(name, str) for name in names) or not all(isinstance(n, int) for n in numbers):
            raise ValueError("it holds values of another type")
        if not len(record.classes) == len(record.texts) == len(record.train_images):
            raise ValueError("its lists have different lengths")
    except (KeyError, TypeError, ValueError) as error:
        message = f"{path} is damaged ({error}); restore it, or delete it if the data are still those of the run"
        raise ValueError(message) from error
    return record


def _require_splits(config: ConfigDict, dataset: Dataset) -> None:
    """Every split that the run will use must be there and hold images."""
    there = ", ".join(sorted(name for name, split in dataset.splits.items() if len(split))) or "none"
    needed = {"train": "training", config.eval.split: f"config.eval.split={config.eval.split}"}
    needed |= {"val": f"config.eval.every={config.eval.every}"} if config.eval.every else {}
    for name, why in needed.items():
        if name not in dataset.splits or not len(dataset.splits[name]):
            raise ConfigError(f"{why} needs images in a split {name!r}; data set {dataset.name} has: {there}")


def _refuse(workdir: Path, differences: list[str]) -> None:
    if differences:
        lines = [f"  {line}" for line in differences[:SHOWN]]
        more = [f"  and {len(differences) - SHOWN} more differences"] if len(differences) > SHOWN else []
        raise OtherData(
            "\n".join([f"{workdir} holds a run on other data:", *lines, *more])
            + "\nUse another --workdir, or the data of that run."
        )


def _class_differences(there: Record, now: Record) -> Iterator[str]:
    added = [name for name in now.classes if name not in set(there.classes)]
    removed = [name for name in there.classes if name not in set(now.classes)]
    for old, new in itertools.zip_longest(removed, added):
        if old is None:
            yield f"class {new!r} is new"
        elif new is None:
            yield f"class {old!r} is gone"
        else:
            yield f"class {old!r} is gone, class {new!r} is new"
    if not added and not removed and there.classes != now.classes:
        pairs = enumerate(zip(there.classes, now.classes, strict=True))
        number, (old, new) = next((number, pair) for number, pair in pairs if pair[0] != pair[1])
        yield f"the classes have another order: number {number} is {old!r} there, {new!r} now"


def _content_differences(there: Record, now: Record) -> Iterator[str]:
    if there.classes == now.classes:
        for name, *pair in zip(now.classes, there.texts, now.texts, strict=True):
            if pair[0] != pair[1]:
                yield f"class {name!r}: its text is {pair[0]!r} there, {pair[1]!r} now"
        for name, *counts in zip(now.classes, there.train_images, now.train_images, strict=True):
            if counts[0] != counts[1]:
                yield f"class {name!r}: {counts[0]} training images there, {counts[1]} now"
    for name in sorted({*there.splits, *now.splits}):
        old, new = there.splits.get(name), now.splits.get(name)
        if old is None or new is None:
            yield f"split {name} is {'new' if old is None else 'gone'}"
        elif old["images"] != new["images"]:
            yield f"split {name}: {old['images']} images there, {new['images']} now"
        elif old["fingerprint"] != new["fingerprint"] and there.classes == now.classes and there.texts == now.texts:
            yield f"split {name}: other images, labels or captions"
