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

from rac_jax import config as configs
from rac_jax import data, models, sharding, weights
from rac_jax.data.dataset import Dataset
from rac_jax.data.pipeline import Batch
from rac_jax.data.record import Record
from rac_jax.memory import build
from rac_jax.memory.manifest import ENABLED
from rac_jax.memory.store import Memory
from rac_jax.models import cut
from rac_jax.models.rac import RAC, VoiceSettings
from rac_jax.models.voices import Knowledge
from rac_jax.retrieval import (
    encoder,
    familiarity,
    feed,
    knowledge,
    reliability,
    retriever,
    tokenizers,
)
from rac_jax.retrieval.encoder import Encoder
from rac_jax.retrieval.knowledge import Classes
from rac_jax.retrieval.retriever import Retriever
from rac_jax.retrieval.tokenizers import Tokenizer
from rac_jax.runtime import files

ENCODER, VOCABULARY = "encoder", "vocabulary"  # folders of a run: E's weights (of an export), and the words of T


@dataclasses.dataclass(frozen=True, eq=False)  # hashed by identity, so that compiled steps can be cached by run
class Run:
    """Everything a run consists of, except what training changes."""

    config: ConfigDict
    mesh: Mesh
    dataset: Dataset
    classes: Classes
    class_counts: np.ndarray  # [L] int64: training images of each class; 0 for those without training
    retriever: Retriever | None  # None if no voice needs the memory
    make_model: Callable[[], RAC]  # with fresh parameters
    model: RAC  # shapes without values

    @classmethod
    def from_config(cls, config: ConfigDict, workdir: Path, dataset: Dataset | None = None) -> "Run":
        """A run to train: build its memory if there is none.

        Args:
          config: of the run.
          workdir: its folder.
          dataset: its data, if they are loaded already.
        """
        mesh = sharding.make_mesh(config)
        dataset = dataset or data.load(config)
        _require_weights(config, configs.roles(config))
        memory = e = None
        if "encoder" in configs.roles(config):
            e = encoder.load(config, mesh)
        tokenizer = tokenizers.from_config(config) if "text" in configs.roles(config) else None
        width = e.width if e else 0
        shapes = nnx.eval_shape(functools.partial(_model, config, dataset.num_classes, width, tokenizer))
        _check_weights(config, shapes)
        if e is not None:
            memory = build.open_or_build(config, dataset, e, folder=memory_folder(config, workdir), mesh=mesh)
        return _assembled(
            config=config,
            workdir=workdir,
            mesh=mesh,
            dataset=dataset,
            classes=knowledge.classes_of(dataset.class_names, memory),
            counts=dataset.class_counts,
            memory=memory,
            e=e,
            tokenizer=tokenizer,
            train_fingerprint=functools.partial(dataset.fingerprint, "train"),
            training=True,
        )

    @classmethod
    def to_answer(cls, config: ConfigDict, workdir: Path, trained_on: Record, dataset: Dataset | None = None) -> "Run":
        """A trained run, for evaluation and prediction: neither its training data nor B's and T's files are read.

        Args:
          config: of the run.
          workdir: its folder.
          trained_on: what its data.json says.
          dataset: to evaluate on; without it, the run answers single images.
        """
        mesh, config = sharding.make_mesh(config), with_own_files(config, workdir)
        _require_weights(config, [role for role in configs.roles(config) if role == "encoder"])
        memory = e = None
        if "encoder" in configs.roles(config):
            e = encoder.load(config, mesh)
            folder = memory_folder(config, workdir)
            memory = build.open_existing(config, trained_on.name, trained_on.train_fingerprint, e, folder=folder)
        dataset = dataset or trained_on.without_images()
        classes = knowledge.classes_of(trained_on.classes, memory, dataset.class_names)
        counts = np.array(trained_on.train_images, np.int64)
        return _assembled(
            config=config,
            workdir=workdir,
            mesh=mesh,
            dataset=dataset,
            classes=classes,
            counts=counts,
            memory=memory,
            e=e,
            tokenizer=tokenizers.from_config(config) if "text" in configs.roles(config) else None,
            train_fingerprint=lambda: trained_on.train_fingerprint,
            training=False,
        )

    def with_memory(self, memory: Memory, dataset: Dataset | None = None) -> "Run":
        """The same trained run with another state of its memory and perhaps another data set to evaluate on."""
        assert self.retriever is not None
        before, dataset = self.retriever, dataset or self.dataset
        classes = knowledge.classes_of(self.classes.names[: self.classes.trained], memory, dataset.class_names)
        same = memory is before.memory
        weights = before.knowledge.row_weight if same else reliability.weights(self.config, memory, cache=None)
        known = knowledge.read(memory, classes, self.mesh, weights).replace(offset=before.knowledge.offset)
        snippets = before.lookup.snippets
        found = retriever.assemble(
            self.config,
            snippets.tokenizer if snippets else None,
            memory,
            before.encoder,
            known,
            cache=before.cache,
            mesh=self.mesh,
            train_fingerprint=before.train_fingerprint,
        )
        found = dataclasses.replace(  # compiled already
            found, keys_program=before.keys_program, see_program=before.see_program, held_out=before.held_out
        )
        counts = _padded(self.class_counts[: self.classes.trained], len(classes))
        return dataclasses.replace(self, dataset=dataset, classes=classes, class_counts=counts, retriever=found)

    def with_dataset(self, dataset: Dataset) -> "Run":
        """The same trained run with another data set to evaluate on."""
        if self.retriever is not None:
            return self.with_memory(self.retriever.memory, dataset)
        classes = knowledge.classes_of(self.classes.names[: self.classes.trained], None, dataset.class_names)
        counts = _padded(self.class_counts[: self.classes.trained], len(classes))
        return dataclasses.replace(self, dataset=dataset, classes=classes, class_counts=counts)

    @property
    def knowledge(self) -> Knowledge | None:
        """What the memory knows about the classes."""
        return self.retriever.knowledge if self.retriever else None

    @property
    def needs_images(self) -> bool:
        """Whether a step needs the images themselves: for B, or to look up augmented ones."""
        return feed.needs_images(self.config)

    @functools.cached_property
    def labels(self) -> np.ndarray:
        """The number in `classes` of each class of the data set, [C] int32."""
        return self.classes.numbers(self.dataset.class_names)

    @functools.cached_property
    def class_texts(self) -> tuple[str, ...]:
        """A text for each class; a class that only the memory has is called by its name."""
        known = dict(zip(self.dataset.class_names, self.dataset.class_texts, strict=True))
        return tuple(known.get(name, name) for name in self.classes.names)

    @functools.cached_property
    def class_rows(self) -> np.ndarray:
        """How many rows of the memory each class has now; without a memory, how many training images: [L]."""
        return self.class_counts if self.retriever is None else np.asarray(self.retriever.knowledge.counts)

    def with_offset(self, offset: float) -> "Run":
        """The same run with another offset for the fused logits of classes without training."""
        if self.retriever is None:
            return self
        placed = sharding.put_replicated(self.mesh, np.float32(offset))
        known = self.retriever.knowledge.replace(offset=placed)
        return dataclasses.replace(self, retriever=dataclasses.replace(self.retriever, knowledge=known))

    def put(self, batch: Batch, *, training: bool) -> feed.Fed:
        """A host batch on the devices, and the neighbours of its images (None without a memory)."""
        return feed.put(self.retriever, self.mesh, batch, training=training)

    def feed(self, batches: Iterable[Batch], *, split: str, training: bool) -> Iterator[feed.Fed]:
        """The batches of a split, placed, with neighbours looked up as config.memory.lookup says."""
        return feed.feed(self.config, self.retriever, self.mesh, self.dataset, batches, split=split, training=training)

    def memory_record(self) -> dict[str, Any]:
        """Which memory this is: its fingerprint, the rows of its enabled sources, and the offset of new classes."""
        if self.retriever is None:
            return {"memory": None, "sources": {}, "offset": 0.0}
        found = self.retriever.memory.manifest
        rows = found.rows_by_source(ENABLED)
        return {"memory": found.fingerprint, "sources": rows, "offset": float(self.retriever.knowledge.offset)}

    def check(self) -> None:
        """Raise the error of a failed lookup, if there was one."""
        if self.retriever is not None:
            self.retriever.lookup.check()


