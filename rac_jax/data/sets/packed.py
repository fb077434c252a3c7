"""Reading what `python -m rac_jax.data.prepare` wrote: records, and beside them labels, names and texts."""

import json
from pathlib import Path

import numpy as np

from rac_jax.data.dataset import Dataset, Split
from rac_jax.data.sets.tfds import RecordImages

MANIFEST = "rac_jax.json"  # written last: a folder without it is not finished


def is_prepared(root: str) -> bool:
    return bool(root) and Path(root, MANIFEST).is_file()


def packed_name(name: str) -> str:
    """What a packed data set goes by: a folder or table no longer depends on where it was."""
    kind = name.partition(":")[0]
    return kind if kind in ("folder", "table") else name


def load(root: str, name: str) -> Dataset:
    """The data set in a prepared folder, which must be the one that the config names."""
    manifest = json.loads(Path(root, MANIFEST).read_text(encoding="utf-8"))
    if manifest["config_name"] != packed_name(name):
        raise ValueError(
            f"config.data.name is {name!r}, but {root} was prepared from {manifest['config_name']!r}: "
            f"set --config.data.name={manifest['config_name']}"
        )
    splits = {split: _split(Path(root), split) for split in manifest["splits"]}
    return Dataset(manifest["name"], tuple(manifest["class_names"]), tuple(manifest["class_texts"]), splits)


def _split(root: Path, name: str) -> Split:
    rows = [json.loads(line) for line in (root / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
    labels = np.array([row["label"] for row in rows], np.int32)
    paths = np.array([row["path"].encode() for row in rows], np.bytes_)
    captions = [row.get("caption", "") for row in rows]
    images = RecordImages("", str(root), name, np.arange(len(rows)), paths)
    return Split(name, images, labels, captions if any(captions) else None)
