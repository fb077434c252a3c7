"""Builds, edits and inspects a memory: python -m rac_jax.memory COMMAND --memory=DIR …

  build    --config=FILE               encode and index the config's training split, as the source `train`
  add      --source=NAME --from=WHAT   add a source (WHAT: see below)
  disable  --source=NAME               hide a source; enable shows it again
  rename   --source=NAME --to=NAME     give a source another name
  remove   --source=NAME               remove a source; compact then deletes its rows from the disk
  compact                              delete the rows of removed sources and rebuild the index
  list, info, classes                  the sources; what the memory is made of; its classes, with rows per source
  check                                checksums, and recall and query time of the index against exact search
  search   IMAGE…                      what the memory knows about images

build and add continue where they were interrupted. E is the one in the memory's manifest; if its weights are not found
that way, give the --config.

WHAT is folder:DIR (DIR/<class>/<image>), list:FILE (lines `path label`, with --classes=FILE, a name on each line),
table:FILE (.csv, .jsonl or .parquet with the columns path and caption, label, or both), tfds:NAME, keys:FILE.npy (with
--texts=FILE, a line for each key or a table, and perhaps --labels=FILE), or another data set that config.data.name
takes. The data set of the run beside the memory is divided into splits as the run did. The name of a class identifies
it, whichever source it comes from.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import app, flags, logging
from ml_collections import ConfigDict, config_flags
from PIL import Image

from rac_jax import data, rules, sharding
from rac_jax.data import reading
from rac_jax.memory import build, check, classes, edit, index, manifest, sources, store
from rac_jax.memory.manifest import BadMemory, Manifest
from rac_jax.memory.view import MemoryView
from rac_jax.report import pictures, tables
from rac_jax.retrieval import encoder as encoders
from rac_jax.run import with_own_files
from rac_jax.runtime import commands, files, workdirs

CONFIG = config_flags.DEFINE_config_file("config", None, "A file of configs/, as configs/demo.py.")
MEMORY = flags.DEFINE_string("memory", None, "The memory's folder.")
SOURCE = flags.DEFINE_string("source", None, "The source's name.")
TO = flags.DEFINE_string("to", "", "With rename: the new name.")
FROM = flags.DEFINE_string("from", None, "With add: where the source is read from.")
ROOT = flags.DEFINE_string("root", "", "With add: the folder with the images; default beside the list or table.")
SPLIT = flags.DEFINE_string("split", None, "With add: which part of a data set that has splits; default train.")
CLASSES = flags.DEFINE_string("classes", "", "With add --from=list:FILE: a file with the classes' names.")
TEXTS = flags.DEFINE_string("texts", "", "With add --from=keys:FILE: a file with the texts.")
LABELS = flags.DEFINE_string("labels", "", "With add --from=keys:FILE: a file with a class name per line, or none.")
SKIP_BAD = flags.DEFINE_bool("skip_bad", False, "With add: leave out images that cannot be decoded.")
K = flags.DEFINE_integer("k", 10, "With search and check: how many neighbours.", lower_bound=1)
QUERIES = flags.DEFINE_integer("queries", 200, "With check: how many rows are looked up.", lower_bound=1)
OUT = flags.DEFINE_string("out", "", "With search: a .png or .jpg to show the neighbours in.")

PICTURES = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}  # kinds of --out
DIVIDED_BY = (
    "seed",
    "imbalance",
    "images",
    "val_share",
    "test_share",
)  # fields of config.data that decide which images a split has
LONGEST = 60  # characters of a text that search shows


def main(argv: Sequence[str]) -> None:
    command, arguments = argv[1] if len(argv) > 1 else "", list(argv[2:])
    if command not in COMMANDS:
        raise app.UsageError(f"{command!r} is not a command; there are {', '.join(COMMANDS)}\n\n{__doc__}")
    if arguments and command != "search":
        raise app.UsageError(f"unknown arguments: {' '.join(arguments)}")
    if not MEMORY.value:
        raise app.UsageError("name the memory's folder: --memory=DIR")
    COMMANDS[command](Path(MEMORY.value), arguments)


def _build(folder: Path, _: list[str]) -> None:
    config = CONFIG.value
    if config is None:
        raise app.UsageError("build needs a --config")
    if config.tune.share:
        raise app.UsageError("config.tune.share is above 0: training makes E first, and then the memory")
    _validate(config)
    dataset, mesh = data.load(config), sharding.make_mesh(config)
    encoder = encoders.load(config, mesh)
    recipe = build.make_recipe(config, encoder)
    there = build.training_source(folder, recipe, dataset.name, dataset.fingerprint("train"))
    if there is None or there.state in (manifest.ENCODING, manifest.REMOVED):
        content = sources.of_split(dataset, "train")
        build.add(config, recipe, build.TRAIN, content, encoder, folder=folder, mesh=mesh)
    _list(folder, [])


def _add(folder: Path, _: list[str]) -> None:
    name, kind = _source(), FROM.value
    if not kind:
        raise app.UsageError(f"add needs --from=: {sources.KINDS}")
    config = _config(folder)
    content = _content(config, folder, kind)
    mesh = sharding.make_mesh(config)
    encoder = encoders.load(config, mesh)
    recipe = _checked_recipe(folder, config, encoder)
    build.add(config, recipe, name, content, encoder, folder=folder, mesh=mesh)
    _list(folder, [])


def _set_state(state: str) -> Any:
    def command(folder: Path, _: list[str]) -> None:
        name = _source()
        with edit.editing(folder) as editor:
            editor.set_state(name, state)
        _list(folder, [])

    return command


def _rename(folder: Path, _: list[str]) -> None:
    name = _source()
    if not TO.value:
        raise app.UsageError("rename needs the new name: --to=NAME")
    with edit.editing(folder) as editor:
        editor.rename(name, TO.value)
    _list(folder, [])


def _compact(folder: Path, _: list[str]) -> None:
    with edit.editing(folder) as editor:
        deleted = editor.compact()
    print(f"{deleted} rows were deleted" if deleted else "there is nothing to delete")


def _list(folder: Path, _: list[str]) -> None:
    found = manifest.read(folder)
    rows = [["source", "rows", "classes", "state", "from", "added"]]
    for source in (source for source in found.sources if not source.is_gap):
        state = source.state if source.finished else f"{source.state} ({source.encoded} done)"
        known = str(len(store.read_sums(folder, found, source).labels)) if source.finished else ""
        when = source.added[:16].replace("T", " ")
        rows.append([source.name, str(source.present), known, state, source.origin, when])
    print(tables.columns(rows))


def _classes(folder: Path, _: list[str]) -> None:
    found = manifest.read(folder)
    shown = [source for source in found.sources if source.finished and source.state != manifest.REMOVED]
    counts = {source.name: np.zeros(len(found.class_names), np.int64) for source in shown}
    for source in shown:
        sums = store.read_sums(folder, found, source)
        counts[source.name][sums.labels] += sums.counts  # a source may have several parts
    present = found.rows_by_source(manifest.ENABLED, manifest.DISABLED)
    states = {source.name: source.state for source in shown}
    enabled = [name for name, state in states.items() if state == manifest.ENABLED]
    heads = [name if name in enabled else f"{name} ({state})" for name, state in states.items()]
    rows = [["class", "enabled rows", *heads]]
    for label, name in enumerate(found.class_names):
        total = sum(int(counts[source][label]) for source in enabled)
        rows.append([name, str(total), *(str(c[label]) for c in counts.values())])
    without = {name: present[name] - int(counts[name].sum()) for name in states}
    rows.append(["(no class)", str(sum(without[name] for name in enabled)), *map(str, without.values())])
    print(tables.columns(rows))


def _info(folder: Path, _: list[str]) -> None:
    found = manifest.read(folder)
    encoder, preprocessing = found.recipe["encoder"], found.recipe["preprocessing"]
    enabled = sum(source.present for source in found.sources if source.state == manifest.ENABLED)
    sums = [store.read_sums(folder, found, source) for source in found.sources if source.state == manifest.ENABLED]
    labelled, size = (
        classes.total(sums, len(found.class_names), found.width)[0],
        sum(path.stat().st_size for path in folder.iterdir()),
    )
    lines = {
        "fingerprint": found.fingerprint,
        "version": found.version,
        "rows": f"{enabled} enabled of {found.rows}",
        "classes": f"{(labelled > 0).sum()} in {labelled.sum()} of the enabled rows",
        "keys": f"{found.width} × {found.recipe['keys']}",
        "encoder": f"{encoder['name']} {encoder['options']} {encoder['dtype']}, weights {found.weights or 'random'}",
        "images": f"{preprocessing['image_size']} pixels, crop {preprocessing['crop']}",
        "index": " ".join(f"{name}={value}" for name, value in found.recipe["index"].items()),
        "on disk": f"{size / 1e6:.1f} MB",
    }
    print(tables.columns([[name, str(value)] for name, value in lines.items()]))


def _check(folder: Path, _: list[str]) -> None:
    wrong = check.problems(folder)
    if wrong:
        sys.exit("\n".join(f"error: {problem}" for problem in wrong))
    memory = store.read(folder)
    print(f"{len(memory)} rows: all checksums are right")
    config = build.config_of(memory.manifest)
    config.memory.k = K.value
    measured = check.quality(memory, k=K.value, ef_search=index.ef_search(config), queries=QUERIES.value)
    print(
        f"recall@{measured.k} {measured.recall:.4f} against exact search, for {measured.queries} of its own keys\n"
        f"{measured.index_ms:.3f} ms a query; exact search takes {measured.exact_ms:.3f} ms"
    )
    if not measured.found_itself:
        sys.exit(f"error: no key finds itself: the index in {folder} is not of these keys")


def _search(folder: Path, images: list[str]) -> None:
    if not images:
        raise app.UsageError("search needs images: search --memory=DIR a.jpg b.jpg")
    if OUT.value and Path(OUT.value).suffix.lower() not in PICTURES:
        raise app.UsageError(f"--out={OUT.value}: the name of a picture ends in {', '.join(PICTURES)}")
    config = _config(folder)
    pixels = [reading.read_image(image, config.data.image_size) for image in images]
    memory, mesh = store.read(folder), sharding.make_mesh(config)
    if K.value > memory.enabled:
        raise BadMemory(f"--k={K.value}, but {memory.enabled} rows are enabled")
    encoder = encoders.load(config, mesh)
    _checked_recipe(folder, config, encoder)
    transform, nothing = data.plain_transform(config), np.random.default_rng(0)
    shown = np.stack([transform(image, nothing) for image in pixels])
    keys = np.asarray(jax.jit(encoder.encode)(encoder.parameters, shown), np.float32)
    config.memory.k = K.value
    found, similarities = index.search(memory.index, keys, K.value, index.ef_search(config), memory.allowed())
    strips = []
    for name, image, rows, near in zip(images, pixels, found, similarities, strict=True):
        rows = rows[rows >= 0]
        about = [MemoryView(memory).row(int(row)) for row in rows]
        table = [
            [f"{similarity:.4f}", row["label"] or "–", _short(row["text"]), row["source"], row["image"]]
            for similarity, row in zip(near, about, strict=False)
        ]
        print(f"{name}\n{tables.columns(table, indent=2)}")
        tiles, texts = [pictures.of_row(memory, row) for row in rows], [row["label"] or row["text"] for row in about]
        strips.append(pictures.neighbour_strip(image, name, tiles, texts, [None] * len(rows)))
    if OUT.value:
        with files.atomic(Path(OUT.value)) as temporary:
            Image.fromarray(np.concatenate(strips)).save(temporary, format=PICTURES[Path(OUT.value).suffix.lower()])


def _short(text: str) -> str:
    """A text on one line of a table."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"


