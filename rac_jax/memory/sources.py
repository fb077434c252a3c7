"""What can become a source of a memory: images with a text and perhaps a label, or keys that were made elsewhere."""

import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from ml_collections import ConfigDict

from rac_jax import data
from rac_jax.data import files, usable
from rac_jax.data.dataset import Dataset, Split
from rac_jax.data.dataset import texts as class_texts
from rac_jax.data.sets import folder, layout, table
from rac_jax.data.text_files import read_lines
from rac_jax.memory import columns

KINDS = """\
folder:DIR (DIR/<class>/<image>), list:FILE (lines `path label`, with --classes), table:FILE (.csv, .jsonl or
.parquet with the columns path and caption, label, or both), tfds:NAME, keys:FILE.npy (with --texts and perhaps
--labels), or any other data set that config.data.name takes"""


@dataclasses.dataclass(frozen=True)
class Content:
    """The content of a source: images to encode, or keys; and a text, a reference and a label for each."""

    origin: str  # for people
    root: str  # the folder that references are relative to, or ""
    fingerprint: str
    columns: pa.Table  # its labels are numbers in `class_names`
    class_names: tuple[str, ...] = ()
    split: Split | None = None  # to be encoded
    keys: np.ndarray | None = None  # [N, D], where there is no split

    def __len__(self) -> int:
        return len(self.columns)


def read(
    config: ConfigDict, kind: str, *, root: str, split: str, classes: str, texts: str, labels: str = ""
) -> Content:
    """What `kind` names (see KINDS), sized and cleaned as the config says."""
    name, _, argument = kind.partition(":")
    if name == "keys":
        return _keys(Path(argument), texts, labels)
    if name == "folder":
        dataset = _folder(argument or root, split)
    elif name == "table":
        dataset = _table(Path(argument), root, split)
    elif name == "list":
        dataset = _list(Path(argument), root, split, classes)
    else:
        config.data.name, config.data.root = kind, root
        return of_split(data.load(config), split)
    dataset = data.sized(dataset, config.data.image_size)
    if config.data.on_bad_image == "skip":
        part = usable.usable_part(dataset.split(split))
        dataset = dataclasses.replace(dataset, splits={split: part})
    return of_split(dataset, split, origin=kind)


def has_splits(kind: str, root: str) -> bool:
    """Whether what `kind` names is divided into splits."""
    name, _, argument = kind.partition(":")
    if name == "folder" and Path(argument or root).is_dir():
        return bool(layout.only_splits(Path(argument or root)) or layout.read(Path(argument or root)).splits)
    if name == "table" and Path(argument).is_file():
        return "split" in table.read_rows(Path(argument), needed=("path",))[0][1]
    return name not in ("list", "keys")


def of_split(dataset: Dataset, name: str, origin: str = "") -> Content:
    """A split of a data set: the text of an image is its caption or, without one, its class's text.

    Class names, not texts, identify classes. An image whose label is −1 has none, and needs a caption.
    """
    split = dataset.split(name)
    labels = split.labels if split.memory_labels is None else split.memory_labels
    of_class = pa.array(dataset.class_texts, pa.large_string())
    if split.captions is None:
        texts: pa.Array = pa.DictionaryArray.from_arrays(pa.array(labels, pa.int32()), of_class)
    else:
        own = of_class.take(pa.array(labels, pa.int32(), mask=labels < 0))
        captions = pa.array(split.captions, pa.large_string())
        texts = pc.if_else(pc.equal(captions, ""), own, captions)
    root = str(Path(split.images.root).resolve()) if isinstance(split.images, files.FileImages) else ""
    fingerprint = dataset.fingerprint(name)
    if origin:  # paths alone do not tell two folders apart
        fingerprint = hashlib.sha256(f"{root} {fingerprint}".encode()).hexdigest()
    return Content(
        origin=origin or f"{dataset.name}, {name}",
        root=root,
        fingerprint=fingerprint,
        columns=columns.make(texts, split.images.references(), labels),
        class_names=dataset.class_names,
        split=split,
    )


def _folder(root: str, split: str) -> Dataset:
    class_names, part = folder.read(root, split)
    return Dataset(Path(root).name, class_names, class_texts(class_names), {split: part})


