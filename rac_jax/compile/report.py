"""What was found out about compiled programs, as text."""

import math

from ml_collections import ConfigDict

from rac_jax.compile import estimate
from rac_jax.compile.devices import GB
from rac_jax.compile.estimate import Compiled
from rac_jax.compile.targets import Target


def report(config: ConfigDict, target: Target, programs: dict[str, Compiled], images: int) -> str:
    """What a person wants to know, line by line."""
    lines = [_heading(config, target, programs), _table(programs)]
    lines += [f"  {name}: {_moved(program)}" for name, program in programs.items() if program.collectives]
    if target.name == "cpu":
        return "\n".join(lines)
    device, need = target.device, estimate.memory(config, programs, target.device)
    fits = "fits" if need.left >= 0 else "DOES NOT FIT"
    lines += [
        f"memory: {need.resident / GB:.2f} GB stay + {need.temporaries / GB:.2f} GB at most temporary = "
        f"{need.need / GB:.2f} GB of {need.usable / GB:.1f}: {fits}; {need.left / GB:.1f} GB are left"
        + (" beside the index" if estimate.searched_by(config) == "device" else " for the index"),
        f"assumed memory: {device.memory / GB:.1f} GB a device"
        + (
            f", of which JAX takes {estimate.usable(device) / device.memory:.0%} (XLA_PYTHON_CLIENT_MEM_FRACTION)"
            * bool(device.gpu)
        ),
        f"assumed peak: {device.peak / 1e12:.0f} TFLOP/s bfloat16, {device.float32 * device.peak / 1e12:.0f} float32",
        f"assumed bandwidth: {device.bandwidth / GB:,.0f} GB/s of memory",
        f"assumed interconnect: {device.link / GB:.0f} GB/s a device and direction ({device.linked_by}), rings",
        _times(config, target, programs, images),
    ]
    return "\n".join(lines)


def _heading(config: ConfigDict, target: Target, programs: dict[str, Compiled]) -> str:
    return (
        f"{config.name} on {target.count} × {target.device.kind}: batch {config.train.batch_size}, "
        f"{config.data.image_size} pixels, {config.model.dtype}, fsdp {config.mesh.fsdp}, compiled, not run"
    )


def _table(programs: dict[str, Compiled]) -> str:
    columns = ("arguments", "temporary", "code", "moved", "TFLOPs", "float32")
    lines = ["  " + f"{'a device':<10}" + "".join(f"{name:>12}" for name in columns)]
    for name, p in programs.items():
        sizes = "".join(f"{size / GB:>9.3f} GB" for size in (p.arguments, p.temporaries, p.code, p.traffic))
        total = p.flops.total()
        share = p.flops["float32"] / total if total else 0.0
        lines.append(f"  {name:<10}{sizes}{total / p.devices / 1e12:>12.4f}{share:>12.1%}")
    return "\n".join(lines)


def _moved(program: Compiled) -> str:
    return ", ".join(f"{m.count} {kind} of {m.payload / 1e6:,.1f} MB" for kind, m in program.collectives.items())


def _times(config: ConfigDict, target: Target, programs: dict[str, Compiled], images: int) -> str:
    each = []
    of_a_step = estimate.of_a_step(config, programs)
    for program in of_a_step:
        t = estimate.seconds(program, target.device)
        each.append(
            f"{program.name} {1e3 * t.arithmetic:.1f} arithmetic, {1e3 * t.memory:.1f} memory, "
            f"{1e3 * t.collectives:.1f} collectives"
        )
    best, worst = estimate.step_seconds(of_a_step, target.device)
    steps, batch = math.ceil(images / config.train.batch_size), config.train.batch_size
    cached = ""
    if len(of_a_step) > 1:
        low, high = estimate.step_seconds(of_a_step[:1], target.device)
        cached = f"\nestimate: with memory.lookup=cached, a step {1e3 * low:.1f} to {1e3 * high:.1f} ms"
    return (
        f"estimate (ms): {'; '.join(each)}\n"
        f"estimate: a step {1e3 * best:.1f} ms if these overlap to {1e3 * worst:.1f} ms if they do not, "
        f"{batch / worst:,.0f} to {batch / best:,.0f} images/s; an epoch of {steps:,} steps "
        f"{_range(steps * best, steps * worst)}; input and the host's search must keep up{cached}"
    )


def _range(low: float, high: float) -> str:
    """Two durations, in seconds or minutes."""
    unit, name = (60.0, "min") if high >= 120 else (1.0, "s")
    return f"{low / unit:.1f}–{high / unit:.1f} {name}"


def row(config: ConfigDict, target: Target, programs: dict[str, Compiled], images: int) -> str:
    """One line of the Markdown table in docs/scaling.md."""
    need = estimate.memory(config, programs, target.device)
    of_a_step = estimate.of_a_step(config, programs)
    best, worst = estimate.step_seconds(of_a_step, target.device)
    steps = math.ceil(images / config.train.batch_size)
    work = sum(program.flops.total() for program in of_a_step)
    cells = [
        f"{config.name}, batch {config.train.batch_size}",
        f"{target}" + (f", fsdp {config.mesh.fsdp}" if config.mesh.fsdp > 1 else ""),
        "yes" if need.left >= 0 else "no",
        f"{need.resident / GB:.2f} + {need.temporaries / GB:.2f}",
        f"{need.left / GB:.1f}",
        f"{work / 1e12:.1f}",
        _moved(programs["train"]) or "none",
        f"{1e3 * best:.1f}–{1e3 * worst:.1f}",
        _range(steps * best, steps * worst),
    ]
    return f"| {' | '.join(cells)} |"
