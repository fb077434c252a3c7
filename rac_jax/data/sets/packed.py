"""Read a folder that `python -m rac_jax.data.prepare` wrote: records, labels, names and texts."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from rac_jax.data import long_tail
from rac_jax.data.dataset import Dataset, Split
from rac_jax.data.sets import cifar
from rac_jax.data.sets.tfds import RecordImages

MANIFEST = "rac_jax.json"  # written last: a folder without it is not finished
VERSION = 2
SETTINGS = (
    "imbalance",
    "seed",
    "text_levels",
    "val_share",
    "test_share",
)  # fields of config.data that shape a data set

FIELDS: dict[str, type | tuple[type, type]] = {  # of the manifest
    "config_name": str, "name": str, "class_names": (list, str), "class_texts": (list, str), "splits": (list, str),
    "held_out": bool, "settings": dict, "sha256": (dict, str), "bytes": (dict, int),
}  # fmt: skip


def is_prepared(root: str) -> bool:
    """Whether the root is a finished packed folder."""
    return bool(root) and Path(root, MANIFEST).is_file()


def packed_name(name: str) -> str:
    """The name of a packed data set, without the path of the folder or table that it was made from."""
    kind = name.partition(":")[0]
    return kind if kind in ("folder", "table") else name


def load(data: ConfigDict) -> Dataset:
    """The data set in the packed folder `data.root`, which must be the one that the config describes."""
    root = Path(data.root)
    manifest = _read_manifest(root)
    packed = manifest["config_name"]
    if packed != packed_name(data.name):
        raise ValueError(
            f"config.data.name is {data.name!r}, but {root} was prepared from {packed!r}: "
            f"set --config.data.name={packed}"
        )
    _check_settings(manifest, data)
    _check_records(root, manifest["bytes"])
    splits = {split: _split(root, split, manifest) for split in manifest["splits"]}
    names, texts = tuple(manifest["class_names"]), tuple(manifest["class_texts"])
    dataset = Dataset(manifest["name"], names, texts, splits, held_out=manifest["held_out"])
    if data.imbalance <= 1 or manifest["settings"]["imbalance"] > 1:
        return dataset
    if packed.startswith("cifar") and not cifar.is_balanced(dataset):
        return dataset
    return long_tail.thin_out(dataset, data.imbalance, data.seed)


def _read_manifest(root: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((root / MANIFEST).read_text(encoding="utf-8"))
        version = manifest.get("version", 1)
    except (OSError, ValueError, AttributeError) as error:
        raise ValueError(f"{root / MANIFEST}: not readable as a description of packed images ({error})") from error
    if version != VERSION:
        raise ValueError(
            f"{root} was packed by another version of rac_jax (format {version}, not {VERSION}): "
            "pack it again with python -m rac_jax.data.prepare"
        )
    for name, of in FIELDS.items():
        if not _is_a(manifest.get(name), of):
            raise ValueError(f"{root / MANIFEST}: {name} is {manifest.get(name)!r}; it was damaged, so pack again")
    return manifest


def _is_a(value: Any, of: type | tuple[type, type]) -> bool:
    """Whether the value is of this type or, for a pair, a list or dict with items of the second type."""
    if not isinstance(of, tuple):
        return isinstance(value, of)
    outer, inner = of
    if not isinstance(value, outer):
        return False
    items: Any = value.values() if isinstance(value, dict) else value
    return all(isinstance(item, inner) for item in items)


def _check_settings(manifest: Mapping[str, Any], data: ConfigDict) -> None:
    """Settings that were applied while packing cannot be changed afterwards."""
    kind, packed = data.name.partition(":")[0], manifest["settings"]
    fixed = {"inat2018": ["text_levels"], "digits": ["seed"], "groceries": ["seed"]}.get(kind, [])
    fixed += ["seed", "val_share", "test_share"] if manifest["held_out"] else []
    fixed += ["imbalance", "seed"] if packed.get("imbalance", 0) > 1 else []
    for name in fixed:
        if data[name] != packed.get(name):
            was, flag = packed.get(name), name.replace("_", "-")
            raise ValueError(
                f"config.data.{name} is {data[name]!r}, but {data.root} was packed with {was!r}: "
                f"set --config.data.{name}={was}, or pack again with --{flag}={data[name]}"
            )


def _check_records(root: Path, sizes: Mapping[str, int]) -> None:
    for name, size in sizes.items():
        file = root / name
        if not file.is_file():
            raise ValueError(f"{file}: missing; pack again")
        if file.stat().st_size != size:
            raise ValueError(f"{file}: {file.stat().st_size} bytes instead of {size}; pack again")


def _split(root: Path, name: str, manifest: Mapping[str, Any]) -> Split:
    source = root / f"{name}.jsonl"
    try:
        content = source.read_bytes()
    except OSError as error:
        raise ValueError(f"{source}: cannot be read ({error.strerror}); pack again") from error
    if hashlib.sha256(content).hexdigest() != manifest["sha256"].get(source.name):
        raise ValueError(f"{source}: not as it was written (another checksum), so labels could be wrong; pack again")
    rows = [json.loads(line) for line in content.decode().split("\n") if line]
    labels = np.array([row["label"] for row in rows], np.int32)
    paths = np.array([row["path"].encode() for row in rows], np.bytes_)
    samples = np.array([row["sample"].encode() for row in rows], np.bytes_)
    captions = [row.get("caption", "") for row in rows]
    images = RecordImages("", str(root), name, np.arange(len(rows)), paths, samples)
    return Split(name, images, labels, captions if any(captions) else None)
