"""Commands on a CPU start again with huge pages for their heap, in the same process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rac_jax.runtime import starting


@pytest.fixture
def linux(monkeypatch, tmp_path):
    """Linux's setting of huge pages, on a machine without accelerators."""
    monkeypatch.setattr(starting, "HUGE_PAGES_IN_LINUX", tmp_path / "enabled")
    monkeypatch.setattr(starting, "ACCELERATORS", ())
    return starting.HUGE_PAGES_IN_LINUX


@pytest.mark.parametrize(
    ("setting", "wanted"), [("always [madvise] never", True), ("[always] madvise never", False), (None, False)]
)
def test_huge_pages_are_wanted_if_linux_gives_them_to_those_who_ask(linux, setting, wanted):
    if setting:
        linux.write_text(setting)
    assert starting.wants_huge_pages({}) is wanted


def test_the_users_setting_is_kept_and_accelerators_need_none(linux, monkeypatch):
    linux.write_text("always [madvise] never")
    assert not starting.wants_huge_pages({starting.HEAP: ""})
    monkeypatch.setattr(starting, "ACCELERATORS", (os.devnull,))
    assert not starting.wants_huge_pages({})


@pytest.mark.parametrize("given", [None, "glibc.malloc.arena_max=1"])
def test_a_command_starts_again_once_with_its_arguments(tmp_path, given):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import os\n"
        "from pathlib import Path\n"
        "from rac_jax.runtime import starting\n"  # imported by a command, so that it starts again by itself
        "print(os.getpid(), flush=True)\n"
    )
    (package / "__main__.py").write_text("import os, sys\nprint(sys.argv[1:], os.environ.get('GLIBC_TUNABLES'))\n")
    environment = {name: value for name, value in os.environ.items() if name != starting.HEAP}
    environment |= {"PYTHONPATH": f"{tmp_path}{os.pathsep}{Path.cwd()}"}
    if given:
        environment[starting.HEAP] = given
    command = [sys.executable, "-m", "package", "--a=b c", "d"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        printed = process.communicate(timeout=60)[0].splitlines()
    expected = given or (starting.HUGE_PAGES if starting.wants_huge_pages(environment) else None)
    assert printed == [str(process.pid), f"{['--a=b c', 'd']} {expected}"]  # printed once: it started again before
