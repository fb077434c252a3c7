"""A long run on 8 simulated devices is no larger at its end than after its first 200 steps.

RAC_JAX_SOAK=2000 python -m pytest --slow tests/test_soak.py -s      # steps; 600 otherwise

The command itself is watched from outside: the demo with tiny transformers for B and T. How many of the 8 devices hold
temporary arrays at the same time depends on the scheduler, so the size varies from step to step. A line is fitted to
the median of every hundred steps, and its rise has to be small up to twice its standard error.
"""

import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests import tiny

ROOT = Path(__file__).parents[1]
STEPS = int(os.environ.get("RAC_JAX_SOAK", "600"))
SETTLED, WINDOW, LIMIT = 200, 100, 20.0  # steps, steps, MB


def resident_megabytes(process: int) -> float:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


def soaked(workdir: Path, arguments: list[str]) -> dict[int, float]:
    """The size of a run at its steps, as its progress bar names them."""
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8", "PYTHONPATH": str(ROOT)}
    environment["MALLOC_ARENA_MAX"] = "1"  # as launch/local.sh: glibc's many heaps grow by chance as threads take turns
    command = [sys.executable, "-m", "rac_jax.main", *arguments, f"--workdir={workdir}"]
    seen: dict[int, float] = {}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        for line in run.stderr:  # tqdm's carriage returns end a line too
            if found := re.match(rf"train: .* (\d+)/{STEPS} ", line):
                seen.setdefault(int(found[1]), resident_megabytes(run.pid))
    assert run.returncode == 0
    return seen


def rise(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """By how much a line through the points rises from step SETTLED to the last, and its standard error."""
    x, y = (x - x.mean()) / (STEPS - SETTLED), y - y.mean()
    slope = x @ y / (x @ x)
    return slope, np.sqrt(np.sum((y - slope * x) ** 2) / (len(x) - 2) / (x @ x))


@pytest.mark.slow
def test_host_memory_does_not_grow(tmp_path):
    config = tiny.config()
    config.train.epochs, config.train.steps, config.train.log_every = 1000.0, STEPS, 20
    config.checkpoint.every = 1000  # as the real configs; the demo's own would save more often
    config.compiled = str(tmp_path / "compiled")  # the compiler is part of it
    seen = soaked(tmp_path, tiny.arguments(config))
    steps, megabytes = np.array(list(seen.items())).T
    ends = np.arange(SETTLED, STEPS, WINDOW) + WINDOW
    medians = np.array([np.median(megabytes[(steps > end - WINDOW) & (steps <= end)]) for end in ends])
    print(f"median of every {WINDOW} steps since {SETTLED}, MB:", *medians.round(1), flush=True)
    assert len(steps) > STEPS / 4 and steps[-1] == STEPS
    growth, error = rise(ends, medians)
    print(f"since step {SETTLED}: {growth:.1f} ± {error:.1f} MB by a line")
    assert growth - 2 * error < LIMIT
