"""Steps that the devices have not finished yet, and what is found out when they have."""

import dataclasses
from collections import deque
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rac_jax import files, sharding
from rac_jax.breakdown import Breakdown
from rac_jax.data.dataset import Split

AHEAD = 2  # steps that the host may be ahead of the devices


class NotFinite(RuntimeError):
    """A loss or a gradient that is no number."""


@dataclasses.dataclass
class InFlight:
    """Keeps the host at most AHEAD steps before the devices, and looks at each step's loss as it comes out.

    Nothing is waited for beyond that: a step's numbers travel to the host while later ones are computed.
    """

    workdir: Path
    split: Split
    breakdown: Breakdown

    def __post_init__(self) -> None:
        self._steps: deque[tuple[int, jax.Array, dict[str, jax.Array]]] = deque()
        self._window: list[dict[str, np.ndarray]] = []

    def add(self, step: int, ids: jax.Array, metrics: dict[str, jax.Array]) -> None:
        """A step that was just queued, with its images' ids."""
        for value in metrics.values():
            value.copy_to_host_async()
        self._steps.append((step, ids, metrics))
        while len(self._steps) > AHEAD:
            self._land()

    def land_all(self) -> None:
        """Wait for every step; after this what was computed may be kept."""
        while self._steps:
            self._land()

    def take_means(self) -> dict[str, float]:
        """Mean of each metric since the last call of this."""
        self.land_all()
        window, self._window = self._window, []
        return {name: float(np.mean([metrics[name] for metrics in window])) for name in window[0]}

    def _land(self) -> None:
        step, ids, metrics = self._steps.popleft()
        values = self.breakdown.wait(metrics)
        self._window.append(values)
        if not (np.isfinite(values["loss"]) and np.isfinite(values["gradient_norm"])):
            raise self._not_finite(step, ids, values)

    def _not_finite(self, step: int, ids: jax.Array, values: dict[str, Any]) -> NotFinite:
        mine = sharding.rows_of_this_process(ids)
        references = self.split.images.references()
        path = self.workdir / f"not_finite_{jax.process_index()}.json"
        found = {name: str(values[name]) for name in ("loss", "gradient_norm")}
        images = [references[i] for i in mine.tolist()]
        files.write_json(path, {"step": step, **found, "ids": mine.tolist(), "images": images})
        return NotFinite(
            f"step {step} has loss {found['loss']} and gradient norm {found['gradient_norm']}; its batch is in {path}. "
            "Nothing was saved since the last checkpoint. Lower config.optim.learning_rate, or set "
            "config.model.dtype=float32, in another --workdir"
        )
