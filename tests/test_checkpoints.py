"""Full disks, damaged files, and checkpoints that are deleted while they are read."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rac_jax import train
from rac_jax.checkpoints import Checkpoints, Damaged
from tests import tiny

ROOT = Path(__file__).parents[1]

# A small file system of our own, in a name space of our own; then the command given.
SMALL_DISK = 'mount -t tmpfs -o size="$1" none "$2" && shift 2 && exec "$@"'
TINY = (
    "--config=configs/digits.py:base", "--config.model.base.name=vit_ti16", "--config.model.base.weights=",
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
    assert "MB free, and 2 more checkpoints need" in done.stderr and "config.checkpoint.keep" in done.stderr
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


@pytest.mark.slow
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


RUN = {"memory": None, "sources": {}}


def state_of(step):
    return {"params": {"kernel": jnp.full((64, 33), float(step)), "bias": jnp.zeros(5)}}


def write(workdir, *steps, state=state_of, keep=9):
    config = tiny.config()
    config.checkpoint.keep = keep
    with Checkpoints.open(workdir, config) as checkpoints:
        for step in steps:
            checkpoints.save(step, state(step), RUN)
        checkpoints.wait()


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 64
    path.write_bytes(content)


def files_of(workdir, step):
    folder = workdir / "checkpoints" / str(step)
    return sorted(p for item in ("state", "run") for p in (folder / item).rglob("*") if p.is_file())


def test_a_flipped_byte_in_any_file_is_noticed_and_an_intact_step_is_named(tmp_path):
    write(tmp_path, 1, 2)
    for path in files_of(tmp_path, 2):
        flip(path, path.stat().st_size // 2)
        with Checkpoints.read(tmp_path) as checkpoints, pytest.raises(Damaged) as error:
            checkpoints.load(None, state_of(0))
        assert f"step 2 is damaged: {path} has another checksum" in str(error.value)
        assert f"step 1 is intact: evaluate it with --step=1, or delete {tmp_path}/checkpoints/2" in str(error.value)
        flip(path, path.stat().st_size // 2)
    with Checkpoints.read(tmp_path) as checkpoints:
        step, state, info = checkpoints.load(None, state_of(0))
    assert (step, info) == (2, RUN)
    np.testing.assert_array_equal(state["params"]["kernel"], state_of(2)["params"]["kernel"])


@pytest.mark.parametrize("change", ["missing", "more", "checksums"])
def test_files_that_are_missing_or_new_are_noticed(tmp_path, change):
    write(tmp_path, 2)
    path = files_of(tmp_path, 2)[-1]
    if change == "missing":
        path.unlink()
    elif change == "more":
        path = path.with_name("more")
        path.touch()
    else:
        path = tmp_path / "checkpoints" / "2" / "sha256.json"
        path.write_text("{")
    with (
        Checkpoints.read(tmp_path) as checkpoints,
        pytest.raises(Damaged, match=r"no other checkpoint is intact") as error,
    ):
        checkpoints.load(2, state_of(0))
    assert str(path) in str(error.value)


def test_a_checkpoint_without_checksums_is_read_and_its_damage_is_one_sentence(tmp_path):
    write(tmp_path, 1, 2)
    (tmp_path / "checkpoints" / "2" / "sha256.json").unlink()
    with Checkpoints.read(tmp_path) as checkpoints:
        assert checkpoints.load(None, state_of(0))[0] == 2
    manifest = tmp_path / "checkpoints" / "2" / "state" / "manifest.ocdbt"
    manifest.write_bytes(manifest.read_bytes()[:20])
    with Checkpoints.read(tmp_path) as checkpoints, pytest.raises(Damaged, match=r"cannot be read.*step 1 is intact"):
        checkpoints.load(None, state_of(0))


def test_parameters_that_are_not_finite_are_refused(tmp_path):
    write(tmp_path, 1)
    write(
        tmp_path, 2, state=lambda step: {"params": state_of(step)["params"] | {"bias": jnp.array([1, np.nan, 0, 0, 0])}}
    )
    with Checkpoints.read(tmp_path) as checkpoints, pytest.raises(Damaged, match=r"params\.bias holds .* not finite"):
        checkpoints.load(None, state_of(0))


def test_a_step_that_the_run_deletes_under_the_reader_is_replaced_by_the_next(tmp_path):
    """A reader that has listed step 1 finds it deleted by a writer that keeps one checkpoint."""
    write(tmp_path, 1, keep=1)
    with Checkpoints.read(tmp_path) as checkpoints:
        assert checkpoints.require(None) == 1
        write(tmp_path, 2, 3, keep=1)
        with pytest.raises(FileNotFoundError, match="no checkpoint of step 1; saved steps: 3"):
            checkpoints.load(1, state_of(0))
        step, state, _ = checkpoints.load(None, state_of(0))
    assert step == 3 and float(state["params"]["kernel"][0, 0]) == 3


# An Orbax manager that fails in its constructor, because a step was deleted, leaves an event loop that is not closed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_reading_beside_a_writer_that_deletes(tmp_path):
    """Every read while a thread saves 20 checkpoints and keeps one gives a consistent state of some step."""
    write(tmp_path, 1, keep=1)
    writer = threading.Thread(target=write, args=(tmp_path, *range(2, 21)), kwargs={"keep": 1})
    writer.start()
    seen = []
    while writer.is_alive() or not seen:
        with Checkpoints.read(tmp_path) as checkpoints:
            step, state, _ = checkpoints.load(None, state_of(0))
        assert (np.asarray(state["params"]["kernel"]) == step).all()
        seen.append(step)
    writer.join()
    assert seen == sorted(seen) and len(set(seen)) > 1
