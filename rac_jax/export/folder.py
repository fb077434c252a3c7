"""The folder of an exported run: what is copied, and what of it is this machine's and left out."""

import dataclasses
import os
import shutil
from pathlib import Path

from ml_collections import ConfigDict

from rac_jax import config as configs
from rac_jax import weights
from rac_jax.calibration import coverage
from rac_jax.checkpoints import Checkpoints
from rac_jax.data import record
from rac_jax.data.record import Record
from rac_jax.evaluate import IMAGES
from rac_jax.export import card
from rac_jax.memory import manifest, store
from rac_jax.memory.manifest import Manifest
from rac_jax.retrieval import familiarity, tokenizers
from rac_jax.run import ENCODER, VOCABULARY, memory_folder
from rac_jax.runtime import checksums, files, workdirs
from rac_jax.weights import tensor_files
from rac_jax.weights.catalogue import ENTRIES

HERE = (  # paths of this machine
    "weights_dir", "compiled", "data.root", "data.lists", "memory.dir", "memory.cache", "memory.kept_keys",
)  # fmt: skip
ROLES = ("base", "encoder", "text")


def write(
    workdir: Path,
    to: Path,
    *,
    with_encoder: bool = False,
    step: int | None = None,
    memory: Path | None = None,
    weights_dir: str = "",
) -> None:
    """Export the run in `workdir`. The new folder appears when it is complete.

    Args:
      workdir: the run's folder.
      to: the new folder, which must not exist, or be empty.
      with_encoder: copy E's weights too.
      step: the checkpoint; None for the newest.
      memory: the memory to copy, if it is not the run's own.
      weights_dir: where weights lie on this machine, if not where the run's config says.
    """
    config = workdirs.read_config(workdir)
    config.weights_dir = weights_dir or config.weights_dir
    with Checkpoints.read(workdir) as checkpoints:
        step = checkpoints.require(step)
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise FileExistsError(f"{to} exists already; name a new folder")
    memory = memory or memory_folder(config, workdir)
    trained_on = record.read(workdir)
    if trained_on is None:
        raise FileNotFoundError(f"{workdir / record.FILE} is missing: the classes of the run are not known")
    if "encoder" in configs.roles(config):
        store.read(memory)  # a damaged memory is an error before anything is copied
    new = to.with_name(f"{to.name}.writing-{os.getpid()}")
    try:
        new.mkdir(parents=True)
        _copy(config, trained_on, workdir, new, step, memory, with_encoder=with_encoder)
        if to.exists():
            to.rmdir()
        new.rename(to)
        files.sync_folder(to.parent)
    except OSError as error:
        raise _explained(error, new, to) from error
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _explained(error: OSError, new: Path, to: Path) -> OSError:
    """An error of copying, as one that says whether `to` cannot be written or which file cannot be read."""
    source, shown, reason = error.filename, error.strerror or str(error), str(error)
    if isinstance(error, shutil.Error):  # of copytree: a list of (source, copy, reason)
        source, _, reason = error.args[0][0]
        shown = reason
    if str(new) in reason or (error.errno is not None and source is None):  # None: a full disk at the end of a write
        return OSError(f"{to} cannot be written: {shown}")
    return OSError(f"{source} cannot be read: {shown}" if source else reason)


def _copy(
    config: ConfigDict,
    trained_on: Record,
    workdir: Path,
    new: Path,
    step: int,
    memory: Path,
    *,
    with_encoder: bool,
) -> None:
    files.write_json(new / record.FILE, dataclasses.asdict(dataclasses.replace(trained_on, root="")))
    _copy_checkpoint(workdir / "checkpoints" / str(step), new / "checkpoints" / str(step))
    for name in (coverage.FILE, familiarity.FILE):
        if (workdir / name).is_file():
            shutil.copyfile(workdir / name, new / name)
    for name in ("eval", IMAGES):
        if (workdir / name).is_dir():
            shutil.copytree(workdir / name, new / name, ignore=shutil.ignore_patterns("*.arrow"))
    found = None
    if "encoder" in configs.roles(config):
        found = _copy_memory(memory, new / "memory", workdir / IMAGES)
        if with_encoder or config.tune.share:
            _copy_encoder(config, workdir, new / ENCODER)
    _copy_vocabulary(config, workdir, new / VOCABULARY)
    exported = config.copy_and_resolve_references()
    for role in ROLES:
        exported.model[role].weights = _name(config.model[role].weights)
    for name in HERE:
        parent, _, last = name.rpartition(".")
        (exported[parent] if parent else exported)[last] = ""
    exported.data.name = _own_table(config.data.name, workdir)
    files.write_text(new / "README.md", card.text(exported, trained_on, found, step, new))
    workdirs.write_config(exported, new)


