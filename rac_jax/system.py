"""The parts of a run, made from its config: data set, memory, retrieval, model. Training and evaluation share it."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from flax import nnx
from jax.sharding import Mesh
from ml_collections import ConfigDict

from rac_jax import config as configs
from rac_jax import data, models, parameters, sharding, weights
from rac_jax.data.dataset import Dataset
from rac_jax.data.pipeline import Batch
from rac_jax.memory import build, index, retrieve
from rac_jax.memory.lookup import KEEP_ALL, Lookup
from rac_jax.memory.manifest import ENABLED
from rac_jax.memory.snippets import Snippets
from rac_jax.memory.store import Memory
from rac_jax.models import convolution, tokenizers
from rac_jax.models.rac import RAC, ImageEncoder

ROLES = {"both": ("base", "encoder", "text"), "base": ("base",), "retrieval": ("encoder", "text")}


@dataclasses.dataclass(frozen=True)
class Retrieval:
    """E, the memory, and the program that asks it."""

    parameters: Any  # of E, on every device
    lookup: Lookup
    program: Callable[..., retrieve.Retrieved]
    encode: Callable[..., jax.Array]  # the program's first half: keys alone
    recipe: dict[str, Any]  # what decides which neighbours an image has
    cache: Path  # where neighbours that are found once are kept
    whole: float  # how many of the k texts T reads uncut, on average
    train_fingerprint: str  # of the training split
    row_class: jax.Array  # [N] int32: the class that a row's text names, or −1; on every device

    @property
    def memory(self) -> Memory:
        return self.lookup.memory

    def __call__(self, images: jax.Array, own: jax.Array) -> retrieve.Retrieved:
        """Tokens, rows and similarities for images [B, S, S, 3] and their own rows [B], both placed."""
        return self.program(self.parameters, images, own)

    def keys(self, images: jax.Array) -> jax.Array:
        """What E sees in placed images [B, S, S, 3]: [B, D]."""
        return self.encode(self.parameters, images)

    def search(self, keys: jax.Array, own: np.ndarray) -> dict[str, np.ndarray]:
        """The neighbours of keys, asked by this thread of the host; waits for the keys."""
        return retrieve.search_on_host(self.lookup, keys, own)

    def own_rows(self, batch: Batch, *, training: bool) -> np.ndarray:
        """The memory's rows of a batch's own images, which training leaves out: [b] int32."""
        if not training:
            return np.full_like(batch["id"], KEEP_ALL)
        return self.memory.row_of(self.train_fingerprint, batch["id"])


@dataclasses.dataclass(frozen=True, eq=False)  # one is equal to itself alone, and can be a key
class System:
    """Everything a run is made of, but for what training changes."""

    config: ConfigDict
    mesh: Mesh
    dataset: Dataset
    retrieval: Retrieval | None  # None for a base-only model
    make_model: Callable[[], RAC]  # with fresh parameters
    model: RAC  # its shapes, without values

    def put(self, batch: Batch, *, training: bool) -> tuple[dict[str, jax.Array], Any]:
        """A host batch on the devices, and what the memory says of it (None for a base-only model)."""
        if self.retrieval is None:
            return sharding.put_batch(self.mesh, batch), None
        own = self.retrieval.own_rows(batch, training=training)
        placed = sharding.put_batch(self.mesh, batch | {"own": own})
        return placed, self.retrieval(placed["image"], placed.pop("own"))

    def memory_record(self) -> dict[str, Any]:
        """Which memory this is: its fingerprint, and the rows of its enabled sources."""
        if self.retrieval is None:
            return {"memory": None, "sources": {}}
        found = self.retrieval.memory.manifest
        return {"memory": found.fingerprint, "sources": {s.name: s.rows for s in found.sources if s.state == ENABLED}}

    def read_weights(self) -> dict[str, np.ndarray]:
        """The arrays of the weights files of B and T, by the model's paths."""
        trained = [role for role in ROLES[self.config.model.branches] if role != "encoder"]
        return {
            f"{role}.{path}": array
            for role in trained
            for path, array in _read_weights(self.config, role, getattr(self.model, role)).items()
        }

    def check(self) -> None:
        """Raise what went wrong in a lookup, if anything did."""
        if self.retrieval is not None:
            self.retrieval.lookup.check()


def create(config: ConfigDict, workdir: Path) -> System:
    """Make all parts, but no trained parameter."""
    mesh = sharding.make_mesh(config)
    dataset = data.create(config)
    _require_weights(config)
    tokenizer = None
    if "text" in ROLES[config.model.branches]:
        m = config.model
        tokenizer = tokenizers.create(m.text, weights=m.text_weights, weights_dir=config.weights_dir)
    make_model = functools.partial(_model, config, dataset.num_classes, tokenizer)
    model = nnx.eval_shape(make_model)
    retrieval = None
    if tokenizer is not None:
        folder = Path(config.memory.dir) if config.memory.dir else workdir / "memory"
        cache = Path(config.memory.cache) if config.memory.cache else workdir / "neighbours"
        retrieval = _retrieval(config, dataset, tokenizer, folder, cache, mesh)
    return System(config, mesh, dataset, retrieval, make_model, model)


