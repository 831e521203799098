"""Faults of the machine are told from faults of the program, whose errors may be results."""

import errno
import os

import pytest
import torch
from torch import distributed

from lmscaling.errors import UserError
from lmscaling.runtime.faults import first_line, is_result, machine_fault

HINT = "\nCUDA kernel errors might be asynchronously reported at some other API call"
GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/"


def chained(error: BaseException, of: BaseException, explicit: bool) -> BaseException:
    try:
        try:
            raise of
        except BaseException as cause:
            raise error from (cause if explicit else error.__cause__)
    except BaseException as raised:
        if not explicit:
            raised.__suppress_context__ = False
        return raised


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: uncorrectable ECC error encountered" + HINT,
        "Triton Error [CUDA]: uncorrectable ECC error encountered",
        "CUDA error: uncorrectable NVLink error detected during the execution",
        "CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error",
        "CUDA error: CUDA-capable device(s) is/are busy or unavailable",
        "CUDA error: no CUDA-capable device is detected",
        "CUDA error: unknown error" + HINT,
        "CUDA unknown error - this may be due to an incorrectly set up environment",
        "NVML error: GPU is lost",
        "Unable to determine the device handle: GPU has fallen off the bus",
        "NVRM: Xid (PCI:0000:65:00): 79, pid=1234",
        "CUDA error: system not yet initialized",
        "CUDA error: system has unsupported display driver / cuda driver combination",
        "Failed to initialize NVML: Driver/library version mismatch",
    ],
)
def test_a_device_that_is_broken_or_gone_is_a_fault_of_the_machine(text):
    for kind in (RuntimeError, torch.AcceleratorError, distributed.DistBackendError):
        assert machine_fault(kind(text)) == "device"


@pytest.mark.parametrize(
    "error",
    [
        distributed.DistBackendError("NCCL error in: NCCL.cpp:77, remote process exited"),
        distributed.DistBackendError("Watchdog caught collective operation timeout: WorkNCCL"),
        distributed.DistNetworkError("The client socket failed to connect to any address"),
        distributed.DistStoreError("wait timeout after 5000ms, keys: /default_pg/0"),
        RuntimeError("NCCL communicator was aborted on rank 3."),
        RuntimeError(GLOO + "pair.cc:547] Connection closed by peer [127.0.0.1]:2345"),
        RuntimeError(GLOO + "pair.cc:534] Read error [::1]:2: Connection reset by peer"),
        RuntimeError(GLOO + "unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation"),
        RuntimeError("Gloo connectFullMesh failed with ... connect timeout"),
        RuntimeError("Socket Timeout"),
        ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
        BrokenPipeError(errno.EPIPE, "Broken pipe"),
        OSError(errno.EHOSTUNREACH, "No route to host"),
    ],
    ids=str,
)  # fmt: skip
def test_ranks_that_lose_each_other_are_a_fault_of_the_network(error):
    assert machine_fault(error) == "network"


@pytest.mark.parametrize("name", ["ENOSPC", "EDQUOT", "EIO", "EROFS", "ESTALE"])
def test_a_disk_that_refuses_is_a_fault_of_the_machine(name):
    assert machine_fault(OSError(getattr(errno, name), "")) == "disk"


@pytest.mark.parametrize(
    "text",
    [
        "Error while serializing: I/O error: No space left on device (os error 28)",
        "Error while serializing: I/O error: Disk quota exceeded (os error 122)",
        "unable to write to file </torch_7>: No space left on device (28)",
        "[enforce fail at inline_container.cc:862] . PytorchStreamWriter: Input/output error",
        "SubprocException: OSError: [Errno 30] Read-only file system: '/tmp/torchinductor'",
        "Stale file handle (os error 116)",
    ],
)
def test_libraries_report_the_disk_in_the_words_of_the_system(text):
    assert machine_fault(RuntimeError(text)) == "disk"


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        distributed.DistBackendError("NCCL error: Cuda failure 2 'out of memory'"),
        RuntimeError("CUDA error: an illegal memory access was encountered" + HINT),
        distributed.DistBackendError("watchdog: an illegal memory access was encountered"),
        RuntimeError("CUDA error: device-side assert triggered" + HINT),
        RuntimeError("CUDA error: misaligned address"),
        RuntimeError("CUDA error: unspecified launch failure" + HINT),
        distributed.DistBackendError("NCCL error: ncclInvalidUsage: Duplicate GPU detected"),
        RuntimeError("GET was unable to find an engine to execute this computation"),
        RuntimeError("out of resource: shared memory, Required: 262144, Hardware limit: 232448"),
        FileNotFoundError(errno.ENOENT, "No such file or directory"),
        PermissionError(errno.EACCES, "Permission denied"),
        ValueError("shape [2, 3] is invalid"),
        AssertionError(),
        KeyboardInterrupt(),
    ],
    ids=repr,
)  # fmt: skip
def test_what_the_program_may_cause_is_no_fault_of_the_machine(error):
    assert machine_fault(error) is None


@pytest.mark.parametrize("explicit", [True, False])
def test_the_cause_of_an_error_counts_as_well(explicit):
    assert machine_fault(chained(UserError("no log"), FULL, explicit)) == "disk"
    assert machine_fault(chained(RuntimeError("backend"), ValueError("x"), explicit)) is None


def test_an_error_that_hides_its_context_is_judged_alone():
    hidden = chained(ValueError("x"), OSError(errno.EIO, ""), explicit=False)
    hidden.__suppress_context__ = True
    assert machine_fault(hidden) is None


@pytest.mark.parametrize("explicit", [True, False])
def test_the_first_cause_that_is_clear_decides(explicit):
    """Ranks lose each other because one of them used a wrong index, and not the other way round."""
    bug = RuntimeError("CUDA error: device-side assert triggered")
    lost = distributed.DistBackendError("NCCL communicator was aborted")
    assert machine_fault(chained(lost, bug, explicit)) is None
    assert machine_fault(chained(lost, chained(KeyError("x"), bug, explicit), explicit)) is None
    assert machine_fault(chained(lost, KeyError("x"), explicit)) == "network"


def test_a_failure_is_a_result_only_where_machine_and_device_are_sound(monkeypatch):
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


def test_a_reason_is_one_line():
    error = RuntimeError("no plan\nand more")
    assert first_line(error) == "no plan"
    assert first_line(AssertionError()) == "AssertionError"
