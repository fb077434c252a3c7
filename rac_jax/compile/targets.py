"""Targets such as a100:8, and the devices that XLA's compilers make of them without any hardware."""

import contextlib
import dataclasses
import importlib.util
import os
from collections.abc import Iterator
from typing import Any

import jax
from jax.experimental import topologies

from rac_jax.compile.devices import DEVICES, Device, target_config
from rac_jax.config import ConfigError

CPU = Device("cpu", memory=0, bandwidth=0.0, link=0.0, linked_by="")
COMPILERS = {"cuda": ("jax_plugins.xla_cuda12", "jax[cuda12]"), "tpu": ("libtpu", "jax[tpu]")}


class MissingCompiler(RuntimeError):
    """The compiler of a target is not installed."""


@dataclasses.dataclass(frozen=True)
class Target:
    """So many devices of a kind."""

    name: str
    device: Device
    count: int

    def __str__(self) -> str:
        return f"{self.name}:{self.count}"


def parse(text: str) -> list[Target]:
    """Targets separated by commas: "a100:8,v5e:8" (default one device; for TPUs, four)."""
    return [_parse(part.strip()) for part in text.split(",") if part.strip()]


def _parse(text: str) -> Target:
    name, _, number = text.partition(":")
    device = CPU if name == "cpu" else DEVICES.get(name)
    if device is None or (number and not number.isdecimal()):
        raise ConfigError(f"--target={text!r} is unknown; write DEVICE:COUNT with one of {', '.join(DEVICES)}, cpu")
    count = int(number) if number else 4 if device.grid else 1
    if count < 1 or (device.grid and (count < 4 or count & (count - 1))):
        rule = "4, 8, 16 or another power of two" if device.grid else "1 or more"
        raise ConfigError(f"--target={text!r} has {count} devices; it must be {rule}")
    return Target(name, device, count)


def prepare_environment(targets: list[Target]) -> None:
    """Before JAX starts: keep it on the CPU, where as many devices are simulated as a `cpu` target needs."""
    jax.config.update("jax_platforms", "cpu")  # with cuda in it the plugin asks for a driver
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")
    os.environ.setdefault("TPU_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # nothing is run, so two commands may compile at once
    flags = [os.environ.get("XLA_FLAGS", "")]
    if any(target.device.gpu for target in targets):
        flags.append("--xla_gpu_autotune_level=0")  # autotuning runs kernels
    simulated = max((target.count for target in targets if target.name == "cpu"), default=0)
    if simulated and "host_platform_device_count" not in flags[0]:
        flags.append(f"--xla_force_host_platform_device_count={simulated}")
    os.environ["XLA_FLAGS"] = " ".join(filter(None, flags))


def require_compiler(target: Target) -> None:
    """Raise MissingCompiler, with the remedy, if XLA cannot compile for this target here."""
    module, package = COMPILERS.get(target.device.platform, ("jax", "jax"))
    try:
        found = importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        found = False
    if not found:
        raise MissingCompiler(
            f'the compiler for {target} is not installed; `pip install "{package}=={jax.__version__}"` brings it'
        )


def devices(target: Target) -> list[Any]:
    """The target's devices: they can be compiled for, not used."""
    require_compiler(target)
    if target.name == "cpu":
        if jax.device_count() < target.count:
            raise ConfigError(f"--target={target} needs {target.count} simulated devices; {jax.device_count()} exist")
        return list(jax.devices()[: target.count])
    if target.device.gpu:
        text = {"target_config": target_config(target.device), "topology": f"1x1x{target.count}"}
        return topologies.get_topology_desc(platform="cuda", **text).devices
    return topologies.get_topology_desc(platform="tpu", topology_name=_topology(target)).devices


def _topology(target: Target) -> str:
    """The most compact grid of machines with 2 × 2 devices, as v5e:2x4 or v5p:2x2x4."""
    sides, left = [2, 2, 1][: target.device.grid], target.count // 4
    while left > 1:
        axis = min(range(len(sides)), key=lambda axis: (sides[axis], -axis))
        sides[axis], left = 2 * sides[axis], left // 2
    return f"{target.name}:{'x'.join(map(str, sides))}"


@contextlib.contextmanager
def lowering_for(target: Target) -> Iterator[None]:
    """While this is active, programs can be lowered for GPUs that are not there.

    Lowering asks JAX for the name of the platform "gpu", which is unknown without a GPU (github.com/jax-ml/jax, issue
    23971). It is answered with "cuda" for the length of the call.
    """
    if not target.device.gpu:
        yield
        return
    from jax._src import xla_bridge

    original = xla_bridge.canonicalize_platform

    def canonical(platform: str) -> str:
        return "cuda" if platform in ("gpu", "cuda") else original(platform)

    xla_bridge.canonicalize_platform = canonical
    try:
        yield
    finally:
        xla_bridge.canonicalize_platform = original
