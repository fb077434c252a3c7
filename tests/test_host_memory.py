"""What glibc is told, each time in a process of its own, since it cannot be told otherwise later."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="this C library has no mallopt")

FAULTS = """
import resource, threading
import numpy as np
from rac_jax import host_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def use():
    for _ in range(10):
        np.ones(100_000_000 // 8)  # made, filled and freed

said = host_memory.share_heap() and host_memory.keep_freed()
for _ in range(2):  # the first time the heap grows
    before = faults()
    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
print(said, faults() - before)
"""


def run(program: str, **environment: str) -> tuple[bool, int]:
    said, (number,) = measured(program, **environment)
    return said, number


def measured(program: str, **environment: str) -> tuple[bool, list[int]]:
    """What a program prints: whether glibc was told, and numbers."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_", "JAX_"))}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=clean | environment, capture_output=True, text=True, check=True
    )
    said, *numbers = done.stdout.split()
    return said == "True", list(map(int, numbers))


def test_freed_memory_is_used_again_by_every_thread():
    page = os.sysconf("SC_PAGE_SIZE")
    said, faults = run(FAULTS, JAX_PLATFORMS="cpu")
    assert said and faults < 100_000_000 // page  # less than one of the ten arrays


def test_what_is_used_lies_on_huge_pages():
    allowed = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not allowed.exists() or "[never]" in allowed.read_text():
        pytest.skip("this system has no huge pages")
    used = """
import re
from pathlib import Path
from rac_jax import host_memory
said, used = host_memory.keep_freed(), b"x" * 100_000_000  # NumPy would ask for huge pages itself
print(said, re.search(r"AnonHugePages: *([0-9]+)", Path("/proc/self/smaps_rollup").read_text())[1])
"""
    said, kilobytes = run(used, JAX_PLATFORMS="cpu")
    assert said and kilobytes > 90_000  # of the 100 MB; what is only promised takes none
    assert run(used, JAX_PLATFORMS="cuda")[1] < 90_000 or "[always]" in allowed.read_text()


def test_what_is_kept_can_be_given_back_and_the_heap_goes_on_as_before():
    """Free memory both at the heap's end and below something in use; then the page faults of using it anew."""
    said, numbers = measured(
        """
import ctypes, os, resource
from pathlib import Path
from rac_jax import host_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1_000_000

def used_three_times():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(3):
        b"x" * 100_000_000
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

said, start = host_memory.share_heap() and host_memory.keep_freed(), resident()
below, above, end = b"x" * 100_000_000, b"x" * 1_000_000, b"x" * 100_000_000
del below, end
kept = resident() - start
host_memory.give_back()
left, faults = resident() - start, used_three_times()
libc = ctypes.CDLL(None)
libc.sbrk.restype = ctypes.c_void_p
end = libc.sbrk(0)
for _ in range(100):
    host_memory.give_back()
print(said, kept, left, faults, libc.sbrk(0) - end, above[0])
""",
        JAX_PLATFORMS="cpu",
    )
    kept, left, faults, moved, _ = numbers
    assert said and kept > 190 and left < 10
    assert abs(moved) < 1_000_000  # the end of the heap, after a hundred times more
    assert faults < 100_000_000 // os.sysconf("SC_PAGE_SIZE")  # the first of the three at most


@pytest.mark.parametrize(
    "environment",
    [
        {"JAX_PLATFORMS": "cuda"},
        {"JAX_PLATFORMS": "cpu", "MALLOC_TRIM_THRESHOLD_": "131072"},
        {"JAX_PLATFORMS": "cpu", "GLIBC_TUNABLES": "glibc.malloc.arena_max=4"},
    ],
)
def test_accelerators_and_what_the_user_said_are_left_alone(environment):
    assert not run(FAULTS, **environment)[0]
