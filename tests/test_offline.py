"""What the compiler makes of the kernels is no worse than benchmarks/offline.csv says."""

import os
import subprocess
import sys

import pytest
from conftest import ROOT


@pytest.mark.parametrize("sm", [80, 90])
def test_kernels_compile_no_worse_than_the_table(sm: int) -> None:
    pytest.importorskip("triton", reason="Triton is not installed: extra test, on Linux")
    environment = {n: v for n, v in os.environ.items() if n != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "offline.py", "--sm", str(sm)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert not done.returncode, done.stderr
    assert f"sm={sm}" in done.stdout
