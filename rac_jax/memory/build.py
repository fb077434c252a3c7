"""Making a memory: encode the training images with E, index the keys, write the folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict
from tqdm import tqdm

from rac_jax import data, sharding, weights
from rac_jax.config import ConfigError
from rac_jax.data import pipeline
from rac_jax.data.dataset import Dataset, Split
from rac_jax.memory import index, store
from rac_jax.memory.retrieve import Encode
from rac_jax.models.rac import ImageEncoder


def open_or_build(
    config: ConfigDict,
    dataset: Dataset,
    encoder: ImageEncoder,
    encode: Encode,
    parameters: Any,
    *,
    folder: Path,
    mesh: Mesh,
) -> store.Memory:
    """The memory in `folder` if it is this config's; built there if there is none."""
    recipe = make_recipe(config, dataset, encoder)
    _check_k(config, len(dataset.split("train")))
    if not store.matches(folder, recipe):
        split = dataset.split("train")
        keys = encode_split(config, dataset, encode, parameters, mesh)
        if not np.isfinite(keys).all():
            bad = int(np.flatnonzero(~np.isfinite(keys).all(axis=1))[0])
            raise ValueError(f"E gave no finite key for {split.images.references()[bad]}")
        texts, text_of = _texts(dataset, split)
        store.write(folder, recipe, keys, texts, text_of, split.images.references(), index.build(keys, recipe["index"]))
    return store.read(folder)


def _texts(dataset: Dataset, split: Split) -> tuple[Sequence[str], np.ndarray]:
    """The distinct texts, and which of them each image has: its caption, or else its class's text."""
    if split.captions is None:
        return dataset.class_texts, split.labels
    texts, text_of = np.unique(np.array(split.captions, dtype=str), return_inverse=True)
    return texts.tolist(), text_of


def make_recipe(config: ConfigDict, dataset: Dataset, encoder: ImageEncoder) -> store.Recipe:
    """Everything that decides what a memory contains."""
    model = config.model
    return {
        "encoder": {
            "name": model.encoder,
            "options": model.encoder_options,
            "dtype": model.dtype,
            "weights": _weights_digest(config),
        },
        "preprocessing": {
            "image_size": config.data.image_size,
            "crop": config.data.crop,
            "interpolation": config.data.interpolation,
            "mean": list(encoder.preprocessing.mean),
            "std": list(encoder.preprocessing.std),
        },
        "data": {
            "name": dataset.name,
            "split": "train",
            "fingerprint": dataset.fingerprint("train"),
        },
        "index": index.spec(config),
    }


def encode_split(config: ConfigDict, dataset: Dataset, encode: Encode, parameters: Any, mesh: Mesh) -> np.ndarray:
    """Keys of the training images, plain (not augmented): [N, D] float32."""
    split = dataset.split("train")
    devices = mesh.size
    batch_size = -(-config.memory.encode_batch // devices) * devices
    batches = pipeline.eval_batches(
        split, data.eval_transform(config), batch_size=batch_size, workers=config.data.workers
    )
    compiled = jax.jit(encode, out_shardings=sharding.replicated(mesh))
    keys = []
    with tqdm(total=len(split), desc="memory: encode", unit="img") as bar:
        for batch in batches:
            images = sharding.put_batch(mesh, {"image": batch["image"]})["image"]
            keys.append(np.asarray(compiled(parameters, images))[batch["mask"]])
            bar.update(len(keys[-1]))
    return np.concatenate(keys)


def _check_k(config: ConfigDict, rows: int) -> None:
    k, spare = config.memory.k, 0 if config.memory.exclude == "none" else 1
    if k + spare > rows:
        raise ConfigError(
            f"config.memory.k is {k}, but the memory has {rows} images"
            + (" and a training image is no neighbour of its own" if spare else "")
            + f"; k may be at most {rows - spare}"
        )


def _weights_digest(config: ConfigDict) -> str:
    if not config.model.encoder_weights:
        return "random"
    return weights.digest(weights.resolve(config.model.encoder_weights, config.weights_dir))
