"""How commands end, each in its own process: exit codes, messages, signals and pipes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
THREADS = "import os, rac_jax.runtime.commands; print(os.environ['PJRT_NPROC'])"
CORES = os.cpu_count() or 1


# A program started in the background by a shell ignores SIGINT; one in a terminal does not.
IN_A_TERMINAL = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def start(arguments, **environment):
    return subprocess.Popen(
        [sys.executable, "-c", IN_A_TERMINAL, *arguments],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
    )  # fmt: skip


def command(body, **environment):
    """A command whose main has this body."""
    return start(
        ["-c", f"def main(argv): {body}\nfrom rac_jax.runtime import commands\ncommands.run(main)"], **environment
    )


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
    process = start(["-c", THREADS], **environment)
    assert int(process.communicate()[0]) == threads


@pytest.mark.parametrize(
    "body, message",
    [
        ("from rac_jax import config, rules; c = config.default(); c.memory.k = 0; rules.validate(c, devices=1)",
         "error: config.memory.k is 0"),
        ("open('/nowhere/at/all')", "error: /nowhere/at/all: No such file or directory"),
    ],
)  # fmt: skip
def test_an_error_for_the_user_is_one_line(body, message):
    process = command(body)
    _, stderr = process.communicate()
    assert process.returncode == 1
    assert stderr.startswith(message) and len(stderr.splitlines()) == 1


def test_an_unexpected_error_keeps_its_trace_and_asks_to_be_reported():
    process = command("import json; json.loads('{')")
    _, stderr = process.communicate()
    assert process.returncode == 1
    assert "JSONDecodeError" in stderr and stderr.count("Traceback") == 1
    assert stderr.splitlines()[-1].startswith("error: this is a bug in rac_jax; please report")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_outside_the_loop_is_one_line_and_exit_code_75(number):
    process = command("import time; print('ready', flush=True); time.sleep(60)")
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    _, stderr = process.communicate()
    assert process.returncode == 75
    assert stderr.split("\n") == ["", "interrupted; run the same command again to continue", ""]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_the_imports_too(number):
    process = start(["-X", "importtime", "-m", "rac_jax.main", "--config=configs/digits.py"])
    while "rac_jax.config" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 75 and "Traceback" not in stderr
    assert stderr.splitlines()[-1] == "interrupted; run the same command again to continue"


def test_output_that_nobody_reads_any_more_ends_the_command_silently():
    process = command("[print('x' * 1000) for _ in range(1000)]")
    process.stdout.readline()
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == ""
    assert process.wait() == 1


@pytest.mark.parametrize("encoding, shown", [("ascii", r"1 \xb1 2 \u2013 3"), ("utf-8", "1 ± 2 – 3")])
def test_a_terminal_that_lacks_a_character_shows_its_number(encoding, shown):
    process = command("print('1 ± 2 – 3')", PYTHONIOENCODING=encoding)
    stdout, stderr = process.communicate()
    assert (process.returncode, stdout, stderr) == (0, shown + "\n", "")