def _require_weights(config: ConfigDict) -> None:
    """Say which weights are missing before anything is made or encoded."""
    for role in ROLES[config.model.branches]:
        if source := config.model[f"{role}_weights"]:
            weights.resolve(source, config.weights_dir)


def _model(config: ConfigDict, num_classes: int, tokenizer: tokenizers.Tokenizer | None) -> RAC:
    m, rngs = config.model, nnx.Rngs(config.seed)
    base = text = None
    if "base" in ROLES[m.branches]:
        base = _encoder(config, "base", rngs, image_size=config.data.image_size, drop_path=m.drop_path)
    if tokenizer is not None:
        text = _encoder(config, "text", rngs, vocab_size=tokenizer.vocab_size, context_length=tokenizer.length)
    return RAC(base, text, num_classes=num_classes, scale=m.scale, cosine=config.loss.name == "ldam", rngs=rngs)


def _encoder(config: ConfigDict, role: str, rngs: nnx.Rngs, **arguments: Any) -> Any:
    """The model that plays a role (base, encoder, text), with fresh parameters."""
    name, options = config.model[role], configs.options(config, f"model.{role}_options")
    try:
        dtype = jnp.dtype(config.model.dtype)
        return models.create(name, dtype=dtype, rngs=rngs, **arguments, **options)
    except (TypeError, ValueError) as error:
        raise configs.ConfigError(f"config.model.{role}={name!r} with {options}: {error}") from error


def _read_weights(config: ConfigDict, role: str, model: Any) -> dict[str, np.ndarray]:
    """The arrays of the weights file of a role, by path; none when it is trained from scratch."""
    source = config.model[f"{role}_weights"]
    return weights.read(model, source, weights_dir=config.weights_dir) if source else {}


def frozen_encoder(config: ConfigDict, mesh: Mesh) -> tuple[ImageEncoder, retrieve.Encode, Any]:
    """E: its shapes, itself as a function of (parameters, images), and its parameters on every device."""

    def make() -> Any:
        return _encoder(config, "encoder", nnx.Rngs(0), image_size=config.data.image_size)

    encoder = nnx.eval_shape(make)
    places = jax.tree.map(lambda _: sharding.replicated(mesh), nnx.to_pure_dict(nnx.state(encoder)))
    (arrays,) = parameters.create(make, _read_weights(config, "encoder", encoder), places)
    if convolution.with_norms(encoder):
        graph = nnx.graphdef(encoder)

        def folded(arrays: Any) -> Any:
            return nnx.to_pure_dict(nnx.state(convolution.fold_norms(nnx.merge(graph, arrays))))

        arrays = jax.jit(folded, out_shardings=sharding.replicated(mesh))(arrays)
        encoder = nnx.eval_shape(lambda: convolution.fold_norms(make()))
    return encoder, retrieve.encoder_function(encoder), arrays


def _retrieval(
    config: ConfigDict,
    dataset: Dataset,
    tokenizer: tokenizers.Tokenizer,
    folder: Path,
    cache: Path,
    mesh: Mesh,
) -> Retrieval:
    encoder, encode, encoder_parameters = frozen_encoder(config, mesh)
    memory = build.open_or_build(config, dataset, encoder, encode, encoder_parameters, folder=folder, mesh=mesh)
    snippets = Snippets.tokenise(memory.texts, tokenizer, config.memory.cut)
    lookup = Lookup(memory, snippets, config.memory.k, index.ef_search(config), config.memory.exclude)
    whole = lookup.mean_whole()
    logging.info("T's window holds %.1f of %d snippets whole, on average", whole, lookup.k)
    if config.memory.index == "device":
        program = retrieve.create_on_device(encode, lookup, mesh, config.memory.device_dtype)
    else:
        program = retrieve.create(encode, lookup, mesh)
    keys = retrieve.create_keys(encode, mesh)
    asked = {name: config.memory[name] for name in ("k", "exclude", "keep", "ef_search", "index", "device_dtype")}
    rows = [[source.fingerprint, source.state, place.start] for source, place in memory.manifest.slices()]
    asked |= {"seed": config.data.seed} if config.memory.keep else {}
    recipe = {"memory": memory.fingerprint, "rows": rows, "asked": asked}
    row_class = sharding.put_replicated(mesh, _row_classes(memory, dataset))
    train = dataset.fingerprint("train")
    return Retrieval(encoder_parameters, lookup, program, keys, recipe, cache, whole, train, row_class)


def _row_classes(memory: Memory, dataset: Dataset) -> np.ndarray:
    """[N] int32: the first class whose text is a row's text, or −1."""
    class_of = {text: label for label, text in reversed(list(enumerate(dataset.class_texts)))}
    return np.array([class_of.get(text, -1) for text in memory.texts], np.int32)[memory.text_of]