def _source() -> str:
    if not SOURCE.value:
        raise app.UsageError("name the source: --source=NAME")
    return SOURCE.value


def _config(folder: Path) -> ConfigDict:
    """The config that was given or, without one, what the manifest says, with E that an exported run brings along."""
    if CONFIG.value is None and not manifest.exists(folder):
        raise FileNotFoundError(f"there is no memory in {folder}; to make one, name a --config")
    config = with_own_files(CONFIG.value or build.config_of(manifest.read(folder)), folder.parent)
    if SKIP_BAD.value:
        config.data.on_bad_image = "skip"
    return _validate(config)


def _content(config: ConfigDict, folder: Path, kind: str) -> sources.Content:
    """What is to be added. A split of a folder or table without splits is one that the run beside the memory made."""
    if SPLIT.value is None or sources.has_splits(kind, ROOT.value):
        _split_as_the_run(config, folder, kind)
        given = {"root": ROOT.value, "split": SPLIT.value or "train", "classes": CLASSES.value}
        return sources.read(config, kind, **given, texts=TEXTS.value, labels=LABELS.value)
    beside = (folder.parent / "config.json").exists()
    run = CONFIG.value or (workdirs.read_config(folder.parent) if beside else None)
    if run is None or _place(run.data.name, run.data.root) != _place(kind, ROOT.value):
        raise ValueError(
            f"--split={SPLIT.value}: {kind} has no splits, and no run beside the memory divided it; "
            "without --split, all of it is added"
        )
    config.data.update({name: run.data[name] for name in ("name", "root", *DIVIDED_BY)})
    return sources.of_split(data.load(config), SPLIT.value)


