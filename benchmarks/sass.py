"""A kernel's instructions, as nvdisasm prints them, and writes that race with products in flight.

On sm_90 a product of a warpgroup (HGMMA) still runs while later instructions are issued. Until the
wait for its group (``WARPGROUP.DEPBAR``) nothing may write the registers of its first factor, and
nothing may read or write its sums. Some versions of ptxas have moved such writes too early.

Sources: PTX ISA, section "Asynchronous warpgroup level matrix instructions"; the positions of stall
counts and barriers in a control word: Jia et al. 2018 (arXiv:1804.06826), section 2.1.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

STORES = ("ST", "STS", "STG", "STL", "STSM", "RED", "R2UR", "BAR", "MEMBAR", "FENCE", "BRA", "EXIT")
"""Opcodes whose first register is read, not written, or that have none."""


@dataclass(frozen=True)
class Instruction:
    """One instruction of a kernel."""

    name: str
    """Opcode and its modifiers: ``HGMMA.64x64x16.F32.BF16``."""
    operands: tuple[str, ...]
    waits: bool
    """Whether it waits for the result of an instruction of variable latency."""

    @property
    def opcode(self) -> str:
        return self.name.partition(".")[0]


def parsed(text: str) -> tuple[list[Instruction], list[tuple[int, int]]]:
    """Instructions in order, and every loop, from a label to a branch back to it.

    Args:
        text: What ``nvdisasm -hex -c`` prints.

    Returns:
        The instructions, and the first index and the one after the last of each loop.
    """
    first = re.compile(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)\s*([^;]*);")
    second = re.compile(r"\s+/\* 0x([0-9a-f]{16}) \*/")
    found: list[Instruction] = []
    labels: dict[str, int] = {}
    loops = []
    name, operands = "", ()
    for line in text.splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = len(found)
        elif head := first.match(line):
            name, operands = head[1], tuple(x.strip() for x in head[2].split(",") if x.strip())
        elif name and (tail := second.match(line)):
            control = int(tail[1], 16) >> 41
            found.append(Instruction(name, operands, waits=bool(control >> 11 & 0x3F)))
            target = re.search(r"\.L_x_\d+", " ".join(operands)) if name.startswith("BRA") else None
            if target and target[0] in labels:
                loops.append((labels[target[0]], len(found)))
            name = ""
    return found, loops


def multiplications(instruction: Instruction) -> int:
    """Multiply-adds on tensor cores for one warp; 0 where the name does not say the shape."""
    if shape := re.match(r"HGMMA\.(\d+)x(\d+)x(\d+)", instruction.name):
        return int(shape[1]) * int(shape[2]) * int(shape[3]) // 4
    if shape := re.match(r"HMMA\.(16)(8)(16|8|4)\b", instruction.name):
        return int(shape[1]) * int(shape[2]) * int(shape[3])
    return 0


def hazards(instructions: Sequence[Instruction], loops: Sequence[tuple[int, int]]) -> list[str]:
    """Registers that are touched while a product in flight needs them, one sentence each.

    The code is read in its order, and every loop twice, so that the end of an iteration meets the
    beginning of the next one.
    """
    loop_bodies = (instructions[a:b] for a, b in loops)
    twice = ([*body, *body] for body in loop_bodies)
    found = chain(_races(instructions), *map(_races, twice))
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class _Product:
    """A product in flight."""

    factor: frozenset[int]
    sums: frozenset[int]
    name: str


def _races(code: Sequence[Instruction]) -> Iterator[str]:
    """What ``hazards`` returns, for one straight piece of code."""
    groups: list[list[_Product]] = [[]]  # the last one is not yet closed
    for i in code:
        if i.name.startswith("WARPGROUP.DEPBAR"):
            groups = groups[-1 - int(i.operands[1], 16) :]
            continue
        running = [product for group in groups for product in group]
        if i.opcode == "HGMMA":
            product = _product(i)
            for other in running:
                if product.sums & other.factor:
                    yield f"{i.name} {_list(i)} overwrites a factor of {other.name}"
                if product.factor & other.sums:
                    yield f"{i.name} {_list(i)} reads unfinished sums of {other.name}"
            groups[-1].append(product)
            if "gsb0" in i.operands:
                groups.append([])
            continue
        written, read = _written(i), _read(i)
        for other in running:
            if written & other.factor:
                yield f"{i.name} {_list(i)} overwrites a factor of {other.name}"
            if (written | read) & other.sums:
                yield f"{i.name} {_list(i)} touches unfinished sums of {other.name}"


def _product(i: Instruction) -> _Product:
    """The registers of an HGMMA: 64 x N sums in float32, and 64 x 16 of the first factor."""
    shape = re.match(r"HGMMA\.64x(\d+)x", i.name)
    assert shape, i.name
    factor = _span(i.operands[1], 4)
    return _Product(factor, _span(i.operands[0], int(shape[1]) // 2), f"{i.name} {_list(i)}")


def _written(i: Instruction) -> frozenset[int]:
    if i.opcode in STORES:
        return frozenset()
    register = next((x for x in i.operands if not re.match(r"!?U?P\w", x)), "")
    return _span(register, _width(i))


def _read(i: Instruction) -> frozenset[int]:
    after = i.operands if i.opcode in STORES else i.operands[1:]
    return frozenset(int(n) for x in after for n in re.findall(r"\bR(\d+)", x))


def _width(i: Instruction) -> int:
    """Registers that an instruction writes."""
    if i.opcode == "LDSM":
        return int((re.search(r"\.([24])$", i.name) or "11")[1])
    if ".128" in i.name or i.opcode == "HMMA":
        return 4
    return 2 if ".64" in i.name or ".WIDE" in i.name or i.opcode == "CS2R" else 1


def _span(operand: str, width: int) -> frozenset[int]:
    """``width`` registers from one on; none for another operand, as a descriptor is."""
    first = re.match(r"[-|~]*R(\d+)", operand)
    return frozenset(range(int(first[1]), int(first[1]) + width)) if first else frozenset()


def _list(i: Instruction) -> str:
    return ", ".join(i.operands)
