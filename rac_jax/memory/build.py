"""Fill a memory: encode the images of a source with E, a shard at a time, and index the keys."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence, Sized
from pathlib import Path
from typing import Any, Protocol, TypeVar

import jax
import numpy as np
from absl import logging
from jax.experimental import multihost_utils
from jax.sharding import Mesh
from ml_collections import ConfigDict
from tqdm import tqdm

from rac_jax import config as configs
from rac_jax import data, sharding, weights
from rac_jax.config import ConfigError
from rac_jax.data import pipeline, transforms
from rac_jax.data.dataset import Dataset, Split
from rac_jax.memory import edit, index, keep, kept_keys, manifest, sources, store, thumbnails
from rac_jax.memory.index.milvus import MilvusFailed
from rac_jax.memory.manifest import BadMemory, Manifest, Recipe, Source
from rac_jax.memory.sources import Content
from rac_jax.models.preprocessing import Preprocessing
from rac_jax.runtime import processes

# The fields that determine the keys and the index of a memory, beside the options of E.
OF_THE_MEMORY = (
    "model.encoder.name", "model.encoder.weights", "model.dtype", "data.image_size", "data.crop",
    "data.interpolation", "memory.metric", "memory.index", "memory.precision", "memory.hnsw_m",
    "memory.ef_construction",
)  # fmt: skip
TRAIN = "train"  # the name of the source that is the run's own training split
SHARD = 4096  # keys that are written at once: an interrupted build continues after the last complete shard

Batch = TypeVar("Batch", bound=Sized)


class Encoder(Protocol):
    """The part of E that building needs: see retrieval/encoder.py."""

    @property
    def encode(self) -> Callable[[Any, jax.Array], jax.Array]: ...

    @property
    def parameters(self) -> Any: ...

    @property
    def preprocessing(self) -> Preprocessing: ...

    @property
    def width(self) -> int: ...


@dataclasses.dataclass(frozen=True)
class Encoded:
    """Some images of a source: a batch, or a shard."""

    keys: np.ndarray  # [b, D] float32
    jpegs: list[bytes]  # their thumbnails: one for each key, or none

    def __len__(self) -> int:
        return len(self.keys)


def open_or_build(
    config: ConfigDict,
    dataset: Dataset,
    encoder: Encoder,
    *,
    folder: Path,
    mesh: Mesh,
) -> store.Memory:
    """The memory in `folder`, if it has this config's recipe; the training split is encoded if the memory is new."""
    recipe = make_recipe(config, encoder)
    source = training_source(folder, recipe, dataset.name, dataset.fingerprint("train"))
    of_others = source is None and manifest.exists(folder) and manifest.read(folder).rows
    if not of_others and (source is None or not source.finished):
        content = sources.of_split(dataset, "train")
        _check_k(config, len(content), len(content))
        add(config, recipe, TRAIN, content, encoder, folder=folder, mesh=mesh)
    memory = opened(config, folder)
    _check_k(config, memory.enabled, len(memory))
    if memory.rows_of(dataset.fingerprint("train")) is None:
        by_key = "training leaves out the rows with the keys of its images (config.memory.duplicates)"
        none = "no row of an image is left out in training, and copies of it hand over its label"
        logging.warning(
            "the memory in %s does not hold the training split of %s: %s",
            folder, dataset.name, by_key if config.memory.duplicates else none,
        )  # fmt: skip
    return memory


def open_existing(
    config: ConfigDict, data: str, train_fingerprint: str, encoder: Encoder, *, folder: Path
) -> store.Memory:
    """The memory in `folder`, for commands that only read: a missing memory is an error.

    It may hold other rows than the data set's training split: those of a part of it, or of more classes.

    Args:
      config: of the run.
      data: the name of the data set that it was trained on.
      train_fingerprint: of its training split.
      encoder: E, which must be the one that the memory was built with.
      folder: of the memory.
    """
    if not manifest.exists(folder):
        raise FileNotFoundError(f"there is no memory in {folder}; check --memory or --config.memory.dir")
    found = manifest.read(folder)
    manifest.require_recipe(folder, found.recipe, make_recipe(config, encoder))
    if all(source.fingerprint != train_fingerprint for source in found.sources):
        logging.warning("the memory in %s does not hold the training split of %s", folder, data)
    memory = opened(config, folder)
    if not memory.enabled:
        raise BadMemory(f"the memory in {folder} has no rows that are enabled; enable a source, or add one")
    return memory


def opened(config: ConfigDict, folder: Path, before: store.Memory | None = None) -> store.Memory:
    """The memory in `folder`, or the part of it that config.memory.keep describes; `before` is an earlier state."""
    return keep.part_of(store.read(folder, before), config.memory.keep, config.data.seed)


