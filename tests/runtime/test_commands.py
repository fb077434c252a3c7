"""What is set before jax starts, seen in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAM = "import os, rac_jax.commands; print(os.environ['PJRT_NPROC'])"
CORES = os.cpu_count() or 1


@pytest.mark.parametrize(
    "environment, threads",
    [
        ({"XLA_FLAGS": ""}, max(2, CORES)),
        ({"XLA_FLAGS": "--xla_force_host_platform_device_count=1"}, max(2, CORES)),
        ({"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}, max(32, CORES)),
        ({"XLA_FLAGS": "", "PJRT_NPROC": "5"}, 5),
    ],
)
def test_host_threads_suffice_for_the_devices_and_do_not_outnumber_the_cores_of_one(environment, threads):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) == threads
