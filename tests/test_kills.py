"""A run that is killed again and again ends as if nothing had happened, bit for bit on one device.

RAC_JAX_KILLS=20 python -m pytest --slow tests/test_kills.py -s     # the thorough one; 3 kills otherwise
"""

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rac_jax.checkpoints import Checkpoints
from rac_jax.runtime.interruption import REQUEUE
from tests import tiny
from tests.test_train import assert_same, saved_state

ROOT = Path(__file__).parents[1]
KILLS = int(os.environ.get("RAC_JAX_KILLS", "3"))
MOMENTS = ("mid-save", "SIGTERM", "kill -9", "starting")


def start(workdir, arguments):
    environment = {**os.environ, "XLA_FLAGS": "", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-m", "rac_jax.main", *arguments, f"--workdir={workdir}"],
        cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def saved(workdir):
    return sorted(int(path.name) for path in workdir.glob("checkpoints/*") if path.name.isdigit())


def wait_for(process, happens):
    """Until it happens, or the process has ended."""
    while process.poll() is None and not happens():
        time.sleep(0.001)


def disturb(process, workdir, moment, draw):
    """Kill the process at such a moment; its exit code."""
    before = saved(workdir)
    if moment == "starting":
        time.sleep(draw.uniform(0, 10))
    elif moment == "mid-save":
        unfinished = {path.name for path in workdir.glob("checkpoints/*tmp*")}
        wait_for(process, lambda: any(p.name not in unfinished for p in workdir.glob("checkpoints/*tmp*")))
    else:
        wait_for(process, lambda: saved(workdir) != before)
        time.sleep(draw.uniform(0, 1))
    process.send_signal(signal.SIGTERM if moment == "SIGTERM" else signal.SIGKILL)
    process.communicate(timeout=200)
    return process.returncode


@pytest.mark.slow
def test_kills_leave_no_trace_in_the_parameters(tmp_path):
    config = tiny.config(devices=1)
    config.train.steps, config.checkpoint.every = min(300, 40 + 13 * KILLS), 5
    config.compiled, config.memory.dir = str(tmp_path / "compiled"), str(tmp_path / "memory")
    config.memory.lookup = "pipelined"  # whose programs are all kept: a start is quick
    arguments = tiny.arguments(config)
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    whole = start(undisturbed, arguments)
    assert (whole.communicate()[1] and whole.returncode) == 0

    draw, codes = random.Random(0), []
    for moment in itertools.islice(itertools.cycle(MOMENTS), KILLS):
        before = saved(killed)
        code = disturb(start(killed, arguments), killed, moment, draw)
        codes.append(code)
        print(f"{moment}: exit code {code}, checkpoints {before} -> {saved(killed)}", flush=True)
        assert code == (REQUEUE if moment == "SIGTERM" else -signal.SIGKILL)
        assert max(saved(killed), default=0) >= max(before, default=0)
    last = start(killed, arguments)
    assert (last.communicate()[1] and last.returncode) == 0
    with Checkpoints.read(killed) as checkpoints:
        assert checkpoints.latest() == config.train.steps
    step = config.train.steps
    assert_same(saved_state(config, killed, step), saved_state(config, undisturbed, step))