def _copy_checkpoint(checkpoint: Path, to: Path) -> None:
    """Copy a checkpoint without what Orbax notes in it: the path that it was saved to."""
    if wrong := checksums.problem(checkpoint):
        raise ValueError(f"the checkpoint is damaged: {wrong}; --step names another one")
    shutil.copytree(checkpoint, to)
    for note in to.rglob("commit_success.txt"):
        note.write_text("Checkpoint commit was successful")
    if checksums.exist(to):
        checksums.write(to)


def _copy_memory(memory: Path, to: Path, images: Path) -> Manifest:
    """Copy what the manifest names; images beside the memory are then found from there, wherever the folder lies."""
    while True:
        found = manifest.read(memory)
        shutil.rmtree(to, ignore_errors=True)
        to.mkdir()
        try:
            for name in manifest.files_of(found):
                shutil.copyfile(memory / name, to / name)
        except FileNotFoundError:
            if manifest.read(memory).version == found.version:
                raise
            continue  # it was changed at this moment
        if manifest.read(memory).version == found.version:
            break
    moved = tuple(
        dataclasses.replace(s, root=_beside(s.root, memory, images), origin=_without_folder(s.origin))
        for s in found.sources
    )
    manifest.write(to, dataclasses.replace(found, sources=moved, weights=_name(found.weights)))
    return found


def _name(weights_: str) -> str:
    """Weights by their name: that of a file, without its folder, is found in the weights folder."""
    return weights_ if weights_ in ENTRIES else Path(weights_).name


def _beside(root: str, memory: Path, images: Path) -> str:
    """The folder of a source's images, relative to the memory; "" if it is not exported."""
    own, found = images.resolve(), Path(os.path.normpath(memory.resolve() / root))  # a root may be relative already
    return str(Path("..", IMAGES, found.relative_to(own))) if root and found.is_relative_to(own) else ""


def _own_table(name: str, workdir: Path) -> str:
    """A data set's name; a table of pictures that are exported with the run is named relative to its folder."""
    kind, _, file = name.partition(":")
    if kind == "table" and Path(file).is_absolute() and Path(file).is_relative_to((workdir / IMAGES).resolve()):
        return f"table:{Path(file).relative_to(workdir.resolve())}"
    return _without_folder(name)


def _without_folder(name: str) -> str:
    """`kind:file`, without the folder of this machine that the file is in."""
    kind, colon, file = name.partition(":")
    return f"{kind}:{Path(file).name}" if colon and Path(file).is_absolute() else name


def _copy_encoder(config: ConfigDict, workdir: Path, to: Path) -> None:
    if (workdir / ENCODER).is_dir():
        shutil.copytree(workdir / ENCODER, to)
    elif config.model.encoder.weights:
        path = weights.resolve(config.model.encoder.weights, config.weights_dir)
        beside = [path / "config.json"] if path.is_dir() and (path / "config.json").is_file() else []
        to.mkdir()
        for file in (tensor_files.tensors_file(path), *beside):
            shutil.copyfile(file, to / file.name)


def _copy_vocabulary(config: ConfigDict, workdir: Path, to: Path) -> None:
    """The words that T knows."""
    if (workdir / VOCABULARY).is_dir():
        shutil.copytree(workdir / VOCABULARY, to)
    elif "text" in configs.roles(config):
        tokenizers.keep(config, to)
