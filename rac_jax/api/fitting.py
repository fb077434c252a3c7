"""What `rac_jax.fit` is given (images, labels, config fields) as the config of a run."""

import difflib
import filecmp
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict
from PIL import Image

from rac_jax import config as configs
from rac_jax import data
from rac_jax.config import ConfigError
from rac_jax.data import record
from rac_jax.data.reading import at_home, pixels_of, read_bytes
from rac_jax.evaluate import IMAGES
from rac_jax.predict import Picture, sorted_out
from rac_jax.runtime import files
from rac_jax.weights.catalogue import ENTRIES

TABLES = (".csv", ".jsonl", ".ndjson", ".parquet")

Labels = Iterable[Any]  # one for each image, or that of a single image
Pictures = str | Path | np.ndarray | jax.Array | Iterable[Picture]  # a folder, a table, or images


def default_config() -> ConfigDict:
    """Answers from the memory, with EfficientNet-Lite0 as E: what configs/folder.py has."""
    c = configs.default("fit")
    c.data.image_size = 128
    c.data.on_bad_image = "skip"
    c.data.val_share = 0.0
    c.model.encoder.update(name="efficientnet_lite0", weights="efficientnet_lite0:imagenet")
    c.eval.batch_size = 128
    c.tune.batch_size = 64
    configs.instant(c)
    return c


def adapt(config: ConfigDict, given: set[str]) -> None:
    """Values that depend on the data, for fields that were not given."""
    every = config.copy_and_resolve_references()
    every.data.on_bad_image = "error"  # only counted here
    dataset = data.load(every)
    images = len(dataset.split("train"))
    if config.tune.share and "model.sharpness" not in given:
        config.model.sharpness = configs.TUNED_SHARPNESS
    if "memory.k" not in given:
        config.memory.k = max(1, min(config.memory.k, images // 2))
    if "eval.split" not in given and config.eval.split not in dataset.splits:
        config.eval.split = "train"


def check(config: ConfigDict, given: set[str], source: Pictures, labels: Labels | None) -> None:
    """Refuse fields that the source decides, and another E without its weights."""
    is_folder = isinstance(source, str | Path) and Path(source).expanduser().is_dir()
    decided = {"data.name", "data.root"} if is_folder or labels is not None else {"data.name"}
    for name in sorted(given & decided):
        first = "images" if labels is not None else source
        raise ConfigError(f"config.{name} is what fit is given first, {first}; leave it out")
    name, weights = config.model.encoder.name, "model.encoder.weights"
    if name != default_config().model.encoder.name and weights not in given:
        found = ", ".join(repr(key) for key, entry in ENTRIES.items() if name in entry.models) or "a file"
        raise ConfigError(
            f"config.model.encoder.name is {name!r}: give config.{weights} too ({found}, or '' for random)"
        )


def named(source: Pictures, labels: Labels | None, folder: Path) -> tuple[str, str]:
    """What `rac_jax.fit` is given, as config.data.name and config.data.root; images are written below `folder`."""
    if labels is not None:
        if isinstance(source, str | Path):
            raise ValueError("labels go with images; a folder or a table has its own")
        return f"table:{_kept_images(source, labels, folder)}", ""
    if not isinstance(source, str | Path):
        raise ValueError("images need labels: fit(images, labels)")
    path = Path(source).expanduser()
    if path.is_dir():
        return "folder", str(path.resolve())
    if path.suffix.lower() in TABLES:
        return f"table:{path.resolve()}", ""
    return str(source), ""


def _kept_images(images: Pictures, labels: Labels, workdir: Path) -> Path:
    """The table of the images in a run's folder. A run that was trained on other images keeps its own."""
    folder = workdir / IMAGES / "train"
    new = folder.with_name(f"train.writing-{os.getpid()}")
    try:
        table = write_images(images, labels, new).name
        if not (workdir / record.FILE).exists():
            shutil.rmtree(folder, ignore_errors=True)
            new.rename(folder)
        elif not _same_files(folder, new):
            raise record.OtherData(f"{workdir} holds a run on other images; use another workdir, or those images")
        return folder / table
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _same_files(folder: Path, other: Path) -> bool:
    """Whether two folders have the same files."""
    names = sorted(path.name for path in other.iterdir())
    there = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    return there == names and all(filecmp.cmp(folder / name, other / name, shallow=False) for name in names)


def one_for_each(images: Pictures, labels: Labels) -> tuple[Iterable[Picture], Iterable[Any]]:
    """Images and their labels, one for each. A single image may have its label alone."""
    if isinstance(images, str | Path) and (at_home(images).is_dir() or Path(images).suffix.lower() in TABLES):
        raise ValueError("labels go with images; a folder or a table has its own")
    several, single = sorted_out(images)
    if single and (isinstance(labels, str) or not isinstance(labels, Iterable)):
        labels = [labels]
    if isinstance(labels, str) or not isinstance(labels, Iterable):
        raise ValueError(f"labels is {labels!r}; several images need a list with a label for each")
    return several, labels


def write_images(images: Pictures, labels: Labels, folder: Path) -> Path:
    """Images and labels as files and a table of them. Files are copied as they are, other images become PNGs."""
    images, labels = one_for_each(images, labels)
    names, lines = _names(labels), []
    with files.writing(folder):
        folder.mkdir(parents=True)
    for number, image in enumerate(images):
        if number == len(names):
            raise ValueError(f"there are more images than labels ({len(names)}); give a label for each image")
        if isinstance(image, str | Path):
            name = f"{number:06d}{Path(image).suffix}"
            files.write_bytes(folder / name, read_bytes(at_home(image)))
        else:
            name = f"{number:06d}.png"
            with files.writing(folder / name):
                Image.fromarray(pixels_of(image)).save(folder / name)
        lines.append(json.dumps({"path": name, "label": names[number]}) + "\n")
    if len(lines) < len(names):
        raise ValueError(f"there are {len(lines)} images and {len(names)} labels; give a label for each image")
    files.write_text(folder / "table.jsonl", "".join(lines))
    return folder / "table.jsonl"


def _names(labels: Iterable[Any]) -> list[str]:
    """Labels as text. None and NaN are not labels."""
    found = list(labels)
    for number, label in enumerate(found):
        if label is None or (isinstance(label, float | np.floating) and np.isnan(label)):
            raise ValueError(f"labels[{number}] is {label}; give each image a label, or leave it out")
    return list(map(str, found))


def set_fields(config: ConfigDict, fields: Mapping[str, Any]) -> set[str]:
    """Set config fields by name (memory__k, "memory.k", or memory={"k": …}). Returns the dotted names."""
    known, flat = configs.names(config), dict(_flat(fields))
    for name, value in flat.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            raise ConfigError(f"there is no field {name}" + (f"; similar fields: {', '.join(near)}" if near else ""))
        parent, _, last = name.rpartition(".")
        section = configs.field(config, parent) if parent else config
        value = str(value) if isinstance(value, Path) else tuple(value) if isinstance(value, list) else value
        try:
            section[last] = value
        except TypeError:
            kind = type(section[last]).__name__
            raise ConfigError(f"config.{name} is {value!r}; it must be of type {kind}") from None
    return set(flat)


def _flat(fields: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in fields.items():
        name = prefix + name.replace("__", ".")
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}.")
        else:
            yield name, value
