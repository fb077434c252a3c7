"""How much of the machine a run uses: memory, and the share of the devices' arithmetic."""

import functools
import os
import resource
import sys
from collections.abc import Callable
from typing import Any

import jax

from rac_jax import system

# Dense bfloat16 FLOP/s of one device, from the makers' data sheets, by a part of what JAX calls it; the first fits.
PEAKS = {
    "H200": 989e12,
    "H100 NVL": 835e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "A10G": 70e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
    "V100": 125e12,
    "T4": 65e12,
    "TPU v6": 918e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5": 459e12,  # v5p
    "TPU v4": 275e12,
    "TPU v3": 61.5e12,
    "TPU v2": 22.5e12,
}


def devices() -> str:
    """What a time was measured on, as "8 × NVIDIA A100" or "1 × cpu (2 cores)"."""
    kind = jax.devices()[0].device_kind
    return f"{jax.device_count()} × {kind}" + (f" ({os.cpu_count()} cores)" if kind == "cpu" else "")


def peak_memory() -> dict[str, float]:
    """The most that was in use so far, in GB: by this process on the host, by the fullest device where JAX tells."""
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform == "darwin" else 1)
    peaks = [(device.memory_stats() or {}).get("peak_bytes_in_use") for device in jax.local_devices()]
    found = {"host_memory_gb": kilobytes * 1024 / 1e9}
    if known := [peak for peak in peaks if peak is not None]:
        found["device_memory_gb"] = max(known) / 1e9
    return found


def step_flops(parts: system.System, train_step: Callable, state: Any, batch: Any, found: Any) -> float:
    """What one step computes over all devices, E included, by XLA's own count, in which a loop counts once."""
    on_each = flops(train_step, state, batch, found and found["tokens"]) * parts.config.train.accumulate
    retrieval, lookup = parts.retrieval, parts.config.memory.lookup
    if retrieval is not None and lookup == "callback":
        # Called with the rows of the batch's own images, which are of the ids' shape and place.
        on_each += flops(retrieval.program, retrieval.parameters, batch["image"], batch["id"])
    elif retrieval is not None and lookup == "pipelined":
        on_each += flops(retrieval.encode, retrieval.parameters, batch["image"])
    return on_each * parts.mesh.size


def flops(program: Any, *arguments: Any) -> float:
    """Of one call of a jitted program on each device; 0 where XLA has no count.

    The compiled program is asked, for accelerators count no other; one that has been called is not compiled anew.
    """
    if isinstance(program, functools.partial):
        program, arguments = program.func, (*program.args, *arguments)
    cost = program.lower(*arguments).compile().cost_analysis()
    return float((cost or {}).get("flops", 0.0))


def peak_flops(devices: list[jax.Device]) -> float | None:
    """FLOP/s of all devices together, if they are known."""
    kind = devices[0].device_kind
    for name, peak in PEAKS.items():
        if name in kind:
            return peak * len(devices)
    return None


def arithmetic(flops_a_step: float, seconds_a_step: float, devices: list[jax.Device]) -> dict[str, float]:
    """TFLOPs a step, TFLOP/s, and the share of the devices' peak (in bfloat16) where that is known.

    What `remat` computes twice is counted twice. Nothing is said where there is no count.
    """
    if not flops_a_step:
        return {}
    found = {"tflops_a_step": flops_a_step / 1e12, "tflops_per_second": flops_a_step / seconds_a_step / 1e12}
    if peak := peak_flops(devices):
        found["model_flops_utilisation"] = flops_a_step / seconds_a_step / peak
    return found
