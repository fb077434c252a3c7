"""A folder of your own: one folder of images per class, with or without train, val and test folders.

With them: DIR/train/cat/1.jpg and DIR/test/cat/2.jpg; where there is val but no test, val is the test split.
Without them: DIR/cat/1.jpg, and test and validation images are held out here.
"""

import dataclasses
from pathlib import Path

from absl import logging

from rac_jax.data import files, long_tail
from rac_jax.data.dataset import Dataset, Split, texts, with_test
from rac_jax.data.reading import ENDINGS
from rac_jax.data.sets import layout
from rac_jax.data.sets.layout import HOW_TO


def load(root: str, *, seed: int, val_share: float, test_share: float) -> Dataset:
    """The shares are of each class's images. They are used where there is neither a test nor a val folder."""
    folder = Path(root)
    if not root or not folder.is_dir():
        raise FileNotFoundError(f"config.data.root is {root!r}, which is not a folder. {HOW_TO}")
    parts = layout.read(folder).splits or {"train": folder}
    class_names = _class_names(parts["train"])
    splits = {name: _scan(folder, part, class_names, name) for name, part in parts.items()}
    if len(splits) == 1:
        return _hold_out(folder, splits["train"], class_names, seed, val_share, test_share)
    return _dataset(folder, class_names, with_test(splits))


def read(root: str, split: str) -> tuple[tuple[str, ...], Split]:
    """The class names and all images of a folder of class folders, or of its folder for that split."""
    folder = Path(root)
    if not root or not folder.is_dir():
        raise FileNotFoundError(f"{root!r} is not a folder. {HOW_TO}")
    parts = layout.only_splits(folder) or layout.read(folder).splits
    if parts and split not in parts:
        raise FileNotFoundError(f"{folder} has folders for {', '.join(parts)}, but none for {split}")
    part = parts.get(split, folder)
    class_names = _class_names(part)
    return class_names, _scan(folder, part, class_names, split)


def _class_names(folder: Path) -> tuple[str, ...]:
    found = layout.class_folders(folder)
    for entry in found:
        layout.check_name(entry)
    return tuple(entry.name for entry in found)


def _scan(root: Path, folder: Path, class_names: tuple[str, ...], name: str) -> Split:
    """Every image below the class folders, sorted, with its class."""
    layout.warn_of_left_out(folder)
    unknown = sorted(set(_class_names(folder)) - set(class_names))
    if unknown:
        raise ValueError(f"{folder / unknown[0]}: this class has no training folder")
    paths: list[str] = []
    labels: list[int] = []
    for label, class_name in enumerate(class_names):
        mine = layout.images_below(folder / class_name) if (folder / class_name).is_dir() else []
        paths += [str(path.relative_to(root)) for path in mine]
        labels += [label] * len(mine)
    if not paths:
        raise FileNotFoundError(f"{folder}: no images ({', '.join(ENDINGS)}) in its folders. {HOW_TO}")
    return files.file_split(name, root, paths, labels)


def _hold_out(
    root: Path, everything: Split, class_names: tuple[str, ...], seed: int, val_share: float, test_share: float
) -> Dataset:
    shares = {name: share for name, share in (("val", val_share), ("test", test_share)) if share > 0}
    positions = long_tail.held_out(everything.labels, shares, seed)
    if "val" in positions and not len(positions["val"]):
        logging.warning("%s: no split val, because no class has enough images for a share of %g", root, val_share)
        del positions["val"]
    splits = {name: dataclasses.replace(everything.select(chosen), name=name) for name, chosen in positions.items()}
    return dataclasses.replace(_dataset(root, class_names, splits), held_out=True)


def _dataset(root: Path, class_names: tuple[str, ...], splits: dict[str, Split]) -> Dataset:
    files.check_every_class(splits["train"], class_names, str(root))
    for name, split in splits.items():
        if not len(split):
            raise ValueError(
                f"{root}: no image is left for {name}; set config.data.{name}_share higher, or to 0 for no {name} split"
            )
    return Dataset(root.name, class_names, texts(class_names), splits)
