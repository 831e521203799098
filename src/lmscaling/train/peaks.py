"""Peak arithmetic of devices, the denominator of MFU: dense bf16, not the sparse number.

Source: NVIDIA's data sheets, dense bf16 tensor-core FLOP/s without sparsity. The longest name that
begins a device's name counts; a device that is not listed has no MFU rather than a guessed one.
"""

CONVENTION = "dense bf16"

PEAK_FLOPS = {
    "NVIDIA A100": 312e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100 NVL": 835e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H200": 989e12,
    "NVIDIA L40S": 362e12,
    "NVIDIA B200": 2250e12,
}


def peak_flops(device: str) -> float | None:
    """FLOP/s of one device by its name, or None."""
    known = [name for name in PEAK_FLOPS if device.startswith(name)]
    return PEAK_FLOPS[max(known, key=len)] if known else None