def _place(kind: str, root: str) -> tuple[str, Path]:
    """The kind of a data set, and where it is."""
    name, _, argument = kind.partition(":")
    return name, Path(argument or root).resolve()


def _split_as_the_run(config: ConfigDict, folder: Path, kind: str) -> None:
    """Divide the run's own data set as the run did, so that its other splits have no image of the training split."""
    if CONFIG.value is not None:
        return
    if (folder.parent / "config.json").exists():
        run = workdirs.read_config(folder.parent)
        if run.data.name == kind:
            config.data.update({name: run.data[name] for name in DIVIDED_BY})
    elif any(source.origin.startswith(f"{kind}, ") for source in manifest.read(folder).sources):
        logging.warning(
            "%s is divided into splits with data.seed=%d; if the run did it with another, give its --config",
            kind, config.data.seed,
        )  # fmt: skip


def _validate(config: ConfigDict) -> ConfigDict:
    rules.validate(config, devices=jax.device_count())
    return config


def _checked_recipe(folder: Path, config: ConfigDict, encoder: Any) -> manifest.Recipe:
    """The recipe of the memory, after checking that this E and its preprocessing match it. The index may differ."""
    wanted = build.make_recipe(config, encoder)
    if not manifest.exists(folder):
        return wanted
    found: Manifest = manifest.read(folder)
    kept = {name: found.recipe[name] for name in ("keys", "index")}
    manifest.require_recipe(folder, found.recipe, {**wanted, **kept})
    return found.recipe


COMMANDS = {
    "build": _build,
    "add": _add,
    "remove": _set_state(manifest.REMOVED),
    "disable": _set_state(manifest.DISABLED),
    "enable": _set_state(manifest.ENABLED),
    "rename": _rename,
    "compact": _compact,
    "list": _list,
    "info": _info,
    "classes": _classes,
    "check": _check,
    "search": _search,
}

if __name__ == "__main__":
    commands.run(main, CONFIG)
