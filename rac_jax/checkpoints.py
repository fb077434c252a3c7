"""Orbax checkpoints: the training state, and which memory it was trained with.

The step is the input's position too: batch number n is the same in every start of a run.
"""

import contextlib
import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from absl import logging
from ml_collections import ConfigDict

from rac_jax.runtime import files

WORTH_SLICING = 2**20  # bytes of a device's slice


class SaveFailed(RuntimeError):
    """A checkpoint that could not be written; those before it are whole."""


@dataclasses.dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run, `<workdir>/checkpoints/<step>`."""

    manager: ocp.CheckpointManager
    keep: int = 0

    @classmethod
    def open(cls, workdir: Path, config: ConfigDict) -> "Checkpoints":
        """For reading and writing; what an interrupted save left behind is removed."""
        options = ocp.CheckpointManagerOptions(
            preservation_policy=ocp.checkpoint_managers.LatestN(config.checkpoint.keep),
            cleanup_tmp_directories=True,
        )
        # The devices share the work of saving an array they all hold only where it is worth compiling a slice for.
        arrays = ocp.type_handlers.ArrayHandler(min_slice_bytes_for_replica_parallel=WORTH_SLICING)
        registry = ocp.type_handlers.create_type_handler_registry((jax.Array, arrays))
        state = ocp.PyTreeCheckpointHandler(type_handler_registry=registry)
        handlers = {"state": state, "run": ocp.JsonCheckpointHandler()}
        with files.writing(_folder(workdir)):
            files.probe(_folder(workdir))
            manager = ocp.CheckpointManager(_folder(workdir), options=options, item_handlers=handlers)
            return cls(manager, config.checkpoint.keep)

    @classmethod
    def read(cls, workdir: Path) -> "Checkpoints":
        """For reading, also while a run is writing them."""
        if not _folder(workdir).exists():
            raise FileNotFoundError(f"{workdir} holds no checkpoints; train first, or name its --workdir")
        return cls(ocp.CheckpointManager(_folder(workdir), options=ocp.CheckpointManagerOptions(read_only=True)))

    def latest(self) -> int | None:
        """The newest step that was saved whole."""
        return self.manager.latest_step()

    def require_space(self, state: Any) -> None:
        """Refuse to start when the checkpoints to come, of states of such shapes, would not fit on the disk."""
        each = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
        to_come = max(1, self.keep + 1 - len(self.manager.all_steps()))  # an old one goes once the new one is whole
        free = shutil.disk_usage(self.manager.directory).free
        if free < each * to_come:
            raise OSError(
                f"{self.manager.directory} has {free / 1e6:,.0f} MB free, and {to_come} checkpoints of "
                f"{each / 1e6:,.0f} MB are to come; make room, name another --workdir, or lower config.checkpoint.keep"
            )

    def wait(self) -> None:
        """Until what was saved is on the disk."""
        with self._saving():
            self.manager.wait_until_finished()

    def save(self, step: int, state: Any, run: dict[str, Any]) -> None:
        """Save in the background; the arrays are copied before this returns."""
        if step == self.latest():
            return
        contents = ocp.args.Composite(state=ocp.args.PyTreeSave(state), run=ocp.args.JsonSave(run))
        with self._saving():
            self.manager.save(step, args=contents)

    @contextlib.contextmanager
    def _saving(self) -> Iterator[None]:
        """A save that failed is said to have; whole checkpoints are never touched by one."""
        try:
            yield
        except Exception as error:
            whole = ocp.utils.checkpoint_steps(self.manager.directory)
            kept = f"the last whole one is of step {max(whole)}" if whole else "there is none yet"
            raise SaveFailed(
                f"a checkpoint could not be saved in {self.manager.directory} ({_root(error)}); {kept}. "
                "Make room there, and start again with the same command"
            ) from error

    def restore(self, step: int, like: Any) -> Any:
        """The state at `step`, or the part of it that `like` has, placed as `like` is."""
        self.require(step)
        arguments = ocp.args.PyTreeRestore(
            like, restore_args=ocp.checkpoint_utils.construct_restore_args(like), partial_restore=True
        )
        try:
            return self.manager.restore(step, args=ocp.args.Composite(state=arguments))["state"]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"the checkpoint of step {step} in {self.manager.directory} has another structure than this version's "
                f"model and optimiser ({_root(error)}). Train in another --workdir; --mode=eval reads its parameters"
            ) from error

    def run_info(self, step: int) -> dict[str, Any]:
        """What `save` was told about the run."""
        self.require(step)
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
        with self._saving():
            self.manager.close()

    def require(self, step: int | None) -> int:
        """The step, or the newest for None, if there is a checkpoint of it."""
        steps = self.manager.all_steps()
        if not steps:
            raise FileNotFoundError(f"{self.manager.directory} is empty; train first")
        if step is not None and step not in steps:
            known = ", ".join(map(str, sorted(steps)))
            raise FileNotFoundError(f"{self.manager.directory} has no checkpoint of step {step}; saved steps: {known}")
        return max(steps) if step is None else step


def _folder(workdir: Path) -> Path:
    return (workdir / "checkpoints").absolute()


def _root(error: BaseException) -> str:
    """What lies at the bottom of an error, in its first line."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).strip().partition("\n")[0]


def _sources(run: dict[str, Any]) -> str:
    """As "train 466, web 20"."""
    return ", ".join(f"{name} {rows}" for name, rows in run.get("sources", {}).items()) or "no sources"


def _short(run: dict[str, Any]) -> str:
    return (run["memory"] or "none")[:12]
