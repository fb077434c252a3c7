"""A disk that is full, or will be: said before training, or in mid-run without losing what was saved."""

import os
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rac_jax import train
from rac_jax.checkpoints import Checkpoints
from tests import tiny

ROOT = Path(__file__).parents[1]

# A small file system of our own, in a name space of our own; then the command given.
SMALL_DISK = 'mount -t tmpfs -o size="$1" none "$2" && shift 2 && exec "$@"'
TINY = (
    "--config=configs/demo.py:base", "--config.model.base.name=vit_ti16", "--config.model.base.weights=",
    "--config.model.base.width=128", "--config.model.base.depth=1", "--config.model.base.heads=2",
    "--config.model.base.patch=16", "--config.data.image_size=32",
    "--config.train.steps=40", "--config.checkpoint.every=10", "--config.checkpoint.keep=1",
)  # fmt: skip


def on_a_small_disk(size, folder, *command):
    return subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "bash", "-c", SMALL_DISK, "bash", size, folder, *command],
        cwd=ROOT, env={**os.environ, "XLA_FLAGS": "", "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


@pytest.fixture
def small_disk(tmp_path):
    if sys.platform != "linux" or on_a_small_disk("1m", tmp_path, "true").returncode:
        pytest.skip("this user may not mount a tmpfs in a name space of its own")
    return lambda size, *command: on_a_small_disk(size, tmp_path, *command)


def test_a_disk_too_small_is_refused_before_training(small_disk, tmp_path):
    done = small_disk("4m", sys.executable, "-m", "rac_jax.main", f"--workdir={tmp_path}/run", *TINY)
    assert done.returncode == 1
    assert "MB free, and 2 checkpoints of" in done.stderr and "config.checkpoint.keep" in done.stderr
    assert "Traceback" not in done.stderr


FILL_AND_LIST = """
import os, pathlib, subprocess, sys, time
run = pathlib.Path(sys.argv[1])
command = [sys.executable, "-m", "rac_jax.main", f"--workdir={run}", *sys.argv[2:]]
def saved():
    return sorted(path.name for path in (run / "checkpoints").iterdir() if path.name.isdigit())
with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
    while not (run / "checkpoints" / "10").exists() and process.poll() is None:
        time.sleep(0.01)
    try:
        with open(run / "filler", "wb", buffering=0) as filler:
            while True:
                filler.write(bytes(2**16))
    except OSError:
        pass
    message = process.stderr.read()
print(process.returncode, saved())
print(message.splitlines()[-1])
print(message.count("Traceback"))
os.remove(run / "filler")
again = subprocess.run(command, stdout=subprocess.DEVNULL)
print(again.returncode, saved())
"""


def test_a_disk_that_fills_up_in_mid_run_keeps_the_last_whole_checkpoint_and_the_run_goes_on_from_it(
    small_disk, tmp_path
):
    done = small_disk("30m", sys.executable, "-c", FILL_AND_LIST, f"{tmp_path}/run", *TINY)
    first, message, traces, second = done.stdout.splitlines()
    assert first.startswith("1 ['") and first != "1 []", done.stderr
    assert "cannot be written" in message or "could not be saved" in message
    assert traces == "0"
    assert second == "0 ['40']"


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"file/run cannot be written: Not a directory"):
        train.train(tiny.config("base"), tmp_path / "file" / "run")


def test_checkpoints_that_could_not_be_written_are_told_before_training(small_disk, tmp_path):
    run = f"{tmp_path}/run"
    readonly = f"mkdir -p {run}/checkpoints && mount -t tmpfs -o ro,size=1m tmpfs {run}/checkpoints && "
    done = small_disk(
        "30m", "bash", "-c", f'{readonly} "$@"', "bash", sys.executable, "-m", "rac_jax.main", f"--workdir={run}", *TINY
    )
    assert done.returncode == 1
    assert f"{run}/checkpoints cannot be written: Read-only file system" in done.stderr
    assert "Traceback" not in done.stderr and "train:" not in done.stderr


def test_reading_leaves_a_save_under_way_alone(tmp_path):
    unfinished = tmp_path / "checkpoints" / "5.orbax-checkpoint-tmp"
    unfinished.mkdir(parents=True)
    with Checkpoints.read(tmp_path) as checkpoints:
        assert checkpoints.latest() is None
    assert unfinished.exists()


def test_a_checkpoint_of_another_optimiser_is_refused_and_its_parameters_can_be_read(tmp_path):
    params = {"kernel": jnp.arange(6.0).reshape(2, 3)}
    written = {"params": params, "opt_state": optax.adam(0.1).init(params)}
    with Checkpoints.open(tmp_path, tiny.config()) as checkpoints:
        checkpoints.save(3, written, {"memory": None})
        checkpoints.wait()
        other = {"params": params, "opt_state": optax.chain(optax.clip(1.0), optax.adam(0.1)).init(params)}
        with pytest.raises(ValueError, match=r"the checkpoint of step 3 in .*optimiser.*another --workdir"):
            checkpoints.restore(3, other)
        found = checkpoints.restore(3, {"params": params})
    np.testing.assert_array_equal(found["params"]["kernel"], params["kernel"])
