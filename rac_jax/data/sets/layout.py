"""How a folder of images is laid out: which of its folders are splits, which are classes, and what is left out."""

import dataclasses
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from absl import logging

from rac_jax.data.reading import ENDINGS

SPLITS = {
    "train": ("train", "training", "trn"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing", "tst"),
}
NO_CLASSES = ("__MACOSX", "__pycache__", "@eaDir", "lost+found")  # made by programs, like folders that begin with a dot
HOW_TO = """\
Expected one folder of images for each class, either DIR/<class>/<image> or
DIR/train/<class>/<image> with DIR/test/<class>/<image> and, optionally, DIR/val/<class>/<image>."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """The folder of each split, by split; empty where the root holds the classes themselves."""

    splits: dict[str, Path]


def split_named(folder: str) -> str | None:
    """The split that a folder's name means: Train, TRAINING and train_set are all train."""
    name = re.sub(r"[ _-]*(set|images|data)$", "", folder.lower()).strip(" _-")
    return next((split for split, spellings in SPLITS.items() if name in spellings), None)


def read(root: Path) -> Layout:
    """The layout of a folder. What was understood is logged, as a warning where anything is left out."""
    folders = class_folders(root)
    named: dict[str, Path] = {}
    for folder in folders:
        split = split_named(folder.name)
        if split in named:
            raise ValueError(f"{root} has two folders for {split}: {named[split].name} and {folder.name}; rename one")
        if split:
            named[split] = folder
    others = [folder for folder in folders if folder not in named.values() and _holds_images(folder)]
    with_classes = {split: folder for split, folder in named.items() if any(map(_holds_images, _folders(folder)))}
    if "train" not in named or ("train" not in with_classes and others) or _are_classes(with_classes, others):
        if named:
            logging.warning(
                "%s: read %s as classes, not as splits, because of the folders beside: %s",
                root, _names(named.values()), _names(others) or "none",
            )  # fmt: skip
        return Layout({})
    if "train" not in with_classes:
        raise FileNotFoundError(f"{named['train']} holds no class folders with images. {HOW_TO}")
    left_out = [folder for folder in (*named.values(), *others) if folder not in with_classes.values()]
    if left_out:
        logging.warning(
            "%s: read %s as splits; left out %s (no split by name, or without class folders)",
            root, _names(with_classes.values()), _names(left_out),
        )  # fmt: skip
    return Layout(with_classes)


def only_splits(root: Path) -> dict[str, Path]:
    """The folders of the splits, if there is nothing else and each holds class folders; train may be missing."""
    named = {split_named(folder.name): folder for folder in class_folders(root)}
    if None in named or not all(any(map(_holds_images, _folders(folder))) for folder in named.values()):
        return {}
    return {split: folder for split, folder in named.items() if split is not None}


def _are_classes(splits: dict[str, Path], others: list[Path]) -> bool:
    """A folder "train" with folders in it, beside several folders of images and without val or test, is a class."""
    return list(splits) == ["train"] and len(others) > 1 and all(any(_images(folder)) for folder in others)


def class_folders(folder: Path) -> list[Path]:
    """The folders that may be classes, sorted; at least one."""
    found = _folders(folder)
    if not found:
        raise FileNotFoundError(f"{folder} holds no folders. {HOW_TO}")
    return found


def warn_of_left_out(folder: Path) -> None:
    """Log what is next to the class folders and is not a class."""
    hidden = [folder / entry.name for entry in _entries(folder) if entry.is_dir() and not _may_be_class(entry.name)]
    loose = sum(1 for _ in _images(folder))
    said = [f"the folders {_names(hidden)}"] if hidden else []
    said += [f"{loose} images that are in no class folder"] if loose else []
    if said:
        logging.warning("%s: left out %s", folder, " and ".join(said))


def images_below(folder: Path) -> list[Path]:
    """Every image in a folder and its sub-folders, sorted. One that cannot be read is an error, not left out."""
    found, ignored = [], []
    for path, folders, files in os.walk(folder, onerror=_unreadable):
        ignored += [Path(path, name) for name in folders if not _may_be_class(name) or Path(path, name).is_symlink()]
        folders[:] = [name for name in folders if _may_be_class(name)]
        found += [Path(path, name) for name in files if _is_image(name)]
    if ignored:
        logging.warning("%s: left out %s (hidden, or links to folders)", folder, _names(ignored))
    for image in found:
        check_name(image)
    return sorted(found, key=str)


def check_name(path: Path) -> None:
    """Names are stored as UTF-8. A name that cannot be is an error that shows it."""
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        shown = os.fsencode(path).decode("ascii", errors="backslashreplace")
        raise ValueError(f"{shown}: the name is not UTF-8; rename it") from error


def _unreadable(error: OSError) -> None:
    raise PermissionError(f"{error.filename}: this folder cannot be read ({error.strerror})") from error


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        _unreadable(error)
        raise


def _folders(folder: Path) -> list[Path]:
    return [folder / entry.name for entry in _entries(folder) if entry.is_dir() and _may_be_class(entry.name)]


def _images(folder: Path) -> Iterator[Path]:
    """The images directly in a folder."""
    return (folder / entry.name for entry in _entries(folder) if _is_image(entry.name) and not entry.is_dir())


def _holds_images(folder: Path) -> bool:
    return any(_images(folder)) or any(map(_holds_images, _folders(folder)))


def _is_image(name: str) -> bool:
    return not name.startswith(".") and name.lower().endswith(ENDINGS)


def _may_be_class(name: str) -> bool:
    return not name.startswith(".") and name not in NO_CLASSES


def _names(folders: Iterable[Path]) -> str:
    """A few names, for a message."""
    names = [os.fsencode(folder.name).decode(errors="backslashreplace") for folder in folders]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
