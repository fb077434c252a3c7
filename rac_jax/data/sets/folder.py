"""A folder of your own: one folder of images a class, with or without train, val and test folders.

With them, DIR/train/cat/1.jpg and DIR/test/cat/2.jpg; a validation folder without a test folder is
what is tested on. Without them, DIR/cat/1.jpg, and test and validation images are held out here.
"""

import dataclasses
from pathlib import Path

from rac_jax.data import files, long_tail
from rac_jax.data.dataset import Dataset, Split, with_test, words
from rac_jax.data.reading import ENDINGS

FOLDERS = {"train": ("train", "training"), "val": ("val", "valid", "validation"), "test": ("test", "testing")}

HOW_TO = """\
Expected one folder of images for each class, either DIR/<class>/<image> or
DIR/train/<class>/<image> with DIR/test/<class>/<image> and, optionally, DIR/val/<class>/<image>."""


def load(root: str, *, seed: int, val_share: float, test_share: float) -> Dataset:
    """The shares are of each class's images; they matter where there is no test folder."""
    folder = Path(root)
    if not root or not folder.is_dir():
        raise FileNotFoundError(f"config.data.root is {root!r}, which is no folder. {HOW_TO}")
    parts = {name: found for name, spellings in FOLDERS.items() if (found := _first(folder, spellings))}
    if "train" not in parts:
        class_names = _class_folders(folder)
        return _hold_out(folder, _scan(folder, folder, class_names), class_names, seed, val_share, test_share)
    class_names = _class_folders(parts["train"])
    splits = {name: _scan(folder, part, class_names, name) for name, part in parts.items()}
    if len(splits) == 1:
        return _hold_out(folder, splits["train"], class_names, seed, val_share, test_share)
    return _dataset(folder, class_names, with_test(splits))


def read(root: str, split: str) -> tuple[tuple[str, ...], Split]:
    """The class names and all images of a folder of class folders, or of its folder for that split."""
    folder = Path(root)
    if not root or not folder.is_dir():
        raise FileNotFoundError(f"{root!r} is no folder. {HOW_TO}")
    part = _first(folder, FOLDERS.get(split, (split,))) if _first(folder, FOLDERS["train"]) else folder
    if part is None:
        raise FileNotFoundError(f"{folder} has a folder for train, but none for {split}")
    class_names = _class_folders(part)
    return class_names, _scan(folder, part, class_names, split)


def _first(folder: Path, names: tuple[str, ...]) -> Path | None:
    """The folder of a split, by one of these names; one of images alone is a class of that name (a railway train)."""
    return next((folder / name for name in names if (folder / name).is_dir() and not _is_class(folder / name)), None)


def _is_class(folder: Path) -> bool:
    entries = list(folder.iterdir())
    return any(map(_is_image, entries)) and not any(entry.is_dir() for entry in entries)


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in ENDINGS


def _class_folders(folder: Path) -> tuple[str, ...]:
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and entry.name[0] != ".")
    if not names:
        raise FileNotFoundError(f"{folder} holds no folders. {HOW_TO}")
    return tuple(names)


def _scan(root: Path, folder: Path, class_names: tuple[str, ...], name: str = "train") -> Split:
    """Every image below the class folders, sorted, with its class."""
    unknown = sorted(set(_class_folders(folder)) - set(class_names))
    if unknown:
        raise ValueError(f"{folder / unknown[0]}: this class has no training folder")
    paths, labels = [], []
    for label, class_name in enumerate(class_names):
        found = (folder / class_name).rglob("*") if (folder / class_name).is_dir() else ()
        mine = sorted(str(path.relative_to(root)) for path in found if _is_image(path))
        paths += mine
        labels += [label] * len(mine)
    if not paths:
        raise FileNotFoundError(f"{folder}: no images ({', '.join(ENDINGS)}) in its folders. {HOW_TO}")
    return files.file_split(name, root, paths, labels)


def _hold_out(
    root: Path, everything: Split, class_names: tuple[str, ...], seed: int, val_share: float, test_share: float
) -> Dataset:
    shares = {name: share for name, share in (("val", val_share), ("test", test_share)) if share > 0}
    positions = long_tail.held_out(everything.labels, shares, seed)
    splits = {name: dataclasses.replace(everything.select(chosen), name=name) for name, chosen in positions.items()}
    return dataclasses.replace(_dataset(root, class_names, splits), held_out=True)


def _dataset(root: Path, class_names: tuple[str, ...], splits: dict[str, Split]) -> Dataset:
    files.check_every_class(splits["train"], class_names, str(root))
    for name, split in splits.items():
        if not len(split):
            raise ValueError(f"{root}: no image is left for {name}; set config.data.{name}_share higher")
    return Dataset(root.name, class_names, tuple(words(name) for name in class_names), splits)
