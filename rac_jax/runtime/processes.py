"""The processes of one run: how they find each other, which of them writes, and how the others wait for it."""

import itertools
from pathlib import Path

import jax
import orbax.checkpoint as ocp

PATIENCE = 24 * 3600  # seconds: a large memory takes hours to build
_waits = itertools.count()


def join(coordinator: str | None, count: int | None, index: int | None) -> None:
    """Join the other processes. JAX asks Slurm, Kubernetes, Open MPI or the TPU pod for whatever is None."""
    # Processes wait for each other at the end. The default of five minutes is long when one of them has failed.
    jax.distributed.initialize(coordinator, count, index, shutdown_timeout_seconds=60)


def first() -> bool:
    """Whether this process writes logs, tables and the memory."""
    return jax.process_index() == 0


def wait() -> None:
    """Wait until all processes get here. If one dies, the others end within two minutes."""
    everyone = set(range(jax.process_count()))
    ocp.multihost.sync_global_processes(f"rac_jax {next(_waits)}", timeout=PATIENCE, processes=everyone)


def require_shared(folder: Path) -> None:
    """Refuse a folder that is not shared by all processes: each writes and reads a part of every checkpoint."""
    if jax.process_count() == 1:
        return
    marks = [folder / f".process-{index}" for index in range(jax.process_count())]
    marks[jax.process_index()].touch()
    wait()
    unseen = [mark.name for mark in marks if not mark.exists()]
    wait()
    marks[jax.process_index()].unlink(missing_ok=True)
    if unseen:
        raise OSError(
            f"{folder} is not shared: {unseen[0]} of another process is missing here. Use a --workdir on a shared disk."
        )
