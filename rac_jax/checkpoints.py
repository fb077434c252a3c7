"""Orbax checkpoints: the training state, and which memory it was trained with.

The step is the input's position too: batch number n is the same in every start of a run.
"""

import dataclasses
from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp
from absl import logging
from ml_collections import ConfigDict


@dataclasses.dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run, `<workdir>/checkpoints/<step>`."""

    manager: ocp.CheckpointManager

    @classmethod
    def open(cls, workdir: Path, config: ConfigDict) -> "Checkpoints":
        """For reading and writing; what an interrupted save left behind is removed."""
        options = ocp.CheckpointManagerOptions(
            preservation_policy=ocp.checkpoint_managers.LatestN(config.checkpoint.keep),
            cleanup_tmp_directories=True,
        )
        folder = (workdir / "checkpoints").absolute()
        return cls(ocp.CheckpointManager(folder, options=options))

    def latest(self) -> int | None:
        """The newest step that was saved whole."""
        return self.manager.latest_step()

    def save(self, step: int, state: Any, run: dict[str, Any]) -> None:
        """Save in the background; the arrays are copied before this returns."""
        if step == self.latest():
            return
        self.manager.save(
            step,
            args=ocp.args.Composite(
                state=ocp.args.PyTreeSave(state),
                run=ocp.args.JsonSave(run),
            ),
        )

    def restore(self, step: int, like: Any) -> Any:
        """The state at `step`, or the part of it that `like` has, placed as `like` is."""
        self._require(step)
        arguments = ocp.args.PyTreeRestore(
            like, restore_args=ocp.checkpoint_utils.construct_restore_args(like), partial_restore=True
        )
        return self.manager.restore(step, args=ocp.args.Composite(state=arguments))["state"]

    def run_info(self, step: int) -> dict[str, Any]:
        """What `save` was told about the run."""
        self._require(step)
        return self.manager.restore(step, args=ocp.args.Composite(run=ocp.args.JsonRestore()))["run"]

    def compare_memory(self, step: int, run: dict[str, Any]) -> None:
        """Say so when the memory is not the one that a step was trained with."""
        before = self.run_info(step)
        if before["memory"] != run["memory"]:
            logging.warning(
                "the memory is another one now: step %d was trained with %s (%s), and this is %s (%s)",
                step, _sources(before), _short(before), _sources(run), _short(run),
            )  # fmt: skip

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for the save under way, also when the run is ending with an error."""
        self.manager.close()

    def _require(self, step: int) -> None:
        steps = self.manager.all_steps()
        if step not in steps:
            known = ", ".join(map(str, sorted(steps))) or "none"
            raise FileNotFoundError(f"{self.manager.directory} has no checkpoint of step {step}; saved steps: {known}")


def _sources(run: dict[str, Any]) -> str:
    """As "train 466, web 20"."""
    return ", ".join(f"{name} {rows}" for name, rows in run.get("sources", {}).items()) or "no sources"


def _short(run: dict[str, Any]) -> str:
    return (run["memory"] or "none")[:12]
