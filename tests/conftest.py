"""Every test runs on 8 simulated devices, with implicit promotion of types and ranks forbidden."""

import os

# Before jax starts. PJRT_NPROC: with fewer host threads, unblocked steps on simulated devices deadlock.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("PJRT_NPROC", "32")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

from pathlib import Path

import jax
import pytest
from absl import flags

from tests import tiny

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
flags.FLAGS.mark_as_parsed()  # Grain's workers read absl flags


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run what takes long: kills, many processes, every mesh")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests marked slow, unless --slow is given or a test is named by its node id."""
    if config.getoption("--slow") or any("::" in argument for argument in config.args):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    items[:] = [item for item in items if item not in slow]
    config.hook.pytest_deselected(items=slow)


@pytest.fixture(autouse=True, scope="session")
def eight_devices() -> None:
    assert jax.device_count() == 8, "set XLA_FLAGS=--xla_force_host_platform_device_count=8"
    os.environ.pop("PJRT_NPROC")  # jax has read it; a command in a process of its own chooses for itself


@pytest.fixture(autouse=True, scope="session")
def compile_once(tmp_path_factory) -> None:
    """Programs that several tests compile alike are compiled once."""
    jax.config.update("jax_compilation_cache_dir", str(tmp_path_factory.mktemp("compiled")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Path:
    """The folder of a run that several tests read: 20 steps of tests/tiny.py on 8 devices, evaluated, with pictures."""
    from rac_jax import train  # here, since most tests need not wait for what it imports

    workdir = tmp_path_factory.mktemp("trained")
    config = tiny.config()
    config.train.steps, config.eval.show = 20, 1
    train.train(config, workdir)
    return workdir
