"""E, the memory and the program that looks images up in it, put together from a config."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from rac_jax import config as configs
from rac_jax.data.dataset import Split
from rac_jax.memory import build, index
from rac_jax.memory.store import Memory
from rac_jax.models.voices import Knowledge
from rac_jax.retrieval import cached, callback, duplicates, familiarity, texts
from rac_jax.retrieval.encoder import Encoder
from rac_jax.retrieval.lookup import KEEP_ALL, Lookup
from rac_jax.retrieval.tokenizers import Tokenizer


@dataclasses.dataclass(frozen=True)
class Retriever:
    """Finds the neighbours of images."""

    encoder: Encoder
    lookup: Lookup
    program: Callable[..., callback.Retrieved]  # (E's parameters, images, own rows) -> neighbours
    keys_program: Callable[..., jax.Array]  # the first half of `program`: (E's parameters, images) -> keys
    recipe: dict[str, Any]  # everything that decides which neighbours an image has
    cache: Path  # the folder for lookup=cached
    train_fingerprint: str  # of the training split
    knowledge: Knowledge  # what the rows say about the classes
    see_program: Callable[..., dict[str, jax.Array]] | None = (
        None  # as keys_program, with the input of B's upper blocks
    )
    held_out: np.ndarray | None = None  # [M, D]: keys of images that are not in the memory, for `usual_nearness`
    own: np.ndarray | None = None  # [N] int32: the training images' rows, if they are not a source of the memory
    own_keys: bool = False  # whether training needs the keys of the images' own rows, to subtract them from sums

    @property
    def memory(self) -> Memory:
        return self.lookup.memory

    def __call__(self, images: jax.Array, own: jax.Array) -> callback.Retrieved:
        """Tokens, rows and similarities for images [B, S, S, 3] and their own rows [B], both placed."""
        return self.program(self.encoder.parameters, images, own)

    def keys(self, images: jax.Array) -> jax.Array:
        """E's keys of placed images [B, S, S, 3]: [B, D]."""
        return self.keys_program(self.encoder.parameters, images)

    def see(self, images: jax.Array) -> dict[str, jax.Array]:
        """E's keys of placed images as `key`, and as `activation` what B starts from if it shares E's first blocks."""
        if self.see_program is None:
            return {"key": self.keys(images)}
        return self.see_program(self.encoder.parameters, images)

    def search(self, keys: jax.Array, own: np.ndarray) -> dict[str, np.ndarray]:
        """The neighbours of keys, looked up by this thread of the host. Waits for the keys."""
        return callback.search_on_host(self.lookup, keys, own)

    def own_rows(self, ids: np.ndarray, *, training: bool) -> np.ndarray:
        """The row of each image in the memory, which training leaves out: [b] int32."""
        if not training:
            return np.full_like(ids, KEEP_ALL)
        if self.own is not None:
            return self.own[ids]
        return self.memory.row_of(self.train_fingerprint, ids)

    def left_out(self, own: np.ndarray, *, plain: bool = False) -> dict[str, np.ndarray]:
        """What training leaves out of counts and sums for images with these own rows [b].

        `inside` [b] float32 is the number of an image's rows, `own_weight` [b] float32 how much they vote, and
        `own_label` [b] int32 their class, −1 for none. `own_key` [b, D] float32 is the key of the own row. It is left
        out if no voice needs it or the queries are `plain`: these keys themselves.
        """
        there, rows = own >= 0, np.maximum(own, 0)
        if (own == KEEP_ALL).all():  # in evaluation
            nothing = np.zeros(len(own), np.float32)
            return {"inside": nothing, "own_weight": nothing, "own_label": np.full(len(own), -1, np.int32)}
        inside = np.where(there, self._times_inside[rows], 0).astype(np.float32)
        label, weight = self._of_rows
        own_key = {"own_key": np.asarray(self.memory.keys[rows], np.float32)} if self.own_keys and not plain else {}
        return own_key | {
            "inside": inside,
            "own_weight": inside if weight is None else inside * weight[rows],
            "own_label": np.where(there, label[rows], -1).astype(np.int32),
        }

    @functools.cached_property
    def _of_rows(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Class and weight of each row, on the host."""
        weight = self.knowledge.row_weight
        return np.asarray(self.knowledge.row_label), None if weight is None else np.asarray(weight)

    @functools.cached_property
    def mean_fitting(self) -> float:
        """How many of the k texts fit into T's window, on average."""
        return self.lookup.mean_fitting() if self.lookup.snippets else 0.0

    @functools.cached_property
    def usual_nearness(self) -> np.ndarray:
        """How near the rows around held-out images are: see familiarity.py."""
        return familiarity.reference(self.lookup, self.held_out)

    @functools.cached_property
    def _times_inside(self) -> np.ndarray:
        """[N]: the enabled rows of a row's image with its label: itself and, with exclude=id, copies."""
        allowed = self.memory.allowed()
        enabled = np.ones(len(self.memory)) if allowed is None else allowed.astype(np.float64)
        same = self.lookup.same_image
        return enabled if same is None else duplicates.alike(same, self._of_rows[0], enabled)


def assemble(
    config: ConfigDict,
    tokenizer: Tokenizer | None,
    memory: Memory,
    e: Encoder,
    knowledge: Knowledge,
    *,
    cache: Path,
    mesh: Mesh,
    train_fingerprint: str,
    train: Split | None = None,
) -> Retriever:
    """The retriever over an open memory. Without a tokenizer, texts are not read.

    Only in training, of the split `train`, copies of its images in other sources are looked for: it leaves them out.
    """
    snippets = texts.tokenised(memory, tokenizer, config.memory.cut) if tokenizer else None
    ef_search, made_of, own, same_image = index.ef_search(config), recipe(config, memory), None, None
    if train is not None and config.memory.duplicates and memory.rows_of(train_fingerprint) is None:
        made_of |= {"own": train_fingerprint}
        found = cached.open_or_make(
            cache, "copies", made_of, lambda: {"pairs": _copies(config, memory, e, train, mesh)}, must_keep=False
        )
        own, groups = duplicates.own_rows(found["pairs"], train.labels, memory, np.asarray(knowledge.row_label))
        same_image = groups if config.memory.exclude == "id" else None
    elif train is not None and config.memory.exclude == "id":
        same_image = duplicates.groups(memory, train_fingerprint, config.memory.duplicates, ef_search)
    lookup = Lookup(memory, snippets, config.memory.k, ef_search, config.memory.exclude, same_image)
    if config.memory.index == "device":
        program = callback.on_device(e.encode, lookup, mesh, config.memory.device_dtype)
    else:
        program = callback.through_host(e.encode, lookup, mesh)
    return Retriever(
        encoder=e,
        lookup=lookup,
        program=program,
        keys_program=callback.keys_only(e.encode, mesh),
        recipe=made_of,
        cache=cache,
        train_fingerprint=train_fingerprint,
        knowledge=knowledge,
        see_program=callback.keys_only(e.see, mesh) if e.see else None,
        own=own,
        own_keys=train is not None and "prototype" in configs.voices(config),
    )


def _copies(config: ConfigDict, memory: Memory, e: Encoder, train: Split, mesh: Mesh) -> np.ndarray:
    """Pairs of a training image and a row with its key, [P, 2], for a memory that does not hold the split itself."""
    keys = build.encode_split(config, train, e, mesh)
    return duplicates.pairs(memory, keys, None, config.memory.duplicates, index.ef_search(config))


def recipe(config: ConfigDict, memory: Memory) -> dict[str, Any]:
    """Everything that decides which neighbours an image has."""
    asked = {name: config.memory[name] for name in ("k", "exclude", "duplicates", "ef_search", "index", "device_dtype")}
    asked |= {"keep": dict(config.memory.keep), "seed": config.data.seed if memory.kept is not None else 0}
    slices = memory.manifest.slices()
    rows = [[source.fingerprint, source.state, place.start, *source.removed] for source, place in slices]
    return {"memory": memory.fingerprint, "rows": rows, "asked": asked}
