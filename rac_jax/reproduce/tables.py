"""All tables by name, and the rows of a table that fit a config."""

import dataclasses
import os
import runpy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from rac_jax import config as configs
from rac_jax.data import content
from rac_jax.data.dataset import Dataset
from rac_jax.memory import build, kept_keys, manifest, store
from rac_jax.reproduce import further, paper
from rac_jax.reproduce.experiment import Experiment
from rac_jax.reproduce.table import Row, Table, without_memory

ROLES = ("base", "encoder", "text")

TABLES = {
    "main": paper.MAIN,
    "retrieval": paper.ENCODERS,
    "index": paper.INDEX,
    "text": paper.TEXT,
    "k": paper.K,
    "content": paper.CONTENT,
    "reweighting": paper.REWEIGHTING,
    "tau": paper.TAU,
    "runtime": paper.RUNTIME,
    "fusion": paper.FUSION,
    "voices": further.VOICES,
    "edit": further.EDIT,
    "new": further.NEW,
    "texts": further.TEXTS,
    "imbalance": further.IMBALANCE,
    "noise": further.NOISE,
    "minutes": further.BY_MINUTES,
}


def fitting(table: Table, config: ConfigDict) -> Table:
    """The table with the rows that a config can have."""
    known = set(configs.voices(config))
    rows = [row for row in table.rows if row.only in ("", config.data.name) or table is paper.MAIN]
    if table is further.VOICES:
        rows = [row for row in rows if set(row.fields["model.voices"].split("+")) <= known]
    if "vote" not in known:
        rows = [row for row in rows if "model.vote.reliability" not in row.fields]
    return dataclasses.replace(table, rows=tuple(_resolved(row, config, table) for row in rows))


def _resolved(row: Row, config: ConfigDict, table: Table) -> Row:
    """The row as it is run: fields of a classifier without the memory, if it is one; a name without the data set's."""
    fields = {**row.fields, **without_memory(config)} if row.alone else row.fields
    voice = row.voice
    if table is not further.NOISE and _starts_as_e(fields, config):
        fields, voice = {**fields, **BESIDE_VOTES}, "base"
    fields = {**fields, **_start(fields, config)}
    name, against = (text.removeprefix(f"{config.data.name}, ") for text in (row.name, row.against))
    return dataclasses.replace(row, fields=fields, name=name, against=against, voice=voice)


# In the sum each voice is trained by itself, and the vote has nothing to train: the base voice is that of B alone, but
# trained on the same views and from the same start as in the other rows, both of which need E.
BESIDE_VOTES = {"model.voices": "base+vote", "model.fusion": "sum"}


def _starts_as_e(fields: Mapping[str, Any], config: ConfigDict) -> bool:
    """Whether a row is B alone, which in this config starts from what E computes (views, class means).

    Not in `noise`: class means are those of the memory, whose labels may be right where those of training are wrong.
    """
    from_e = config.train.views > 0 or config.model.head_start == "means"
    alone = fields.get("model.voices", config.model.voices) == "base" and "base" in configs.voices(config)
    own = all(not name.startswith(("model.base.", "model.encoder.")) for name in fields)
    several = not str(fields.get("loss.name", config.loss.name)).startswith("ldam")  # which has one voice only
    return from_e and alone and own and several and config.model.base.name != configs.KEYS


def _start(fields: Mapping[str, Any], config: ConfigDict) -> dict[str, Any]:
    """What a row changes as well, because B cannot start from what it lacks: its own E, or both towers of CLIP."""
    voices = fields.get("model.voices", config.model.voices).split("+")
    sees = "base" in voices and fields.get("model.base.name", config.model.base.name) != configs.KEYS
    same = {f"model.{role}.{name}": config.model[role][name] for role in ROLES for name in ("name", "weights")}
    changed = {name.split(".")[1] for name, value in same.items() if fields.get(name, value) != value}
    apart = sees and (voices == ["base"] or bool(changed & {"base", "encoder"}))  # B has no E that it starts as
    more: dict[str, Any] = {"train.views": 0} if apart and config.train.views else {}
    lost = {"means": apart, "text": not sees or bool(changed & {"base", "text"})}
    return more | ({"model.head_start": "random"} if lost.get(config.model.head_start) else {})


def asked_for(table: Table, rows: Sequence[str], without: Sequence[str]) -> list[Row]:
    """The rows of a table with these names, or all, but for those to leave out."""
    return [row for row in table.rows if row.name in (rows or [row.name]) and row.name not in without]


def with_large(table: Table, rows: int) -> Table:
    """The table with this number of rows in its large indexes."""
    changed = tuple(dataclasses.replace(row, up_to=rows) if row.up_to else row for row in table.rows)
    return dataclasses.replace(table, rows=changed)


def external(table: Table, folder: Path, datasets: Sequence[Dataset]) -> Table:
    """The table `content` with the memory in a folder instead of one of the training images.

    Args:
      table: `content`.
      folder: of the memory. None of its rows may be a training image.
      datasets: the data of each seed.
    """
    found, copies = manifest.read(folder), _copies(folder, datasets)
    if copies:
        raise ValueError(f"--memory={folder} holds {len(copies)} of the training images, as {copies[0]}")
    if any(source.name == build.TRAIN and source.state != manifest.REMOVED for source in found.sources):
        raise ValueError(
            f"--memory={folder}: a run on other data refuses a memory with a source {build.TRAIN!r}; rename it first: "
            f"python -m rac_jax.memory rename --memory={folder} --source={build.TRAIN} --to=other"
        )
    own = Row("all rows of the training images instead", {**table.rows[0].fields, "memory.keep.share": 1.0})
    rows = (own, *(dataclasses.replace(row, fields={**row.fields, "memory.dir": str(folder)}) for row in table.rows))
    title = f"What an external memory of {found.rows:,} rows holds (text voice alone)"
    return dataclasses.replace(table, title=title, rows=rows, reference="all rows")


def _copies(folder: Path, datasets: Sequence[Dataset]) -> list[str]:
    """The rows of a memory that are training images, by name: the same split, or files with the same content."""
    memory = store.read(folder)
    splits = {dataset.fingerprint("train"): dataset.split("train") for dataset in datasets}
    train = {digest for split in splits.values() for digest in kept_keys.digests_of(split.images)}
    found: list[str] = []
    for source, rows in memory.manifest.slices():
        names = list(memory.images.take(np.arange(rows.start, rows.stop)))
        if source.fingerprint in splits:
            found += names
        elif source.root:
            digests = content.samples(str(folder / source.root), [os.fsencode(name) for name in names])
            found += [name for name, digest in zip(names, digests, strict=True) if digest in train]
    return found


def by_variant(table: Table, experiment: Experiment, wanted: Sequence[str]) -> Table:
    """The table with a row for each variant of the experiment's config file; all of them if none is named."""
    file = experiment.config_file.partition(":")[0]
    known = tuple(runpy.run_path(file).get("VARIANTS", ("",)))
    unknown = [name for name in wanted if configs.without_models(name)[0] not in known]
    if unknown:
        raise ValueError(f"--variants: {file} has no variant {unknown[0]!r}; it has {', '.join(filter(None, known))}")
    rows = tuple(Row(f":{name}" if name else "default", {}, variant=name) for name in wanted or known)
    return dataclasses.replace(table, rows=rows)