def memory_folder(config: ConfigDict, workdir: Path) -> Path:
    """Where the memory of a run lies."""
    return Path(config.memory.dir) if config.memory.dir else workdir / "memory"


def keep_vocabulary(config: ConfigDict, workdir: Path) -> None:
    """Keep the words of T with a run, which then answers without T's weights. Those of CLIP are in a package."""
    folder = workdir / VOCABULARY
    if "text" in configs.roles(config) and config.model.text.name != "clip_text" and not folder.exists():
        with files.atomic_folder(folder) as new:
            tokenizers.keep(config, new)


def with_own_files(config: ConfigDict, workdir: Path) -> ConfigDict:
    """The config with the files that a run brings along: T's vocabulary, and E's weights if it was exported so."""
    config = config.copy_and_resolve_references()
    for folder, role in ((ENCODER, "encoder"), (VOCABULARY, "text")):
        if (workdir / folder).is_dir():
            inside = list((workdir / folder).iterdir())
            alone = len(inside) == 1 and inside[0].suffix != ".parquet"  # GloVe's words are looked for in a folder
            config.model[role].weights = str(inside[0] if alone else workdir / folder)
    return config


def _assembled(
    *,
    config: ConfigDict,
    workdir: Path,
    mesh: Mesh,
    dataset: Dataset,
    classes: Classes,
    counts: np.ndarray,
    memory: Memory | None,
    e: Encoder | None,
    tokenizer: Tokenizer | None,
    train_fingerprint: Callable[[], str],
    training: bool,
) -> Run:
    """A run of its loaded parts."""
    found = None
    if memory is not None and e is not None:
        cache = Path(config.memory.cache) if config.memory.cache else workdir / "neighbours"
        found = retriever.assemble(
            config,
            tokenizer,
            memory,
            e,
            knowledge.read(memory, classes, mesh, reliability.weights(config, memory, cache)),
            cache=cache,
            mesh=mesh,
            train_fingerprint=train_fingerprint(),
            train=dataset.split("train") if training else None,
        )
        held_out = None if training else familiarity.read(workdir, e.width)
        if held_out is None and config.tune.share:  # E has seen the memory's own images
            held_out = np.zeros((0, e.width), np.float32)
        found = dataclasses.replace(found, held_out=held_out)
    make_model = functools.partial(_model, config, classes.trained, e.width if e else 0, tokenizer)
    counts = _padded(counts, len(classes))
    return Run(config, mesh, dataset, classes, counts, found, make_model, nnx.eval_shape(make_model))