def training_source(folder: Path, recipe: Recipe, data: str, fingerprint: str) -> Source | None:
    """The source that holds the training split, or None. A memory with another recipe or for other data is refused."""
    if not manifest.exists(folder):
        return None
    found = manifest.read(folder)
    manifest.require_recipe(folder, found.recipe, recipe)
    inside = [source for source in found.sources if source.fingerprint == fingerprint]
    if inside:
        return min(inside, key=lambda source: source.state == manifest.REMOVED)
    for source in found.sources:
        if source.name == TRAIN and source.state != manifest.REMOVED:
            raise BadMemory(
                f"the memory in {folder} was built for other data: its source {TRAIN!r} is {source.origin}, "
                f"{source.rows} images, and not the training split of {data}.\n"
                f"Name another folder (--config.memory.dir or --workdir), or remove that source."
            )
    return None


def add(
    config: ConfigDict,
    recipe: Recipe,
    name: str,
    content: Content,
    encoder: Encoder,
    *,
    folder: Path,
    mesh: Mesh,
) -> None:
    """Add a source, or continue an interrupted add. All processes encode; the first writes, to a shared folder.

    An error leaves the memory as it was. Only the first build of a memory from images keeps its progress, as if it had
    been interrupted: it may be hours of work, and there is nothing else in the memory.
    """
    width = encoder.width if content.keys is None else content.keys.shape[1]
    if width != encoder.width:
        raise BadMemory(f"{content.origin}: keys of {width} numbers; this memory's have {encoder.width}")
    is_new = not manifest.exists(folder)
    processes.wait()  # no process may still be reading what the first one changes
    with _editing(folder, recipe, encoder.width, config) as editor, _undone(editor, name, content, is_new=is_new):
        done = side = 0
        if editor:
            done, side = _start(config, editor, name, content)
        done, side = _of_the_first(done), _of_the_first(side)
        shown = {"desc": f"memory: encode {name}", "unit": "img", "disable": not processes.first()}
        with tqdm(initial=done, total=len(content), **shown) as bar:
            for shard in _shards(_counted(_rest(config, content, done, encoder, mesh, side), bar)):
                if editor:
                    _append(editor, shard, content, done)
                done += len(shard)
        if editor and editor.manifest.unfinished():
            editor.finish(content.columns, content.class_names)
    processes.wait()


@contextlib.contextmanager
def _undone(editor: edit.Editor | None, name: str, content: Content, *, is_new: bool) -> Iterator[None]:
    """Remove the unfinished source if an error occurs inside. After an interruption, the same command continues."""
    try:
        yield
    except MilvusFailed:
        raise  # the server failed, not the source: the keys are kept until it is back
    except Exception:
        unfinished = editor.manifest.unfinished() if editor else None
        is_ours = unfinished and (unfinished.name, unfinished.fingerprint) == (name, content.fingerprint)
        if editor and unfinished and is_ours and (content.keys is not None or editor.manifest.rows):
            with contextlib.suppress(OSError):
                editor.forget(unfinished)
        if editor and is_new:
            editor.delete_empty()
        raise


@contextlib.contextmanager
def _editing(folder: Path, recipe: Recipe, width: int, config: ConfigDict) -> Iterator[edit.Editor | None]:
    if not processes.first():
        yield None
        return
    edit.create(folder, recipe, width=width, weights=config.model.encoder.weights, wait=True)
    with edit.editing(folder, wait=True) as editor:
        manifest.require_recipe(folder, editor.manifest.recipe, recipe)
        yield editor


def _start(config: ConfigDict, editor: edit.Editor, name: str, content: Content) -> tuple[int, int]:
    """Begin a source, or continue it: how many of its rows are encoded, and the side of its thumbnails (0 for none)."""
    about = {field: getattr(content, field) for field in ("fingerprint", "origin", "root")}
    side = (
        0
        if content.split is None or config.memory.kept_keys
        else thumbnails.side_for(config, editor.manifest.rows + len(content))
    )
    done = editor.start(name, rows=len(content), **about, thumbnails=side > 0)
    begun = editor.manifest.unfinished()
    if begun and begun.thumbnails:
        return done, side or thumbnails.SIDE  # as it was begun, whatever the config says now
    return done, 0


def _rest(
    config: ConfigDict, content: Content, done: int, encoder: Encoder, mesh: Mesh, side: int
) -> Iterator[Encoded]:
    """A source from row `done` on, a batch at a time."""
    if done == len(content):  # interrupted between the last key and the index
        return iter(())
    if content.split is not None:
        rest = content.split.select(np.arange(done, len(content)))
        if side:
            return _encode(config, rest, encoder, mesh, side)
        return (Encoded(keys, []) for keys in encode_images(config, rest, encoder, mesh))
    assert content.keys is not None
    return (Encoded(content.keys[start : start + SHARD], []) for start in range(done, len(content), SHARD))


def encode_images(config: ConfigDict, split: Split, encoder: Encoder, mesh: Mesh) -> Iterator[np.ndarray]:
    """Keys of a split's images, plain (not augmented), in order, a batch at a time: [b, D] float32."""

    def encode(some: Split) -> Iterator[np.ndarray]:
        return (batch.keys for batch in _encode(config, some, encoder, mesh, side=0))

    if not config.memory.kept_keys or jax.process_count() > 1:
        return encode(split)
    return kept_keys.keys(
        kept_keys.folder_of(Path(config.memory.kept_keys), make_recipe(config, encoder)), split, encode
    )


