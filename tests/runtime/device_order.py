"""Build a memory and look its images up, on devices that JAX lists in an unusual order.

As a command it is one of two processes with four devices each: FOLDER ADDRESS PROCESS.
"""

import dataclasses
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from rac_jax import config as configs
from rac_jax import data, sharding
from rac_jax.data import pipeline
from rac_jax.data.sets import digits
from rac_jax.memory import build
from rac_jax.models.preprocessing import HALF
from rac_jax.retrieval import callback, feed, tokenizers
from rac_jax.retrieval.encoder import Encoder
from rac_jax.retrieval.lookup import Lookup
from rac_jax.retrieval.retriever import Retriever
from rac_jax.retrieval.snippets import Snippets

BATCH = 48  # does not divide the 466 images


def encode(_, images: jax.Array) -> jax.Array:
    return images.astype(jnp.float32).mean(axis=(2, 3))


def make_config():
    config = configs.default()
    config.data.image_size, config.memory.k, config.memory.index = 16, 3, "flat"
    config.memory.encode_batch = config.eval.batch_size = BATCH
    return config


def keys_and_neighbours(folder: Path, mesh: Mesh | None = None) -> dict[str, np.ndarray]:
    """The keys of the digits' training images in a memory; keys and neighbours of test images by every lookup."""
    config, dataset = make_config(), digits.load(0)
    mesh = mesh or sharding.make_mesh(config)
    encoder = Encoder(encode, {}, HALF, 16)
    memory = build.open_or_build(config, dataset, encoder, folder=folder, mesh=mesh)
    snippets = Snippets.tokenise(memory.texts, tokenizers.clip())
    lookup = Lookup(memory, snippets, config.memory.k, 64, "none")
    retriever = Retriever(
        encoder=encoder,
        lookup=lookup,
        program=callback.through_host(encode, lookup, mesh),
        keys_program=callback.keys_only(encode, mesh),
        recipe={},
        cache=folder / "cache",
        train_fingerprint=dataset.fingerprint("train"),
        knowledge=None,
    )
    keys = feed.keys_of(config, retriever, mesh, dataset, "test")
    rows = feed.neighbours_of(retriever, dataset, "test", keys, training=False)["rows"]
    found = {"memory": np.array(memory.keys), "keys": keys, "rows": rows}
    for kind in ("callback", "pipelined"):
        config.memory.lookup = kind
        found[kind] = neighbours_by_id(config, retriever, mesh, dataset)
    config.memory.index, config.memory.lookup = "device", "callback"
    on_device = callback.on_device(encode, lookup, mesh, "float32")
    retriever = dataclasses.replace(retriever, program=on_device)
    return found | {"device": neighbours_by_id(config, retriever, mesh, dataset)}


def neighbours_by_id(config, retriever: Retriever, mesh: Mesh, dataset) -> np.ndarray:
    """The rows that are found for each test image, [N, k], from batches as a step gets them."""
    batches = pipeline.eval_batches(dataset.split("test"), data.eval_transform(config), batch_size=BATCH)
    result = np.full((len(dataset.split("test")), config.memory.k), -1)
    whole = jax.jit(lambda *arrays: arrays, out_shardings=sharding.replicated(mesh))
    for batch, found in feed.feed(config, retriever, mesh, dataset, batches, split="test", training=False):
        ids, mask, rows = jax.device_get(whole(batch["id"], batch["mask"], found["rows"]))
        result[ids[mask]] = rows[mask]
    retriever.lookup.check()
    return result


def main(folder: Path, address: str, process: int) -> None:
    jax.distributed.initialize(address, 2, process)
    listed = jax.devices()
    by_process = [[d for d in listed if d.process_index == p] for p in (0, 1)]
    in_turn = [device for pair in zip(*by_process, strict=True) for device in pair]
    # Only for sharding.py: JAX's own barriers rely on its real order.
    sharding.jax = SimpleNamespace(**(vars(jax) | {"devices": lambda: in_turn}))
    found = keys_and_neighbours(folder / "memory")
    if process == 0:
        np.savez(folder / "found.npz", **found)


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
