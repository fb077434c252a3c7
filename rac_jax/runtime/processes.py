"""The processes of one run: how they find each other, which of them writes, and how the others wait for it."""

import itertools
from pathlib import Path

import jax
import orbax.checkpoint as ocp

PATIENCE = 24 * 3600  # seconds: a large memory takes hours to build
_waits = itertools.count()


def join(coordinator: str | None, count: int | None, index: int | None) -> None:
    """Become one of many. What is None is asked of Slurm, Kubernetes, Open MPI or a TPU pod by JAX itself."""
    # At the end they wait for each other; one that fails must not keep the others for the default of five minutes.
    jax.distributed.initialize(coordinator, count, index, shutdown_timeout_seconds=60)


def first() -> bool:
    """Is this the process that writes logs, tables and the memory?"""
    return jax.process_index() == 0


def wait() -> None:
    """Go on when all processes have come here. One that dies on the way ends the others, within two minutes."""
    everyone = set(range(jax.process_count()))
    ocp.multihost.sync_global_processes(f"rac_jax {next(_waits)}", timeout=PATIENCE, processes=everyone)


def require_shared(folder: Path) -> None:
    """Refuse a folder that the processes do not see alike: checkpoints are written by all, and read by all."""
    if jax.process_count() == 1:
        return
    marks = [folder / f".process-{index}" for index in range(jax.process_count())]
    marks[jax.process_index()].touch()
    wait()
    unseen = [mark.name for mark in marks if not mark.exists()]
    wait()
    marks[jax.process_index()].unlink(missing_ok=True)
    if unseen:
        raise OSError(f"{folder} is not shared: {unseen[0]} of another process is not here. Name a shared --workdir.")
