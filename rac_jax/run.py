"""A run, put together from its config: data set, memory, retriever, model and mesh."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx
from jax.sharding import Mesh
from ml_collections import ConfigDict

from rac_jax import data, models, sharding, weights
from rac_jax.data.dataset import Dataset
from rac_jax.data.pipeline import Batch
from rac_jax.memory.manifest import ENABLED
from rac_jax.models.rac import RAC
from rac_jax.retrieval import feed, retriever, tokenizers
from rac_jax.retrieval.retriever import Retriever
from rac_jax.retrieval.tokenizers import Tokenizer

ROLES = {"both": ("base", "encoder", "text"), "base": ("base",), "retrieval": ("encoder", "text")}


@dataclasses.dataclass(frozen=True, eq=False)  # hashed by identity, so that compiled steps can be cached by run
class Run:
    """Everything a run consists of, except what training changes."""

    config: ConfigDict
    mesh: Mesh
    dataset: Dataset
    retriever: Retriever | None  # None for a base-only model
    make_model: Callable[[], RAC]  # with fresh parameters
    model: RAC  # shapes without values

    @classmethod
    def from_config(
        cls,
        config: ConfigDict,
        workdir: Path,
        *,
        accept: Callable[[Dataset], None] = lambda dataset: None,
        may_build: bool = True,
    ) -> "Run":
        """Load or build every part except trained parameters. `accept` may refuse the data before anything is built.

        Unless `may_build`, a missing memory is an error.
        """
        mesh = sharding.make_mesh(config)
        dataset = data.load(config)
        accept(dataset)
        _require_weights(config)
        tokenizer = tokenizers.from_config(config) if "text" in ROLES[config.model.branches] else None
        make_model = functools.partial(_model, config, dataset.num_classes, tokenizer)
        model = nnx.eval_shape(make_model)
        found = None
        if tokenizer is not None:
            folder = Path(config.memory.dir) if config.memory.dir else workdir / "memory"
            cache = Path(config.memory.cache) if config.memory.cache else workdir / "neighbours"
            found = retriever.open_or_build(
                config, dataset, tokenizer, folder=folder, cache=cache, mesh=mesh, may_build=may_build
            )
        return cls(config, mesh, dataset, found, make_model, model)

    def put(self, batch: Batch, *, training: bool) -> feed.Fed:
        """A host batch on the devices, and the neighbours of its images (None for a base-only model)."""
        return feed.put(self.retriever, self.mesh, batch, training=training)

    def feed(self, batches: Iterable[Batch], *, split: str, training: bool) -> Iterator[feed.Fed]:
        """The batches of a split, placed, with neighbours looked up as config.memory.lookup says."""
        return feed.feed(self.config, self.retriever, self.mesh, self.dataset, batches, split=split, training=training)

    def memory_record(self) -> dict[str, Any]:
        """Which memory this is: its fingerprint, and the rows of its enabled sources."""
        if self.retriever is None:
            return {"memory": None, "sources": {}}
        found = self.retriever.memory.manifest
        return {"memory": found.fingerprint, "sources": {s.name: s.rows for s in found.sources if s.state == ENABLED}}

    def read_weights(self) -> dict[str, np.ndarray]:
        """The arrays of the weights files of B and T, by the model's paths."""
        trained = [role for role in ROLES[self.config.model.branches] if role != "encoder"]
        return {
            f"{role}.{path}": array
            for role in trained
            for path, array in weights.from_config(self.config, role, getattr(self.model, role)).items()
        }

    def check(self) -> None:
        """Raise the error of a failed lookup, if there was one."""
        if self.retriever is not None:
            self.retriever.lookup.check()


def _require_weights(config: ConfigDict) -> None:
    """Report missing weights before anything slow begins."""
    for role in ROLES[config.model.branches]:
        if source := config.model[role].weights:
            weights.resolve(source, config.weights_dir)


def _model(config: ConfigDict, num_classes: int, tokenizer: Tokenizer | None) -> RAC:
    m, rngs = config.model, nnx.Rngs(config.seed)
    base = text = None
    if "base" in ROLES[m.branches]:
        base = models.from_config(config, "base", rngs, image_size=config.data.image_size, drop_path=m.drop_path)
    if tokenizer is not None:
        sizes = {"vocab_size": tokenizer.vocab_size, "context_length": tokenizer.length}
        text = models.from_config(config, "text", rngs, **sizes)
    return RAC(
        base, text, num_classes=num_classes, scale=m.scale, cosine=config.loss.name.startswith("ldam"), rngs=rngs
    )


def from_shapes(config: ConfigDict, dataset: Dataset, tokenizer: Tokenizer | None, mesh: Mesh) -> Run:
    """A run without images, weights and memory, for compiling its programs: only the dataset's classes are used."""
    make_model = functools.partial(_model, config, dataset.num_classes, tokenizer)
    return Run(config, mesh, dataset, None, make_model, nnx.eval_shape(make_model))
