"""The model card of an exported run: what it is, its data, its results, and how to load it."""

import json
from pathlib import Path

from ml_collections import ConfigDict

from rac_jax import config as configs
from rac_jax.data.record import Record
from rac_jax.memory.manifest import ENABLED, Manifest
from rac_jax.report import tables
from rac_jax.run import ENCODER

SHOWN = 20  # names of classes


def text(config: ConfigDict, trained_on: Record, memory: Manifest | None, step: int, folder: Path) -> str:
    """Markdown. `folder` is that of the exported run, with its tables in eval/."""
    sections = [
        f"# {_plain(config.name)}",
        "An image classifier with an external memory, made with rac_jax (Retrieval Augmented Classification).",
        "## Model",
        _model(config, memory, step, included=(folder / ENCODER).is_dir()),
        "## Data",
        _data(trained_on),
        *_results(folder, step),
        "## Use",
        USE,
    ]
    return "\n\n".join(sections) + "\n"


USE = """\
```python
import rac_jax

model = rac_jax.load("this/folder")
model.predict("image.jpg")  # label, probability, voices, neighbours
```

or `python -m rac_jax.predict --workdir=this/folder image.jpg`. The folder may be moved and may be read-only."""


def _model(config: ConfigDict, memory: Manifest | None, step: int, *, included: bool) -> str:
    roles = {"base": "B", "encoder": "E", "text": "T"}
    lines = [f"- voices: {', '.join(configs.voices(config))}", f"- step: {step}"]
    for role in configs.roles(config):
        settings = config.model[role]
        where = settings.weights or "random weights"
        if role == "encoder" and settings.weights:
            where += ", trained for these data" if config.tune.share else ""
            where += ", included" if included else ", not included: found by name where the run is loaded"
        lines.append(f"- {roles[role]}: `{settings.name}` ({where})")
        if settings.name == "clip_text":
            lines.append("- T's vocabulary, included: that of OpenAI's CLIP (MIT licence, copyright 2021 OpenAI)")
    lines.append(f"- images: {config.data.image_size} pixels, crop {config.data.crop}")
    if memory is not None:
        lines.append(f"- E's weights, SHA-256: `{memory.recipe['encoder']['weights']}`")
        lines += [
            f"- memory, source {_plain(source.name)}: {source.present} images, {source.state}"
            for source in memory.sources
            if source.finished
        ]
        enabled = sum(source.present for source in memory.sources if source.state == ENABLED)
        lines.append(f"- neighbours: {config.memory.k} of {enabled} images")
    return "\n".join(lines)


def _data(trained_on: Record) -> str:
    counts = sorted(trained_on.train_images)
    names = ", ".join(_plain(name) for name in trained_on.classes[:SHOWN])
    more = f" and {len(trained_on.classes) - SHOWN} more" if len(trained_on.classes) > SHOWN else ""
    splits = ", ".join(f"{name} {split['images']}" for name, split in trained_on.splits.items())
    return "\n".join(
        [
            f"- data set: {_plain(trained_on.name)} ({splits} images)",
            f"- classes: {len(trained_on.classes)}, with {counts[0]} to {counts[-1]} training images each",
            f"- class names: {names}{more}",
        ]
    )


def _results(folder: Path, step: int) -> list[str]:
    """A table for each split that this step was evaluated on."""
    shown = []
    for path in sorted((folder / "eval").glob("*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        if "voices" in found and found.get("step") == step:
            table = tables.accuracy_table(found["voices"])
            shown.append(f"Accuracy in % on {found['split']}, {found['images']} images:\n\n```\n{table}\n```")
    return ["## Results", *shown] if shown else []


def _plain(name: str) -> str:
    """A name without line breaks and the characters that Markdown reads."""
    return "".join(f"\\{c}" if c in r"\`*_[]<>#|" else c for c in " ".join(name.split()))
