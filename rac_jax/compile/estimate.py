"""A program compiled for a target: its memory, arithmetic, traffic and collectives, and how long it should take."""

import dataclasses
import os
import sys
from collections.abc import Iterable
from typing import Any

from ml_collections import ConfigDict

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


def compile_each(
    programs: Iterable[Program], target: Target
) -> tuple[dict[str, Compiled], dict[str, str], dict[str, TooLarge]]:
    """By name: compiled programs, those that can only be lowered for the target with the reason, and too large ones."""
    compiled, lowered, too_large = {}, {}, {}
    for program in programs:
        print(f"compiling {program.name} for {target}", file=sys.stderr, flush=True)
        if program.name == "callback" and target.device.gpu:
            lower_program(program, target)
            lowered[program.name] = "lowered only, as its compilation needs the GPU"
            continue
        try:
            compiled[program.name] = compile_program(program, target)
        except TooLarge as error:
            too_large[program.name] = error
    return compiled, lowered, too_large


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

    resident: int  # state, batch, E's parameters, and the keys of memory.index=device
    temporaries: int  # of the program that needs most
    usable: int

    @property
    def need(self) -> int:
        return self.resident + self.temporaries

    @property
    def left(self) -> int:
        return self.usable - self.need


def memory(config: ConfigDict, programs: dict[str, Compiled], device: Device) -> Memory:
    """What a run needs on each device: arguments of training and of E stay; temporaries take turns."""
    used = {name: program for name, program in programs.items() if name != "device" or searched_by(config) == name}
    resident = programs["train"].arguments + sum(program.code for program in programs.values())
    temporaries = [program.temporaries for program in used.values()]
    return Memory(resident + beside_training(config, programs), max(temporaries), usable(device))


def beside_training(config: ConfigDict, programs: dict[str, Compiled]) -> int:
    """Bytes that stay on a device and are not the training step's: E's parameters, and the index if it lies there."""
    name = searched_by(config) if searched_by(config) in programs else "keys"
    return programs[name].arguments if name in programs else 0


def searched_by(config: ConfigDict) -> str:
    """The program that encodes a batch: "device" also searches, with memory.index=device; "keys" does not."""
    return "device" if config.memory.index == "device" else "keys"


def usable(device: Device) -> int:
    """Bytes that JAX can use of a device's memory."""
    share = float(os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", TAKEN)) if device.gpu else 1.0
    return int(share * device.memory)


def of_a_step(config: ConfigDict, programs: dict[str, Compiled]) -> list[Compiled]:
    """The programs that each training step runs: E (and its search) is one of them unless neighbours are cached."""
    names = ("train",) if config.memory.lookup == "cached" else ("train", searched_by(config))
    return [programs[name] for name in names if name in programs]


def step_seconds(programs: list[Compiled], device: Device) -> tuple[float, float]:
    """A training step of these programs, from best to worst."""
    parts = [seconds(program, device) for program in programs]
    return sum(part.best for part in parts), sum(part.worst for part in parts)
