"""Views of a split's images, computed once: E's keys, and the output of the frozen blocks that B shares with E.

View 0 is the plain image, view EVALUATED what answers are computed from (config.eval.views). The others are augmented,
drawn by the seed and their number. A view is one file, which appears complete or not at all: an interrupted run
continues after the last complete view.
"""

import dataclasses
import functools
import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jax.sharding import Mesh
from ml_collections import ConfigDict
from tqdm import tqdm

from rac_jax import data, sharding
from rac_jax.config import ConfigError
from rac_jax.data import pipeline
from rac_jax.data.dataset import Dataset, Split
from rac_jax.memory import build, index
from rac_jax.retrieval.cached import everybody
from rac_jax.retrieval.encoder import Encode, See
from rac_jax.retrieval.retriever import Retriever
from rac_jax.runtime import files, processes

EVALUATED = -1  # the number of the view that evaluation sees
KEY, ACTIVATION = "key", "activation"
LARGEST = float(np.finfo(np.float16).max)
AUGMENTATION = (
    "crop_scale", "crop_ratio", "flip", "train_interpolation", "randaugment_layers", "randaugment_magnitude",
    "randaugment_noise",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class View:
    """One view of every image of a split."""

    name: str  # "" for the plain images
    keys: np.ndarray  # [N, D] float32
    activations: (
        np.ndarray | None
    )  # [N, V, …] float16, of V crops, mapped from a file; None if B does not start from them

    def rows(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        """Those of some images."""
        some = {KEY: self.keys[ids]}
        return some if self.activations is None else some | {ACTIVATION: self.activations[ids]}


def of_split(
    config: ConfigDict, retriever: Retriever, mesh: Mesh, dataset: Dataset, split: str, number: int = 0
) -> View:
    """A view of a split, read from its file or made now. Keys of plain images are the memory's where it holds them."""
    if number == EVALUATED and config.eval.views == 1:
        number = 0
    known = _known(config, retriever, mesh, dataset, split) if number == 0 else None
    wanted = (*([KEY] if known is None else []), *([ACTIVATION] if retriever.encoder.see else []))
    if not wanted:
        assert known is not None
        return View("", known, None)
    images = dataset.split(split)
    name = "crops" if number == EVALUATED else f"view{number}"
    path = retriever.cache / f"{name}_{split}-{_digest(config, retriever, dataset, split, number, wanted)}.npy"
    rows = _opened(path, len(images))
    if not everybody(rows is not None):
        _make(config, retriever, mesh, images, number, wanted, path)
        rows = _opened(path, len(images))
    if rows is None:
        raise OSError(f"{path} was written but cannot be read; config.memory.cache must be a folder of all processes")
    keys = np.ascontiguousarray(rows[KEY]) if known is None else known
    return View(name if number else "", keys, rows[ACTIVATION] if ACTIVATION in wanted else None)


def _known(config: ConfigDict, retriever: Retriever, mesh: Mesh, dataset: Dataset, split: str) -> np.ndarray | None:
    """Keys of plain images [N, D]: the memory's, or else those in config.memory.kept_keys, which is added to."""
    memory, images = retriever.memory, dataset.split(split)
    rows = memory.row_of(dataset.fingerprint(split), np.arange(len(images), dtype=np.int32))
    if len(rows) and rows[0] >= 0:
        return np.asarray(memory.keys[rows], np.float32)
    if not config.memory.kept_keys or jax.process_count() > 1:
        return None
    keys = build.encode_split(config, images, retriever.encoder, mesh)
    return index.unit(keys) if retriever.lookup.metric == "cosine" else keys


def _digest(
    config: ConfigDict, retriever: Retriever, dataset: Dataset, split: str, number: int, wanted: tuple[str, ...]
) -> str:
    """Of everything that a view's numbers depend on."""
    recipe = {name: retriever.memory.recipe[name] for name in ("encoder", "preprocessing")}
    made_of = {"recipe": recipe, "split": dataset.fingerprint(split), "wanted": wanted, "view": number}
    made_of |= {
        "crops": config.eval.views if number == EVALUATED else 1,
        "metric": retriever.lookup.metric,
        "blocks": retriever.encoder.blocks,
    }
    if number > 0:
        made_of |= {"seed": config.seed} | {name: config.data[name] for name in AUGMENTATION}
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:12]


def _opened(path: Path, images: int) -> np.ndarray | None:
    """The rows in a file, mapped; None if there are none."""
    if not path.exists():
        return None
    try:
        rows = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        logging.warning("%s is damaged (%s) and is made again", path, error)
        return None
    return rows if len(rows) == images else None


def _make(
    config: ConfigDict,
    retriever: Retriever,
    mesh: Mesh,
    images: Split,
    number: int,
    wanted: tuple[str, ...],
    path: Path,
) -> None:
    """Encode the images and write the file. All processes encode; the first writes."""
    program = _program(retriever.encoder.encode, retriever.encoder.see, mesh, wanted)
    size = sharding.padded_size(config.memory.encode_batch, mesh.size)
    crops = (config.eval.views,) if number == EVALUATED else ()
    pixels = jax.ShapeDtypeStruct((1, *crops, *[config.data.image_size] * 2, 3), jnp.uint8)
    shapes = jax.eval_shape(program, retriever.encoder.parameters, pixels)
    kind = np.dtype([(name, np.dtype(shapes[name].dtype), shapes[name].shape[1:]) for name in wanted])
    _require_space(config, path.parent, len(images) * kind.itemsize)
    batches = _batches(config, images, number, size)
    shown = {
        "desc": f"crops of {images.name}" if crops else f"view {number} of {images.name}",
        "unit": "img",
        "disable": not processes.first(),
    }
    with tqdm(total=len(images), **shown) as bar:
        encoded = _encoded(program, retriever, mesh, batches, bar, len(images))
        if processes.first():
            with files.atomic(path) as temporary:
                rows = np.lib.format.open_memmap(temporary, mode="w+", dtype=kind, shape=(len(images),))
                for start, some in encoded:
                    for name, values in some.items():
                        rows[name][start : start + len(values)] = values
                rows.flush()
        else:
            for _ in encoded:
                pass
    processes.wait()


@functools.lru_cache(maxsize=4)  # the views of a run share what the first of them compiled
def _program(encode: Encode, see: See | None, mesh: Mesh, wanted: tuple[str, ...]) -> Any:
    """Compiled: E's parameters and images to what is wanted. Blocks that it does not need are not run."""

    def program(parameters: Any, images: jax.Array) -> dict[str, jax.Array]:
        seen = see(parameters, images) if see else {KEY: encode(parameters, images)}
        if ACTIVATION in seen:
            seen[ACTIVATION] = jnp.clip(seen[ACTIVATION].astype(jnp.float32), -LARGEST, LARGEST).astype(jnp.float16)
        return {name: seen[name] for name in wanted}

    return jax.jit(program, out_shardings=sharding.replicated(mesh))


def _batches(config: ConfigDict, images: Split, number: int, size: int) -> Iterator[pipeline.Batch]:
    if number == EVALUATED:
        transform = data.eval_transform(config)
    else:
        transform = data.train_transform(config) if number else data.plain_transform(config)
    draw = pipeline.epoch_seed(config.seed, max(number, 0))
    return pipeline.eval_batches(images, transform, batch_size=size, workers=config.data.workers, draw=draw)


def _encoded(
    program: Any, retriever: Retriever, mesh: Mesh, batches: Iterator[pipeline.Batch], bar: tqdm, images: int
) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """Where each batch starts and what the program makes of it, without padding."""
    for batch in batches:
        placed = sharding.put_batch(mesh, {"image": batch["image"]})["image"]
        seen = jax.device_get(program(retriever.encoder.parameters, placed))
        if KEY in seen and retriever.lookup.metric == "cosine":
            seen[KEY] = index.unit(seen[KEY])
        count = min(len(placed), images - bar.n)
        yield bar.n, {name: values[:count] for name, values in seen.items()}
        bar.update(count)


def _require_space(config: ConfigDict, folder: Path, size: int) -> None:
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    free = shutil.disk_usage(existing).free
    if size > free:
        raise ConfigError(
            f"config.train.views is {config.train.views}: a view needs {size / 1e9:.1f} GB, and {folder} has "
            f"{free / 1e9:.1f} GB free; 0 needs none, config.memory.cache may name another disk, and "
            "config.optim.frozen may freeze B up to a block with a smaller output"
        )
