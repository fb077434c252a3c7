"""A program compiled for a target: its memory, arithmetic, traffic and collectives, and how long it should take."""

import dataclasses
import os
from typing import Any

from rac_jax.compile import flops, hlo
from rac_jax.compile.devices import Device
from rac_jax.compile.programs import Program
from rac_jax.compile.targets import Target, lowering_for

TAKEN = 0.75  # of a GPU's memory, which JAX takes at its start unless XLA_PYTHON_CLIENT_MEM_FRACTION says otherwise


class TooLarge(RuntimeError):
    """A program does not fit into the target's memory."""


@dataclasses.dataclass(frozen=True)
class Compiled:
    """What is known of a compiled program; bytes and collectives are of one device."""

    name: str
    arguments: int
    temporaries: int  # with results that are no arguments' memory used again
    code: int
    flops: flops.Flops  # of all devices
    traffic: int
    collectives: dict[str, hlo.Moved]
    devices: int
    executable: Any = dataclasses.field(repr=False, compare=False, default=None)


def compile_program(program: Program, target: Target) -> Compiled:
    """Compile for the target. Raises TooLarge where the compiler itself finds that it does not fit."""
    with lowering_for(target):
        traced = program.function.trace(*program.arguments)
        try:
            compiled = traced.lower().compile()
        except Exception as error:
            if "RESOURCE_EXHAUSTED" in str(error):
                raise TooLarge(f"{program.name} does not fit on {target}: {_gist(error)}") from error
            raise
    memory = compiled.memory_analysis()
    text = compiled.as_text()
    return Compiled(
        name=program.name,
        arguments=memory.argument_size_in_bytes,
        temporaries=memory.temp_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes,
        code=memory.generated_code_size_in_bytes,
        flops=flops.count(traced.jaxpr),
        traffic=hlo.traffic(text),
        collectives=hlo.collectives(text),
        devices=program.mesh.size,
        executable=compiled,
    )


def lower_program(program: Program, target: Target) -> None:
    """Lower without compiling: no GPU compiler takes a host callback without the GPU."""
    with lowering_for(target):
        program.function.lower(*program.arguments)


def _gist(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if "Used" in line or "xceed" in line), "")[:200]


@dataclasses.dataclass(frozen=True)
class Seconds:
    """Of a program on a device, each alone at its full rate."""

    arithmetic: float
    memory: float
    collectives: float

    @property
    def best(self) -> float:
        """If all three overlap."""
        return max(self.arithmetic, self.memory, self.collectives)

    @property
    def worst(self) -> float:
        """If none do."""
        return self.arithmetic + self.memory + self.collectives


def seconds(program: Compiled, device: Device) -> Seconds:
    """The roofline of a program."""
    work = sum(
        count / (device.peak * (device.float32 if dtype == "float32" else 1.0))
        for dtype, count in program.flops.items()
    )
    sent = sum(moved.sent for moved in program.collectives.values())
    return Seconds(work / program.devices, program.traffic / device.bandwidth, sent / device.link)


@dataclasses.dataclass(frozen=True)
class Memory:
    """Of one device while a run trains, in bytes."""

    resident: int  # state, batch, E's parameters
    temporaries: int  # of the program that needs most
    usable: int

    @property
    def need(self) -> int:
        return self.resident + self.temporaries

    @property
    def left(self) -> int:
        return self.usable - self.need


def memory(programs: dict[str, Compiled], device: Device) -> Memory:
    """What a run needs on each device: arguments of training and of E stay; temporaries take turns."""
    resident = programs["train"].arguments + sum(program.code for program in programs.values())
    if "keys" in programs:
        resident += programs["keys"].arguments
    temporaries = [program.temporaries for name, program in programs.items() if name != "device"]
    return Memory(resident, max(temporaries), usable(device))


def usable(device: Device) -> int:
    """Bytes that JAX can use of a device's memory."""
    share = float(os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", TAKEN)) if device.gpu else 1.0
    return int(share * device.memory)


def step_seconds(programs: dict[str, Compiled], device: Device) -> tuple[float, float]:
    """A training step with E, from best to worst."""
    parts = [seconds(programs[name], device) for name in ("train", "keys") if name in programs]
    return sum(part.best for part in parts), sum(part.worst for part in parts)