def _padded(counts: np.ndarray, classes: int) -> np.ndarray:
    """Counts of the first classes, with 0 for the others."""
    return np.concatenate([counts, np.zeros(classes - len(counts), np.int64)])


def _require_weights(config: ConfigDict, roles: Iterable[str]) -> None:
    """Report missing weights before anything slow begins."""
    for role in roles:
        if source := config.model[role].weights:
            weights.resolve(source, config.weights_dir)


def _check_weights(config: ConfigDict, shapes: RAC) -> None:
    """Read the files of B and T once before anything slow begins, so that a damaged or unfitting one is noticed."""
    for role in configs.roles(config):
        if role != "encoder":
            weights.from_config(config, role, getattr(shapes, role))


def _model(config: ConfigDict, num_classes: int, key_width: int, tokenizer: Tokenizer | None) -> RAC:
    m, rngs, needed = config.model, nnx.Rngs(config.seed), configs.roles(config)
    base = text = None
    if "base" in needed:
        base = models.from_config(config, "base", rngs, image_size=config.data.image_size, drop_path=m.drop_path)
    if tokenizer is not None:
        sizes = {"vocab_size": tokenizer.vocab_size, "context_length": tokenizer.length}
        text = models.from_config(config, "text", rngs, **sizes)
    settings = VoiceSettings(
        speaking=configs.voices(config),
        fusion=m.fusion,
        weights=tuple(m.weights[voice] for voice in configs.voices(config)),
        sharpness=m.sharpness,
        scale=m.scale,
        own_loss=config.loss.own,
        temperature=m.vote.temperature,
        tau=m.vote.tau,
        epsilon=m.vote.epsilon,
        prototype_scale=m.prototype.scale,
        prototype_rank=m.prototype.rank,
        cosine_scale=m.head_scale if m.head == "cosine" or config.loss.name.startswith("ldam") else 0.0,
        unit_keys=config.memory.metric == "cosine",
    )
    blocks = cut.of(config, base) if base is not None else 0
    return RAC(base, text, num_classes=num_classes, key_width=key_width, settings=settings, cut=blocks, rngs=rngs)


def from_shapes(config: ConfigDict, dataset: Dataset, tokenizer: Tokenizer | None, key_width: int, mesh: Mesh) -> Run:
    """A run without images, weights and memory, for compiling its programs: only the dataset's classes are used."""
    classes = Classes(dataset.class_names, dataset.num_classes)
    make_model = functools.partial(_model, config, len(classes), key_width, tokenizer)
    return Run(config, mesh, dataset, classes, dataset.class_counts, None, make_model, nnx.eval_shape(make_model))
