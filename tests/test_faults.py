"""Faults of the machine are told from faults of the program, whose errors may be results."""

import errno
import os

import pytest
import torch
from torch.distributed import DistBackendError, DistNetworkError, DistStoreError

from lmscaling.errors import UserError
from lmscaling.runtime.faults import first_line, is_result, machine_fault

HINT = "\nCUDA kernel errors might be asynchronously reported at some other API call"
GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/"
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

DEVICE = """\
CUDA error: uncorrectable ECC error encountered
CUDA error: uncorrectable NVLink error detected during the execution
CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error
CUDA error: CUDA-capable device(s) is/are busy or unavailable
CUDA error: no CUDA-capable device is detected
CUDA error: unknown error
CUDA unknown error - this may be due to an incorrectly set up environment
Triton Error [CUDA]: unknown error
NVML error: GPU is lost
Unable to determine the device handle: GPU has fallen off the bus
NVRM: Xid (PCI:0000:65:00): 79, pid=1234
CUDA error: system not yet initialized
CUDA error: system has unsupported display driver / cuda driver combination
Failed to initialize NVML: Driver/library version mismatch""".splitlines()
DISK = """\
Error while serializing: I/O error: No space left on device (os error 28)
Error while serializing: I/O error: Disk quota exceeded (os error 122)
[enforce fail at inline_container.cc:862] . PytorchStreamWriter: Input/output error
SubprocException: OSError: [Errno 30] Read-only file system: '/tmp/torchinductor'
Stale file handle (os error 116)""".splitlines()
"""The words of the system, in which libraries report the disk."""
NUMBERS = errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ESTALE
NETWORK = [
    DistBackendError("NCCL error in: NCCL.cpp:77, remote process exited"),
    DistBackendError("Watchdog caught collective operation timeout: WorkNCCL"),
    DistNetworkError("The client socket failed to connect to any address"),
    DistStoreError("wait timeout after 5000ms, keys: /default_pg/0"),
    RuntimeError("NCCL communicator was aborted on rank 3."),
    RuntimeError(GLOO + "pair.cc:547] Connection closed by peer [127.0.0.1]:2345"),
    RuntimeError(GLOO + "pair.cc:534] Read error [::1]:2: Connection reset by peer"),
    RuntimeError(GLOO + "unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation"),
    RuntimeError("Gloo connectFullMesh failed with ... connect timeout"),
    RuntimeError("Socket Timeout"),
    ConnectionResetError(errno.ECONNRESET, ""),
    BrokenPipeError(errno.EPIPE, ""),
    OSError(errno.EHOSTUNREACH, ""),
]
BUGS = [
    "illegal memory access", "device-side assert triggered", "misaligned address",
    "illegal instruction", "unspecified launch failure", "ncclInvalidUsage: Duplicate GPU detected",
    "'out of memory'",
]  # fmt: skip
UNCLEAR = [
    *(DistBackendError(f"NCCL error: {text}{HINT}") for text in BUGS),
    *(torch.OutOfMemoryError("CUDA out of memory."), MemoryError(), OSError(errno.ENOMEM, "")),
    RuntimeError("GET was unable to find an engine to execute this computation"),
    RuntimeError("out of resource: shared memory, Required: 262144, Hardware limit: 232448"),
    *(FileNotFoundError(errno.ENOENT, ""), PermissionError(errno.EACCES, "")),
    *(ValueError("shape [2, 3] is invalid"), AssertionError(), KeyboardInterrupt()),
]
"""What the program may have caused."""
ERRORS = {
    "device": [RuntimeError(text + HINT) for text in DEVICE],
    "network": NETWORK,
    "disk": [*map(RuntimeError, DISK), *(OSError(number, "") for number in NUMBERS)],
    None: UNCLEAR,
}


@pytest.mark.parametrize(
    ("fault", "error"), [(fault, one) for fault in ERRORS for one in ERRORS[fault]], ids=repr
)
def test_the_fault_of_an_error_is_known_by_its_kind_its_number_or_its_words(fault, error):
    assert machine_fault(error) == fault
    if fault == "device":  # whoever reports it
        assert machine_fault(torch.AcceleratorError(str(error))) == "device"
        assert machine_fault(DistBackendError(str(error))) == "device"


@pytest.mark.parametrize("explicit", [True, False])
def test_the_first_cause_that_is_clear_decides(explicit):
    """Ranks lose each other because one of them used a wrong index, and not the other way round."""

    def chained(error, of):
        if explicit:
            error.__cause__ = of  # raised from it
        else:
            error.__context__ = of  # raised while it was handled
        return error

    assert machine_fault(chained(UserError("no log"), FULL)) == "disk"
    assert machine_fault(chained(RuntimeError("backend"), ValueError("x"))) is None
    bug = RuntimeError("CUDA error: device-side assert triggered")
    lost = DistBackendError("NCCL communicator was aborted")
    assert machine_fault(chained(lost, bug)) is None
    assert machine_fault(chained(lost, chained(KeyError("x"), bug))) is None
    assert machine_fault(chained(lost, KeyError("x"))) == "network"
    hidden = ValueError("x")
    hidden.__context__, hidden.__suppress_context__ = FULL, True
    assert machine_fault(hidden) is None


def test_a_failure_is_a_result_where_machine_and_device_are_sound_in_one_line(monkeypatch):
    refused, full = RuntimeError("cuDNN has no plan"), torch.OutOfMemoryError("full")
    cpu = torch.device("cpu")
    assert is_result(refused, cpu)
    assert is_result(full, cpu)
    assert not is_result(FULL, cpu)

    def device(error):
        def ones(*_, **__):
            raise error

        monkeypatch.setattr(torch, "ones", ones)

    device(torch.AcceleratorError("CUDA error: an illegal memory access was encountered"))
    assert not is_result(refused, cpu)
    device(full)
    assert is_result(full, cpu)
    assert first_line(RuntimeError("no plan\nand more")) == "no plan"
    assert first_line(AssertionError()) == "AssertionError"
