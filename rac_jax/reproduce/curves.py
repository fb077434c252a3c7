"""Learning curves: the accuracy on val while training, from the evaluations of config.eval.every."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rac_jax.models.rac import FUSED, VOICES

STYLES = ("-", "--", ":")  # matplotlib has ten colours
Curve = dict[int, float]  # by step: the accuracy in %


def read(workdir: Path, voice: str = "") -> Curve:
    """The curve of a voice, by default the run's own answer; empty if it was never evaluated while training."""
    found: dict[str, Curve] = {}
    for path in sorted((workdir / "tensorboard").glob("events*")):
        events = EventAccumulator(str(path)).Reload()
        for tag in events.Tags()["scalars"]:
            if tag.startswith("val/") and tag.endswith("/all"):
                points = {point.step: 100 * point.value for point in events.Scalars(tag)}
                found.setdefault(tag.split("/")[1], {}).update(points)
    wanted = [voice] if voice else [FUSED, *VOICES]
    return next((found[name] for name in wanted if name in found), {})


def plot(curves: Mapping[str, Sequence[Curve]], title: str) -> Figure | None:
    """Curves by row, each the mean over seeds with the range between them; None without any."""
    known = {row: [curve for curve in some if curve] for row, some in curves.items()}
    known = {row: some for row, some in known.items() if some}
    if not known:
        return None
    figure = Figure(figsize=(7.5, 4), layout="constrained")
    axes = figure.add_subplot()
    for number, (row, some) in enumerate(known.items()):
        steps = sorted(set.intersection(*(set(curve) for curve in some)))
        values = np.array([[curve[step] for step in steps] for curve in some])
        (line,) = axes.plot(steps, values.mean(axis=0), STYLES[number // 10 % len(STYLES)], marker=".", label=row)
        axes.fill_between(steps, values.min(axis=0), values.max(axis=0), color=line.get_color(), alpha=0.15)
    axes.set_xlabel("step")
    axes.set_ylabel("accuracy on val, %")
    axes.set_title(f"{title}: learning curves")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1), fontsize=8)
    return figure
