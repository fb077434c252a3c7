"""The programs of a run with the shapes of their arguments: no data, no weights, no memory on disk."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from rac_jax import config as configs
from rac_jax import evaluate, models, optimizer, run, sharding, train
from rac_jax.config import ConfigError
from rac_jax.data.dataset import ArrayImages, Dataset, Split
from rac_jax.data.sets import imagenet, inat, places
from rac_jax.memory.index import device
from rac_jax.models import convolution
from rac_jax.models.rac import RAC
from rac_jax.models.voices import Knowledge
from rac_jax.retrieval import callback, encoder, feed, tokenizers
from rac_jax.retrieval.lookup import Lookup
from rac_jax.retrieval.snippets import Snippets
from rac_jax.retrieval.tokenizers import Tokenizer

# Classes and training images by config.data.name.
SIZES = {
    "places_lt": (places.CLASSES, places.IMAGES["train"]),
    "inat2018": (inat.CLASSES, inat.IMAGES["train"]),
    "imagenet_lt": (imagenet.CLASSES, imagenet.IMAGES["train"]),
    "cifar100_lt": (100, 10_847),
    "cifar10_lt": (10, 12_406),
    "digits": (10, 466),
    "groceries": (14, 297),
}
# Vocabulary and length of T's input by config.model.text.name.
VOCABULARIES = {
    "clip_text": (49_408, tokenizers.CLIP_LENGTH),
    "bert": (30_522, tokenizers.BERT_LENGTH),
    "minilm": (30_522, tokenizers.BERT_LENGTH),
    "glove": (400_000, tokenizers.WORDS_LENGTH),
    "random_words": (tokenizers.ANY_WORDS, tokenizers.WORDS_LENGTH),
}
TOKENS_OF_A_TEXT = 8  # with the separator; decides only how large the table of texts is


@dataclasses.dataclass(frozen=True)
class Program:
    """A jitted function and the shapes of its arguments, each with its place on the mesh."""

    name: str
    function: Any
    arguments: tuple[Any, ...]
    mesh: Mesh


def of_run(config: ConfigDict, devices: list[Any], classes: int, images: int) -> dict[str, Program]:
    """The programs of a run of this config on these devices, by name, for so many classes and training images.

    train, evaluate; and with retrieval: keys (E alone, for lookup=pipelined), callback (E and the call to the host) and
    device (E and the search of memory.index=device).
    """
    mesh = sharding.make_mesh(config, devices)
    dataset = _dataset(config.data.name, classes, images)
    tokenizer = _tokenizer(config)
    retrieves = "encoder" in configs.roles(config)
    width = _encoder(config, mesh)[2] if retrieves else 0
    found = run.from_shapes(config, dataset, tokenizer, width, mesh)
    tx = optimizer.from_config(config, images)
    state = train.abstract_state(found, tx)
    rows = sharding.padded_size(config.train.batch_size, mesh.size, config.train.accumulate)
    knowledge = _knowledge(mesh, classes, images, width) if retrieves else None
    batch, neighbours = _batch(config, mesh, rows), _neighbours(config, mesh, rows, width, tokenizer, found.model)
    others = feed.lookup_of(config) != "cached" or config.train.views > 1  # queries are not the keys of their own rows
    if neighbours and others and "prototype" in configs.voices(config):
        neighbours["own_key"] = _split(mesh, (rows, width), jnp.float32)
    programs = [Program("train", train.compiled_step(found, tx), (state, batch, neighbours, knowledge), mesh)]
    rows = sharding.padded_size(config.eval.batch_size, mesh.size)
    crops = config.eval.views
    evaluated = (
        _batch(config, mesh, rows, crops),
        _neighbours(config, mesh, rows, width, tokenizer, found.model, crops),
    )
    programs.append(
        Program("evaluate", evaluate.make_eval_step(found), (state.params, state.stats, *evaluated, knowledge), mesh)
    )
    if retrieves:
        programs += _retrieval(config, mesh, batch, tokenizer, classes, images)
    return {program.name: program for program in programs}


def sizes(config: ConfigDict, classes: int | None = None, images: int | None = None) -> tuple[int, int]:
    """Classes and training images of the config's data set, or as given."""
    if classes and images:
        return classes, images
    if config.data.name not in SIZES:
        raise ConfigError(
            f"config.data.name is {config.data.name!r}, whose size is unknown; known: {', '.join(SIZES)}, or pass "
            "--classes and --images"
        )
    return SIZES[config.data.name]


