"""Two processes of four devices each, on this machine, against one of eight."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from rac_jax import train
from rac_jax.checkpoints import Checkpoints
from tests import tiny
from tests.test_train import events

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


def config(variant=""):
    c = tiny.config(variant)
    c.train.steps, c.checkpoint.every, c.eval.show = 8, 4, 2
    return c


def start(workdir, c, variant="", processes=2):
    """The run in so many processes, each with its share of 8 devices."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    environment = {
        **os.environ,
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={8 // processes}",
        "PYTHONPATH": str(ROOT),
    }
    common = [sys.executable, "-m", "rac_jax.main", *tiny.arguments(c, variant), f"--workdir={workdir}"]
    return [
        subprocess.Popen(
            [*common, f"--coordinator={address}", f"--processes={processes}", f"--process={index}"],
            cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for index in range(processes)
    ]  # fmt: skip


def finish(started):
    try:
        outputs = [process.communicate(timeout=300) for process in started]
    finally:
        for process in started:
            process.kill()
    return [process.returncode for process in started], outputs


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("one")
    train.train(config(), workdir)
    return workdir


def test_the_same_losses_and_the_same_table_and_one_writer(one, tmp_path):
    codes, outputs = finish(start(tmp_path, config()))
    assert codes == [0, 0], outputs
    expected, found = ([p.value for p in events(workdir).Scalars("train/loss")] for workdir in (one, tmp_path))
    assert len(found) == 8
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    table, again = (json.loads((workdir / "eval" / "test.json").read_text()) for workdir in (one, tmp_path))
    assert again["images"] == 250  # each once
    for branch, accuracy in table["voices"].items():
        assert again["voices"][branch]["all"] == pytest.approx(accuracy["all"], abs=0.0041)
    assert len(list((tmp_path / "tensorboard").iterdir())) == 1
    assert "250 images, step 8" in outputs[0][0] and "250 images" not in outputs[1][0]
    assert "train" in outputs[0][1] and "step/s" not in outputs[1][1]


def test_parameters_split_over_two_processes_neighbours_found_once_and_a_second_start(one, tmp_path):
    """A batch of 13 is filled up; the state is saved by both processes together, and both go on from it."""
    c = config()
    c.mesh.data, c.mesh.fsdp, c.memory.lookup, c.train.batch_size = 1, 8, "cached", 13
    c.memory.dir = str(one / "memory")
    train.train(c, tmp_path / "one")
    last, c.train.steps = c.train.steps, 4
    for _ in range(2):
        codes, outputs = finish(start(tmp_path / "two", c))
        assert codes == [0, 0], outputs
        c.train.steps = last
    expected, found = (events(tmp_path / name).Scalars("train/loss") for name in ("one", "two"))
    assert [point.step for point in found] == list(range(1, 9))
    np.testing.assert_allclose([p.value for p in found], [p.value for p in expected], rtol=1e-4)


def test_sigterm_to_one_process_stops_all_at_one_step_and_the_run_goes_on_in_one_process(tmp_path):
    c = config("base")
    c.train.steps, c.train.epochs, c.checkpoint.every = 20_000, 1000.0, 10_000
    started = start(tmp_path, c, "base")
    while not list(tmp_path.glob("tensorboard/*")) or "train/loss" not in events(tmp_path).Tags()["scalars"]:
        assert started[0].poll() is None, started[0].communicate()
        time.sleep(0.5)
    started[1].send_signal(signal.SIGTERM)
    codes, outputs = finish(started)
    assert codes == [75, 75], outputs
    with Checkpoints.read(tmp_path) as checkpoints:
        stopped = checkpoints.latest()
    assert 0 < stopped < 10_000
    c.train.steps = stopped + 1
    train.train(c, tmp_path)
    assert [p.step for p in events(tmp_path).Scalars("train/loss")] == list(range(1, stopped + 2))


def test_an_error_in_one_process_ends_all(tmp_path):
    c = config("base")
    (tmp_path / "checkpoints").touch()  # a file where the folder should be
    codes, outputs = finish(start(tmp_path, c, "base"))
    assert 0 not in codes
    assert "checkpoints" in outputs[0][1]