def _encode(config: ConfigDict, split: Split, encoder: Encoder, mesh: Mesh, side: int) -> Iterator[Encoded]:
    """Encode a split's images in batches, and make thumbnails of the same pixels if a side is given."""
    batch_size = sharding.padded_size(config.memory.encode_batch, mesh.size)
    batches = pipeline.eval_batches(
        split, data.plain_transform(config), batch_size=batch_size, workers=config.data.workers
    )
    compiled = jax.jit(encoder.encode, out_shardings=sharding.replicated(mesh))
    left = len(split)
    waiting: tuple[jax.Array, list[bytes]] | None = None  # the host handles it while the devices encode the next batch
    for batch in batches:
        images = sharding.put_batch(mesh, {"image": batch["image"]})["image"]
        keys = compiled(encoder.parameters, images)
        jpegs = thumbnails.of_batch(batch["image"], side) if side else []
        encoded, waiting = waiting, (keys, jpegs)
        if encoded is not None:
            yield Encoded(np.asarray(encoded[0]), encoded[1])
            left -= batch_size
    if waiting is not None:
        yield Encoded(np.asarray(waiting[0])[:left], waiting[1][:left])  # without the padding of the last batch


def encode_split(config: ConfigDict, split: Split, encoder: Encoder, mesh: Mesh) -> np.ndarray:
    """Keys of all images of a split, [N, D] float32."""
    with tqdm(total=len(split), desc=f"encode {split.name}", unit="img") as bar:
        return np.concatenate(list(_counted(encode_images(config, split, encoder, mesh), bar)))


def _counted(batches: Iterator[Batch], bar: tqdm) -> Iterator[Batch]:
    for batch in batches:
        yield batch
        bar.update(len(batch))


def _shards(batches: Iterator[Encoded]) -> Iterator[Encoded]:
    """Batches, gathered to shards."""
    gathered: list[Encoded] = []
    for batch in batches:
        gathered.append(batch)
        if sum(map(len, gathered)) >= SHARD:
            yield _joined(gathered)
            gathered = []
    if gathered:
        yield _joined(gathered)


def _joined(parts: Sequence[Encoded]) -> Encoded:
    return Encoded(np.concatenate([part.keys for part in parts]), [jpeg for part in parts for jpeg in part.jpegs])


def _append(editor: edit.Editor, shard: Encoded, content: Content, done: int) -> None:
    try:
        editor.append(shard.keys, shard.jpegs)
    except edit.NotFinite as error:
        image = content.columns["image"][done + error.row].as_py()
        raise ValueError(f"the key of {image} is not finite") from error


def make_recipe(config: ConfigDict, encoder: Encoder) -> Recipe:
    """Everything that decides what the keys of an image are, and how they are indexed."""
    return {
        "encoder": {
            "name": config.model.encoder.name,
            "options": configs.options(config.model.encoder),
            "dtype": config.model.dtype,
            "weights": _weights_digest(config),
        },
        "preprocessing": {
            "image_size": config.data.image_size,
            "crop": config.data.crop,
            "interpolation": config.data.interpolation,
            "resize": transforms.RESIZE,
            "mean": list(encoder.preprocessing.mean),
            "std": list(encoder.preprocessing.std),
        },
        "keys": index.precision(config),
        "index": index.spec(config),
    }


def values_of_recipe(config: ConfigDict) -> list[Any]:
    """The values that determine a memory's keys and index: runs that agree in them can share one."""
    tuned = config.tune.to_dict() if config.tune.share else None
    return [*(configs.field(config, name) for name in OF_THE_MEMORY), configs.options(config.model.encoder), tuned]


def config_of(found: Manifest) -> ConfigDict:
    """A config whose E and preprocessing are those of a memory."""
    config = configs.default("memory")
    encoder, preprocessing = found.recipe["encoder"], found.recipe["preprocessing"]
    config.model.encoder.update(name=encoder["name"], weights=found.weights, **encoder["options"])
    config.model.dtype = encoder["dtype"]
    for name in ("image_size", "crop", "interpolation"):
        config.data[name] = preprocessing[name]
    return config


def _check_k(config: ConfigDict, enabled: int, rows: int) -> None:
    k, spare = config.memory.k, 0 if config.memory.exclude == "none" else 1
    if k + spare > enabled:
        raise ConfigError(
            f"config.memory.k is {k}, but the memory has {enabled} images"
            + (f" (a further {rows - enabled} are disabled, removed or not kept)" if rows > enabled else "")
            + (" and a training image is not its own neighbour" if spare else "")
            + f"; k may be at most {max(enabled - spare, 0)}"
        )


def _weights_digest(config: ConfigDict) -> str:
    if not config.model.encoder.weights:
        return "random"
    return weights.digest(weights.resolve(config.model.encoder.weights, config.weights_dir))


def _of_the_first(value: int) -> int:
    """The first process's value, in all processes."""
    return value if jax.process_count() == 1 else int(multihost_utils.broadcast_one_to_all(np.int32(value)))
