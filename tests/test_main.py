"""The command line, as a user meets it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def command(*arguments, devices=1):
    environment = {
        **os.environ,
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "PYTHONPATH": str(ROOT),
    }
    return subprocess.run(
        [sys.executable, "-m", "rac_jax.main", *arguments],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--config=configs/digits.py", "--config.train.step=3"], "train.step"),
        (["--config=configs/digits.py", "--config.train.steps=many"], "steps"),
        (["--config=configs/digits.py", "--config.memory.k=500"], "config.memory.k is 500"),
        (["--config=configs/digits.py:nonsense"], "there are :base"),
        (["--config=configs/none.py"], "configs/none.py"),
        (["--config=configs/digits.py", "--mode=eval"], "holds no checkpoints"),
        (["--config=configs/places.py"], "config.data.root"),
        (["--config=configs/inat.py:384"], "config.data.root"),
        ([], "--config"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_mistakes_get_one_clear_message_and_no_stack_trace(arguments, message, tmp_path):
    done = command(*arguments, f"--workdir={tmp_path}")
    assert done.returncode != 0
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_batch_in_more_parts_than_a_device_has_of_it(tmp_path):
    arguments = ["--config=configs/digits.py", "--config.train.batch_size=30", "--config.train.accumulate=5"]
    done = command(*arguments, f"--workdir={tmp_path}", devices=8)
    assert done.returncode == 1
    assert "config.train.accumulate is 5; it must be at most 4, a device's share of the batch" in done.stderr
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
def test_train_and_then_evaluate_another_split_and_start_anew_with_what_was_compiled(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.0")
    monkeypatch.setenv("JAX_DEBUG_LOG_MODULES", "jax._src.compiler")
    tiny = [
        "--config=configs/digits.py:base", f"--workdir={tmp_path}/run", "--config.model.base.name=vit_ti16",
        "--config.model.base.weights=", "--config.model.base.width=32", "--config.model.base.depth=1",
        "--config.model.base.heads=2",
        "--config.data.image_size=32", "--config.train.steps=3",
    ]  # fmt: skip
    found = "Persistent compilation cache hit for 'jit_train_step'"
    done = command(*tiny, devices=2)
    assert done.returncode == 0, done.stderr
    assert "test: 250 images, step 3" in done.stdout and found not in done.stderr
    again = command(*tiny, f"--workdir={tmp_path}/again", devices=2)
    assert again.stdout == done.stdout and found in again.stderr
    done = command(*tiny, "--mode=eval", "--split=val", "--step=3")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "eval" / "val.json").read_text())["images"] == 1081
    done = command(*tiny, "--mode=eval", "--step=2")
    assert done.returncode == 1 and "no checkpoint of step 2; saved steps: 3" in done.stderr
    done = command(*tiny, "--mode=eval", "--split=dev")
    assert done.returncode == 1 and "no split 'dev'; it has ['train', 'val', 'test']" in done.stderr
    state = max((tmp_path / "run" / "checkpoints" / "3" / "state").rglob("*"), key=lambda path: path.stat().st_size)
    content = bytearray(state.read_bytes())
    content[len(content) // 2] ^= 64
    state.write_bytes(content)
    for mode in ("eval", "train"):
        done = command(*tiny, f"--mode={mode}")
        (line,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
        assert done.returncode == 1 and "Traceback" not in done.stderr
        assert line.startswith(f"error: the checkpoint of step 3 is damaged: {state} has another checksum")
