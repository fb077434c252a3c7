"""Orbax checkpoints: the training state, and which memory it was trained with.

A checkpoint needs no position in the data: batch number n is the same in every start of a run.

Each checkpoint holds the checksums of its files. They are written before the checkpoint gets its final name, so a
checkpoint without them is one of an older version; such a checkpoint is read without verification.
"""

import contextlib
import dataclasses
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from ml_collections import ConfigDict

from rac_jax.runtime import checksums, files, processes

WORTH_SLICING = 2**20  # bytes of a device's slice
LISTINGS = 20  # attempts to list checkpoints while a run deletes some

Result = TypeVar("Result")


class SaveFailed(RuntimeError):
    """A checkpoint could not be written; earlier ones are intact."""


class Damaged(ValueError):
    """A checkpoint cannot be read, or does not hold what was saved."""


@dataclasses.dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run, `<workdir>/checkpoints/<step>`."""

    manager: ocp.CheckpointManager
    keep: int = 0
    verified: set[int] = dataclasses.field(default_factory=set)  # steps whose checksums were compared

    @classmethod
    def open(cls, workdir: Path, config: ConfigDict) -> "Checkpoints":
        """For reading and writing. What an interrupted save left behind is removed."""
        options = ocp.CheckpointManagerOptions(
            preservation_policy=ocp.checkpoint_managers.LatestN(config.checkpoint.keep),
            cleanup_tmp_directories=True,
            async_options=ocp.AsyncOptions(post_finalization_callback=lambda: _seal(_folder(workdir))),
        )
        # Devices share the work of saving a replicated array only if the array is worth compiling a slice for.
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
        if not _folder(workdir).is_dir():
            raise FileNotFoundError(f"{workdir} holds no checkpoints; train first, or use another --workdir")
        options = ocp.CheckpointManagerOptions(read_only=True)
        return cls(_retried(lambda: ocp.CheckpointManager(_folder(workdir), options=options)))

    def latest(self) -> int | None:
        """The newest step that was saved completely."""
        return self.manager.latest_step()

    def require_space(self, state: Any) -> None:
        """Refuse to start if the disk has no room for the coming checkpoints, of states of these shapes."""
        each = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
        to_come = max(1, self.keep + 1 - len(self.manager.all_steps()))  # an old one is deleted after a save
        free = shutil.disk_usage(self.manager.directory).free
        if free < each * to_come:
            raise OSError(
                f"{self.manager.directory} has {free / 1e6:,.0f} MB free, and {to_come} more checkpoints need "
                f"{each / 1e6:,.0f} MB each; make room, use another --workdir, or lower config.checkpoint.keep"
            )

    def wait(self) -> None:
        """Wait until the last save is on the disk."""
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
        """Report a failed save in one message."""
        try:
            yield
        except Exception as error:
            saved = ocp.utils.checkpoint_steps(self.manager.directory)
            kept = f"the last complete one is of step {max(saved)}" if saved else "there is none yet"
            raise SaveFailed(
                f"a checkpoint could not be saved in {self.manager.directory} ({_root(error)}); {kept}. "
                "Make room there, and start again with the same command"
            ) from error

    def restore(self, step: int, like: Any) -> Any:
        """The state at `step`, or the part of it that `like` has, placed as `like` is."""
        arguments = ocp.args.PyTreeRestore(
            like, restore_args=ocp.checkpoint_utils.construct_restore_args(like), partial_restore=True
        )
        state = self._read(self.require(step), state=arguments)
        if wrong := _not_finite(state):
            raise self._damaged(step, f"{wrong} holds values that are not finite")
        return state

    def run_info(self, step: int) -> dict[str, Any]:
        """What `save` was told about the run."""
        found = self._read(self.require(step), run=ocp.args.JsonRestore())
        if not isinstance(found, dict) or "memory" not in found:
            raise self._damaged(step, "its record of the run is incomplete")
        return found

    def load(self, step: int | None, like: Any) -> tuple[int, Any, dict[str, Any]]:
        """Step, state and run info of `step` (None: the newest), also while a run saves and deletes checkpoints."""
        while True:
            _retried(self.manager.reload)
            chosen = self.require(step)
            try:
                return chosen, self.restore(chosen, like), self.run_info(chosen)
            except (ValueError, FileNotFoundError):
                newest = max(ocp.utils.checkpoint_steps(self.manager.directory), default=chosen)
                if (step is not None and self._path(step).exists()) or newest == chosen:
                    raise  # otherwise it was deleted while it was read: take the next, or say that it is gone

    def _read(self, step: int, **item: Any) -> Any:
        """One item of a checkpoint, after its checksums were compared."""
        path = self._path(step)
        if processes.first() and step not in self.verified:
            if wrong := checksums.problem(path):
                raise self._damaged(step, wrong)
            self.verified.add(step)
        try:
            (found,) = self.manager.restore(step, args=ocp.args.Composite(**item)).values()
            return found
        except jax.errors.JaxRuntimeError:
            raise  # out of memory
        except Exception as error:
            if not checksums.exist(path):
                raise self._damaged(step, f"{path} cannot be read ({_root(error)})") from error
            raise ValueError(
                f"the checkpoint of step {step} in {self.manager.directory} has another structure than this version's "
                f"model and optimiser ({_root(error)}). Train in another --workdir; --mode=eval reads its parameters"
            ) from error

    def _damaged(self, step: int, what: str) -> Damaged:
        others = sorted((s for s in ocp.utils.checkpoint_steps(self.manager.directory) if s != step), reverse=True)
        intact = next((s for s in others if not checksums.problem(self._path(s))), None)
        remedy = "no other checkpoint is intact: train again in another --workdir"
        if intact is not None:
            remedy = f"step {intact} is intact: evaluate it with --step={intact}, or delete {self._path(step)} to go on"
        return Damaged(f"the checkpoint of step {step} is damaged: {what}; {remedy}")

    def _path(self, step: int) -> Path:
        return Path(self.manager.directory) / str(step)

    def compare_memory(self, step: int, run: dict[str, Any]) -> None:
        """Warn when the memory is not the one that a step was trained with."""
        warn_of_other_memory(step, self.run_info(step), run)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for the current save, also when the run ends with an error."""
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