def _table(file: Path, root: str, split: str) -> Dataset:
    """Rows need a path and a caption or a label; where there is a split column, only the rows of that split."""
    _require_file(file, "table")
    rows = table.read_rows(file, needed=("path",))
    if "split" in rows[0][1]:
        rows = [(where, row) for where, row in rows if table.split_of(where, row) == split]
    base = Path(root) if root else file.parent
    table.check_paths(rows, base)
    labels = [row.get("label", "") for _, row in rows]
    captions = [row.get("caption", "") for _, row in rows]
    for (where, _), label, caption in zip(rows, labels, captions, strict=True):
        if not (label or caption):
            raise ValueError(f"{where}: neither a caption nor a label")
    names, numbers = _numbered(labels)
    part = files.file_split(split, base, [row["path"] for _, row in rows], numbers.tolist())
    part = dataclasses.replace(part, captions=captions if any(captions) else None)
    return Dataset(file.stem, names, class_texts(names), {split: part})


def _numbered(labels: Sequence[str]) -> tuple[tuple[str, ...], np.ndarray]:
    """The class names among labels, sorted, and each label's number [N] int32; "" is −1."""
    names = tuple(sorted(set(labels) - {""}))
    number = {name: place for place, name in enumerate(names)} | {"": columns.NO_LABEL}
    return names, np.array([number[label] for label in labels], np.int32)


def _list(file: Path, root: str, split: str, classes: str) -> Dataset:
    """A list file; line n of the file of classes is the name of label n, from 0."""
    _require_file(file, "list")
    if not classes:
        raise ValueError(f"list:{file} needs --classes=FILE, with the name of a class on each line")
    _require_file(Path(classes), "--classes")
    names = tuple(line.strip() for line in read_lines(Path(classes)) if line.strip())
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{classes} names the class {twice!r} twice")
    listed = files.read_list(file, len(names))
    base = Path(root) if root else file.parent
    for position in files.spread(len(listed.paths)):
        if not (base / listed.paths[position]).is_file():
            line = listed.lines[position]
            raise FileNotFoundError(f"{file}, line {line}: there is no file {base / listed.paths[position]}")
    part = files.file_split(split, base, listed.paths, listed.labels)
    return Dataset(file.stem, names, class_texts(names), {split: part})


def _keys(file: Path, texts: str, labels: str) -> Content:
    """Keys [N, D] of a .npy file; texts from a file of lines, or a table with caption and perhaps path and label."""
    _require_file(file, "keys")
    if not texts:
        raise ValueError(f"keys:{file} needs --texts=FILE: a line for each key, or a table with the column caption")
    _require_file(Path(texts), "--texts")
    try:
        keys = np.load(file, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(f"{file} is not a .npy file, or was cut short ({error})") from error
    if not isinstance(keys, np.ndarray):
        raise ValueError(f"{file} is an archive of arrays, not a .npy file; keys are one array [rows, width]")
    if keys.ndim != 2 or keys.dtype.kind != "f":
        raise ValueError(f"{file} holds {keys.dtype} {list(keys.shape)}; keys are floating-point [rows, width]")
    named = [""] * len(keys)
    if Path(texts).suffix.lower() in (".csv", ".jsonl", ".ndjson", ".parquet"):
        rows = [row for _, row in table.read_rows(Path(texts), needed=("caption",))]
        lines = [row["caption"] for row in rows]
        images = [row.get("path") or f"{file.name}/{number}" for number, row in enumerate(rows)]
        named = [row.get("label", "") for row in rows]
    else:
        lines = _lines(Path(texts))
        images = [f"{file.name}/{number}" for number in range(len(lines))]
    if len(lines) != len(keys):
        raise ValueError(f"{texts} has {len(lines)} texts, but {file} has {len(keys)} keys")
    if labels:
        _require_file(Path(labels), "--labels")
        named = [line.strip() for line in _lines(Path(labels))]
        if len(named) != len(keys):
            raise ValueError(f"{labels} has {len(named)} labels, but {file} has {len(keys)} keys")
    class_names, numbers = _numbered(named)
    digest = hashlib.sha256(str(keys.shape).encode())
    for start in range(0, len(keys), 2**14):
        digest.update(keys[start : start + 2**14].tobytes())
    digest.update("\0".join(lines).encode())
    if class_names:
        digest.update("\0".join(named).encode())
    made = columns.make(pa.array(lines, pa.large_string()), images, numbers)
    return Content(f"keys:{file}", "", digest.hexdigest(), made, class_names, keys=keys)


def _lines(file: Path) -> list[str]:
    """The lines of a file. A line feed at the end of the last line is optional."""
    lines = read_lines(file)
    return lines if lines[-1] else lines[:-1]


def _require_file(file: Path, what: str) -> None:
    if not file.is_file():
        raise FileNotFoundError(f"{what}: there is no file {file}")
