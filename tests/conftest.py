"""Every test runs on 8 simulated devices, with implicit promotion of types and ranks forbidden."""

import os

# Before jax starts. PJRT_NPROC: with fewer host threads, unblocked steps on simulated devices deadlock.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("PJRT_NPROC", "32")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import pytest
from absl import flags

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
flags.FLAGS.mark_as_parsed()  # Grain's workers read absl flags


@pytest.fixture(autouse=True, scope="session")
def eight_devices() -> None:
    assert jax.device_count() == 8, "set XLA_FLAGS=--xla_force_host_platform_device_count=8"
    os.environ.pop("PJRT_NPROC")  # jax has read it; a command in a process of its own chooses for itself


@pytest.fixture(autouse=True, scope="session")
def compile_once(tmp_path_factory) -> None:
    """Programs that several tests compile alike are compiled once."""
    jax.config.update("jax_compilation_cache_dir", str(tmp_path_factory.mktemp("compiled")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
