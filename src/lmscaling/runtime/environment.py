"""Host, device, versions and commit of a run or a measurement, as its record keeps them."""

import os
import platform
import re
import socket
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from lmscaling import __version__
from lmscaling.config import devices
from lmscaling.errors import UserError
from lmscaling.runtime import commit

SMI = ("driver_version", "uuid", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.limit")


def describe(gpus: int) -> dict[str, Any]:
    """The environment of this process as JSON values."""
    device = device_name(gpus)
    known = devices.find(device)
    return {
        "host": node(),
        "device": device,
        "devices": max(1, gpus),
        "peak_flops": known and known.peak_flops,
        "peak_flops_convention": devices.CONVENTION,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "versions": versions(),
        "cuda": torch.version.cuda,
        "git_commit": commit.commit(),
        "slurm_job": os.environ.get("SLURM_JOB_ID"),
    }


def node() -> str:
    """The name of this machine, as Slurm calls it if it runs the job."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def complete(gpus: int) -> dict[str, Any]:
    """``describe`` with the compilers of the kernels, and the driver and clocks of the first GPU.

    Raises:
        UserError: GPUs are asked for and this machine has none.
    """
    if gpus and not torch.cuda.is_available():
        raise UserError(
            "this measurement needs a GPU and this machine has none; "
            "write gpus: 0 in the study file to measure the CPU"
        )
    values = describe(gpus) | {"driver": {}}
    values["versions"] |= versions_if_installed(["triton"])
    if gpus:
        values["versions"] |= ptxas(*torch.cuda.get_device_capability())
        query = ["nvidia-smi", "--id=0", f"--query-gpu={','.join(SMI)}", "--format=csv,noheader"]
        with suppress(OSError, subprocess.CalledProcessError):  # there is no nvidia-smi
            text = subprocess.run(query, capture_output=True, text=True, check=True).stdout
            values["driver"] = dict(zip(SMI, map(str.strip, text.split(",")), strict=False))
    return values


def device_name(gpus: int) -> str:
    """The name of the GPU that this process uses, or of the CPU if ``gpus`` is 0."""
    return torch.cuda.get_device_name() if gpus else processor()


def versions() -> dict[str, str]:
    """Versions of the packages that a run is computed with."""
    return {"lmscaling": __version__} | {name: version(name) for name in ("torch", "numpy")}


def versions_if_installed(names: Iterable[str]) -> dict[str, str]:
    """Versions of optional packages; those that are not installed are left out."""
    installed = {}
    for name in names:
        with suppress(PackageNotFoundError):
            installed[name] = version(name)
    return installed


def ptxas(major: int, minor: int) -> dict[str, str]:
    """Version of the assembler that Triton uses for a compute capability; empty without one."""
    with suppress(ImportError, RuntimeError):  # no Triton; a Triton without ptxas
        from triton.backends.nvidia.compiler import get_ptxas_version

        if found := re.search(r"V(\d[\d.]*)", get_ptxas_version(10 * major + minor)):
            return {"ptxas": found[1]}
    return {}


def processor() -> str:
    """The name of the CPU, which ``platform`` does not find on Linux."""
    with suppress(OSError):
        if found := re.search(r"model name\s*:(.*)", Path("/proc/cpuinfo").read_text()):
            return found[1].strip()
    return platform.processor() or platform.machine()


def now() -> str:
    """UTC, ISO 8601, whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")