def warn_of_other_memory(step: int, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Warn when the memory is not the one that a step was trained with."""
    if before["memory"] != now["memory"]:
        logging.warning(
            "the memory has changed: step %d was trained with %s (%s); now it has %s (%s)",
            step, _sources(before), _short(before), _sources(now), _short(now),
        )  # fmt: skip


def _folder(workdir: Path) -> Path:
    return (workdir / "checkpoints").absolute()


def _retried(read: Callable[[], Result]) -> Result:
    """Read the list of checkpoints again if a run deletes one meanwhile."""
    for _ in range(LISTINGS):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return read()
    return read()


def _seal(folder: Path) -> None:
    """Add checksums to the checkpoint that is about to get its final name. Orbax calls this after each save."""
    if processes.first():
        for unfinished in folder.glob("*.orbax-checkpoint-tmp*"):
            checksums.write(unfinished)


def _not_finite(state: Any) -> str:
    """The path of the first array with a value that is not finite; "" if there is none."""
    for path, leaf in jax.tree.leaves_with_path(state):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            slices = {str(shard.index): shard.data for shard in leaf.addressable_shards}
            if not all(np.isfinite(np.asarray(data)).all() for data in slices.values()):
                return jax.tree_util.keystr(path, simple=True, separator=".")
    return ""


def _root(error: BaseException) -> str:
    """The first line of the error's first cause."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).strip().partition("\n")[0]


def _sources(run: dict[str, Any]) -> str:
    """As "train 466, web 20"."""
    return ", ".join(f"{name} {rows}" for name, rows in run.get("sources", {}).items()) or "no sources"


def _short(run: dict[str, Any]) -> str:
    return (run["memory"] or "none")[:12]
