"""A data set at a glance: its counts, the curve of its class frequencies, a sheet of samples."""

import math

import numpy as np
from PIL import Image, ImageDraw

from rac_jax import metrics
from rac_jax.data.dataset import Dataset, Split
from rac_jax.data.pipeline import Examples
from rac_jax.data.transforms import Transform

INK, PALE = (30, 30, 30), (205, 205, 205)
COLOURS = {"many": (31, 119, 180), "medium": (255, 127, 14), "few": (44, 160, 44)}


def counts_table(dataset: Dataset) -> str:
    """Images of each split; classes, and training images, of each shot group."""
    counts = dataset.class_counts
    lines = [f"{dataset.name}: {dataset.num_classes} classes"]
    lines += [f"  {name:<8}{len(split):>9,} images" for name, split in dataset.splits.items()]
    lines.append(f"  training images a class: {counts.max():,} to {counts.min():,}")
    for name, classes in _shots(counts).items():
        lines.append(f"  {name:<8}{classes.sum():>9,} classes {counts[classes].sum():>9,} training images")
    return "\n".join(lines)


def _shots(counts: np.ndarray) -> dict[str, np.ndarray]:
    """Which classes are many, medium, few: bool [C] each; an empty group is left out."""
    groups = metrics.groups(counts)
    return {name: member for name, member in groups.items() if name in COLOURS and member.any()}


def frequency_plot(counts: np.ndarray, size: tuple[int, int] = (800, 400)) -> Image.Image:
    """Training images of each class, most frequent first, on a logarithmic scale. counts: [C]"""
    picture = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(picture)
    left, top, right, bottom = 60, 20, size[0] - 20, size[1] - 40
    decades = max(1, math.ceil(math.log10(max(counts.max(), 2))))

    def height(count: float) -> float:
        return bottom - (bottom - top) * math.log10(max(count, 1)) / decades

    for decade in range(decades + 1):
        y = height(10**decade)
        draw.line([(left, y), (right, y)], fill=PALE)
        draw.text((left - 8, y), f"{10**decade:,}", fill=INK, anchor="rm")
    order = np.argsort(-counts, kind="stable")
    groups = _shots(counts)
    colour_of = {label: COLOURS[name] for name, member in groups.items() for label in np.flatnonzero(member).tolist()}
    width = (right - left) / len(counts)
    for rank, label in enumerate(order.tolist()):
        x = left + rank * width
        draw.rectangle([x, height(counts[label]), max(x, x + width - 1), bottom], fill=colour_of[label])
    draw.line([(left, bottom), (right, bottom)], fill=INK)
    caption = f"{len(counts)} classes by frequency;  " + "  ".join(
        f"{name} {member.sum()}" for name, member in groups.items()
    )
    draw.text(((left + right) / 2, bottom + 20), caption, fill=INK, anchor="mm")
    return picture


def contact_sheet(
    dataset: Dataset, split: Split, transform: Transform, *, seed: int | None, rows: int = 6, columns: int = 8
) -> Image.Image:
    """The first images of a split as a model would see them, each over its class's text."""
    examples = Examples(split, transform, seed)
    chosen = [examples(place) for place in range(min(rows * columns, len(split)))]
    side = chosen[0]["image"].shape[0]
    cell = max(side, 96)
    picture = Image.new("RGB", (columns * (cell + 8) + 8, -(-len(chosen) // columns) * (cell + 24) + 8), "white")
    draw = ImageDraw.Draw(picture)
    for number, example in enumerate(chosen):
        x, y = 8 + number % columns * (cell + 8), 8 + number // columns * (cell + 24)
        picture.paste(Image.fromarray(example["image"]), (x, y))
        text = dataset.class_texts[int(example["label"])]
        draw.text((x, y + cell + 2), text[: cell // 6], fill=INK)
    return picture
