"""Peak arithmetic and memory of devices, and the definition of MFU, of which the peak is a part.

Model FLOPs utilization (MFU) is the training FLOPs of the tokens per second, as ``GPT`` counts
them, over the peak; docs/numbers.md says what is counted.

Source: NVIDIA's data sheets: bf16 tensor-core FLOP/s without sparsity (the number with sparsity is
twice as large), nominal memory, and the largest power of the board, of a GH200 that of the module.
The longest entry that is a prefix of a device's name applies. A device that is not listed has no
MFU, and neither has a MIG instance: a share of a card, whose name is that of the card with ``MIG``
and a profile such as ``1g.10gb`` (NVIDIA MIG user guide).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lmscaling.errors import UserError, choose

CONVENTION = "dense bf16"


@dataclass(frozen=True)
class Device:
    """One kind of device."""

    peak_flops: float
    """Dense bf16 FLOP/s."""
    memory_bytes: float
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
    """Largest power of the board, watts."""
    published: bool = True
    """Whether published times include those of such a device, or of its architecture."""


_A100: Any = {"bus": 200e9, "sustained": 0.88, "exp_width": 16.0}

DEVICES = {
    "NVIDIA A100": Device(312e12, 40e9, 1.555e12, **_A100, power=400),
    "NVIDIA A100-SXM4-80GB": Device(312e12, 80e9, 2.04e12, **_A100, power=400),
    "NVIDIA A100 80GB PCIe": Device(312e12, 80e9, 1.935e12, **_A100, power=300),
    "NVIDIA H100": Device(989e12, 80e9, 3.35e12, power=700),
    "NVIDIA H100 PCIe": Device(756e12, 80e9, 2.0e12, power=350),
    "NVIDIA H100 NVL": Device(835e12, 94e9, 3.9e12, power=400),
    "NVIDIA H200": Device(989e12, 141e9, 4.8e12, power=700),
    "NVIDIA GH200": Device(989e12, 96e9, 4.0e12, power=1000),
    "NVIDIA GH200 144G HBM3e": Device(989e12, 144e9, 4.9e12, power=1000),
    "NVIDIA L40S": Device(362e12, 48e9, 0.864e12, power=350, published=False),
    "NVIDIA B200": Device(2250e12, 180e9, 8.0e12, power=1000, published=False),
}


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