def _retrieval(
    config: ConfigDict, mesh: Mesh, batch: dict[str, Any], tokenizer: Tokenizer | None, classes: int, images: int
) -> list[Program]:
    encode, parameters, width = _encoder(config, mesh)
    spec = {"metric": config.memory.metric}
    nothing: Any = SimpleNamespace(index=SimpleNamespace(spec=spec))  # in place of a memory
    texts: dict[str, Any] = {
        "tokens": _replicated(mesh, (classes * TOKENS_OF_A_TEXT,), jnp.int32),
        "starts": _replicated(mesh, (classes,), jnp.int32),
        "lengths": _replicated(mesh, (classes,), jnp.int32),
    }
    snippets = Snippets(**texts, tokenizer=tokenizer, cut=config.memory.cut) if tokenizer else None
    lookup = Lookup(nothing, snippets, config.memory.k, 0, config.memory.exclude)
    rows = mesh.size * device.rows_per_device(images, mesh.size)
    split = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    dtype = jnp.dtype(config.memory.device_dtype)
    table = {
        "keys": jax.ShapeDtypeStruct((rows, width), dtype, sharding=split),
        "bias": jax.ShapeDtypeStruct((rows,), jnp.float32, sharding=split),
    }
    texts["text_of"] = _replicated(mesh, (images,), jnp.int32)
    asked = parameters, batch["image"], batch["id"]  # ids stand in for own rows, which have the same shape
    return [
        Program("keys", callback.keys_only(encode, mesh), asked[:2], mesh),
        Program("callback", callback.through_host(encode, lookup, mesh), asked, mesh),
        Program("device", callback.device_program(encode, lookup, mesh), (table, texts, *asked), mesh),
    ]


def _encoder(config: ConfigDict, mesh: Mesh) -> tuple[encoder.Encode, Any, int]:
    """E as a function, the shapes of its parameters, and the width of its keys."""

    def make() -> Any:
        module = models.from_config(config, "encoder", nnx.Rngs(0), image_size=config.data.image_size)
        return convolution.fold_norms(module) if convolution.with_norms(module) else module

    module = nnx.eval_shape(make)
    shapes = nnx.to_pure_dict(nnx.state(module))
    placed = jax.tree.map(lambda leaf: _replicated(mesh, leaf.shape, leaf.dtype), shapes)
    return encoder.as_function(module), placed, module.feature_width


def _dataset(name: str, classes: int, images: int) -> Dataset:
    """Labels alone: every class occurs, the first most often."""
    labels = np.zeros(images, np.int32)
    labels[:classes] = np.arange(classes)
    pixels = ArrayImages(name, np.zeros((0, 1, 1, 3), np.uint8))
    names = tuple(map(str, range(classes)))
    return Dataset(name, names, names, {"train": Split("train", pixels, labels)})


def _tokenizer(config: ConfigDict) -> Tokenizer | None:
    """The sizes of T's tokenizer, without its vocabulary."""
    if "text" not in configs.roles(config):
        return None
    vocabulary, length = VOCABULARIES[config.model.text.name]
    return Tokenizer(lambda _: [], vocabulary, length, start=0, end=vocabulary - 1, separator=(0,))


def _batch(config: ConfigDict, mesh: Mesh, rows: int, crops: int = 1) -> dict[str, Any]:
    size = config.data.image_size
    return {
        "image": _split(mesh, (rows, *([crops] if crops > 1 else []), size, size, 3), jnp.uint8),
        "label": _split(mesh, (rows,), jnp.int32),
        "id": _split(mesh, (rows,), jnp.int32),
        "mask": _split(mesh, (rows,), jnp.bool),
    }


def _neighbours(
    config: ConfigDict, mesh: Mesh, rows: int, width: int, tokenizer: Tokenizer | None, model: RAC, crops: int = 1
) -> dict[str, Any] | None:
    if not width:
        return None
    k = config.memory.k
    return _cut(config, mesh, rows, model, crops) | {
        "key": _split(mesh, (rows, width), jnp.float32),
        "inside": _split(mesh, (rows,), jnp.float32),
        "own_weight": _split(mesh, (rows,), jnp.float32),
        "own_label": _split(mesh, (rows,), jnp.int32),
        "tokens": _split(mesh, (rows, tokenizer.length if tokenizer else 0), jnp.int32),
        "rows": _split(mesh, (rows, k), jnp.int32),
        "similarities": _split(mesh, (rows, k), jnp.float32),
    }


def _cut(config: ConfigDict, mesh: Mesh, rows: int, model: RAC, crops: int) -> dict[str, Any]:
    """What B starts from in place of images, if the output of its first blocks is computed once."""
    if not model.cut:
        return {}
    base: Any = model.base
    images = jax.ShapeDtypeStruct((rows, *[config.data.image_size] * 2, 3), jnp.float32)
    shape = nnx.eval_shape(lambda base, images: base.below(images, model.cut), base, images).shape
    return {"activation": _split(mesh, (rows, crops, *shape[1:]), jnp.float16)}


def _knowledge(mesh: Mesh, classes: int, images: int, width: int) -> Knowledge:
    return Knowledge(
        counts=_replicated(mesh, (classes,), jnp.float32),
        sums=_replicated(mesh, (classes, width), jnp.float32),
        centre=_replicated(mesh, (width,), jnp.float32),
        row_label=_replicated(mesh, (images,), jnp.int32),
        offset=_replicated(mesh, (), jnp.float32),
    )


def _split(mesh: Mesh, shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding.batch(mesh))


def _replicated(mesh: Mesh, shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding.replicated(mesh))
