"""Peak arithmetic and memory of devices, from NVIDIA's data sheets, in ``devices.csv``.

The longest entry that is a prefix of a device's name applies. A device that is not listed has no
MFU, and neither has a MIG instance: a share of a card, whose name is that of the card with ``MIG``
and a profile such as ``1g.10gb`` (NVIDIA MIG user guide).
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from lmscaling.errors import UserError, choose

CONVENTION = "dense bf16"


@dataclass(frozen=True)
class Device:
    """One kind of device."""

    peak_flops: float
    """Dense bf16 FLOP/s; the number with sparsity is twice as large."""
    memory_bytes: float
    """Nominal memory."""
    bandwidth: float
    """Bytes per second of the memory."""
    bus: float = 300e9
    """Bytes per second of a ring all-reduce within a node."""
    sustained: float = 0.75
    """Share of the peak that a large matrix product sustains."""
    exp_width: float = 32.0
    """Width of a head whose scores take as long in exponentials as in products, if nothing hides
    the exponentials: 256 FLOPs against one at a width of 64."""
    power: float | None = None
    """Largest power of the board, of a GH200 that of the module, watts."""
    published: bool = True
    """Whether published times include those of such a device, or of its architecture."""


with Path(__file__).with_name("devices.csv").open() as _file:
    _rows = {row.pop("name"): row for row in csv.DictReader(_file)}
DEVICES = TypeAdapter(dict[str, Device]).validate_python(_rows)


def find(name: str, own: Mapping[str, Device] | None = None) -> Device | None:
    """The kind of a device with this name; None if it is not listed, or a share of a card.

    Args:
        name: As its driver says.
        own: Devices of a study, which come before those that are listed.
    """
    if "MIG" in name.split():
        return None
    known = DEVICES | dict(own or {})
    prefixes = [prefix for prefix in known if name.startswith(prefix)]
    return known[max(prefixes, key=len)] if prefixes else None


def required(name: str, own: Mapping[str, Device] | None = None) -> Device:
    """The kind of a device for which a plan is made.

    Raises:
        UserError: It is not listed, or a share of a card.
    """
    if device := find(name, own):
        return device
    if "MIG" in name.split():
        raise UserError(
            f"device {name!r} is a share of a card, of which no peak is known; plan for the whole "
            "card, or calibrate: all"
        )
    near = choose(name, [*DEVICES, *(own or {})])
    raise UserError(
        f"device {name!r} is not known; {near}; of another one give the dense bf16 FLOP/s, and "
        "the bytes/s and bytes of its memory, from its data sheet: "
        f"--set 'devices.{name}={{peak_flops: 1e15, bandwidth: 3e12, memory_bytes: 80e9}}'"
    )
