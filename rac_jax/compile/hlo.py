"""What a compiled program moves, read off its HLO text: collectives between devices, and bytes of device memory."""

import dataclasses
import math
import re
from collections.abc import Iterator

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
BITS = {"pred": 8, "bf16": 16, "f16": 16, "f32": 32, "f64": 64, "c64": 64, "c128": 128, "f8e4m3fn": 8, "f8e5m2": 8}

# These move nothing themselves.
FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id",
    "optimization-barrier", "while", "call", "conditional", "async-start",
}  # fmt: skip

_SHAPE = re.compile(r"\b([a-z]+\d*[a-z0-9]*)\[([\d,]*)\](\{[^}]*\})?")
_NAME = re.compile(r"%?([\w.-]+) = ")
_CALLED = re.compile(r"(?:body|to_apply|calls|branch_computations=\{)=?%?([\w.-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    line: str


@dataclasses.dataclass
class Moved:
    """Collectives of one kind."""

    count: int = 0
    payload: int = 0  # bytes of the arrays that are reduced, gathered or exchanged, on each device
    sent: float = 0.0  # bytes that each device sends, in a ring


def collectives(text: str) -> dict[str, Moved]:
    """The collectives of a program by kind; those in a loop count once for each of its turns."""
    found: dict[str, Moved] = {}
    for instruction, times in _executed(text):
        kind = instruction.opcode.removesuffix("-start")
        if kind in COLLECTIVES:
            moved, group = found.setdefault(kind, Moved()), _group(instruction.line)
            payload = _payload(instruction, kind, group)
            moved.count += times
            moved.payload += times * payload
            moved.sent += times * payload * _share(kind, group)
    return found


def traffic(text: str) -> int:
    """Bytes that the instructions of a program read from and write to device memory, what stays on chip left out.

    An upper estimate: a fusion that reads a part of an array is charged for all of it.
    """
    sizes: dict[str, int] = {}
    total = 0
    for instruction, times in _executed(text):
        kept = instruction.shape
        if instruction.opcode == "custom-call":
            kept = re.sub(r"\bs8\[\d+\]", "", kept)  # the workspace of a library's matrix product
        if instruction.opcode == "slice-start":
            kept = _second(kept).replace("S(1)", "")  # only the slice is read
        sizes[instruction.name] = size(kept)
        if instruction.opcode not in FREE and not instruction.opcode.endswith("-done"):
            inside = instruction.opcode.endswith("-start") and instruction.shape.startswith("(")  # with its operands
            operands = 0 if inside else sum(sizes.get(name, 0) for name in instruction.operands)
            total += times * (sizes[instruction.name] + operands)
    return total


def size(shape: str) -> int:
    """Bytes of an array or tuple as HLO writes it; arrays in on-chip memory, S(1), have none."""
    total = 0
    for dtype, dimensions, layout in _SHAPE.findall(shape):
        if "S(1)" not in layout:
            total += math.prod(map(int, filter(None, dimensions.split(",")))) * _bits(dtype) // 8
    return total


def _bits(dtype: str) -> int:
    digits = re.fullmatch(r"[su](\d+)", dtype)
    return int(digits[1]) if digits else BITS.get(dtype, 0)


def _executed(text: str) -> Iterator[tuple[Instruction, int]]:
    """The instructions that run, from the entry into loops and calls, and how often each does."""
    computations, entry = _computations(text)
    stack = [(entry, 1)]
    while stack:
        name, times = stack.pop()
        for instruction in computations.get(name, ()):
            yield instruction, times
            if instruction.opcode in ("while", "call", "conditional", "async-start"):
                trips = _TRIPS.search(instruction.line)
                inner = _CALLED.search(instruction.line)
                if inner:
                    stack.append((inner[1], times * (int(trips[1]) if trips else 1)))


def _computations(text: str) -> tuple[dict[str, list[Instruction]], str]:
    found: dict[str, list[Instruction]] = {}
    entry, current = "", ""
    for line in text.splitlines():
        if line and not line[0].isspace() and line.rstrip().endswith("{"):
            current = line.removeprefix("ENTRY ").lstrip("%").split(" ")[0]
            found[current] = []
            entry = current if line.startswith("ENTRY") else entry
        elif current and (instruction := _instruction(line)):
            found[current].append(instruction)
    return found, entry


def _instruction(line: str) -> Instruction | None:
    line = line.strip().removeprefix("ROOT ")
    named = _NAME.match(line)
    if not named:
        return None
    rest = line[named.end() :]
    end = _closing(rest) if rest.startswith("(") else rest.find(" ")
    shape, rest = rest[:end], rest[end:].lstrip()
    opcode, bracket, _ = rest.partition("(")
    if not bracket:
        return None
    inside = rest[len(opcode) : len(opcode) + _closing(rest[len(opcode) :])]
    return Instruction(named[1], shape, opcode, tuple(re.findall(r"%([\w.-]+)", inside)), line)


def _closing(text: str) -> int:
    """Where the bracket that `text` begins with is closed, plus one."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            return place + 1
    return len(text)


def _payload(instruction: Instruction, kind: str, group: int) -> int:
    shape = instruction.shape.replace("S(1)", "")
    if instruction.opcode.endswith("-start") and kind != "all-reduce" and shape.startswith("("):
        shape = _second(shape)  # (operands, result)
    return size(shape) * (group if kind == "reduce-scatter" else 1)


def _second(shape: str) -> str:
    """The second element of a tuple's shape."""
    depth, elements = 0, [""]
    for letter in shape[1:-1]:
        depth += (letter in "({[") - (letter in ")}]")
        if letter == "," and not depth:
            elements.append("")
        else:
            elements[-1] += letter
    return elements[1] if len(elements) > 1 else shape


def _group(line: str) -> int:
    """How many devices take part, from any of the forms of replica_groups."""
    text = line.partition("replica_groups=")[2]
    if text.startswith("mesh["):
        axes = dict(re.findall(r"'(\w+)'=(\d+)", text.partition("]")[0]))
        used = re.findall(r"'(\w+)'", text.partition("]")[2].partition("}")[0])
        return math.prod(int(axes.get(axis, 1)) for axis in used)
    if iota := re.match(r"\[(\d+),(\d+)\]<=", text):
        return int(iota[2])
    if listed := re.match(r"\{\{([\d,]+)\}", text):
        return len(listed[1].split(","))
    return 2  # of a permutation, which has pairs


def _share(kind: str, group: int) -> float:
    """Of the payload, what a device sends in a ring."""
    if kind == "collective-permute":
        return 1.0
    return (2.0 if kind == "all-reduce" else 1.0) * (group - 1) / group
