"""The bounds of the quadratic kernels, for other versions of Triton."""

import os
from collections.abc import Mapping

from test_fused import run_cases


def check_bounds(cases: str, environment: Mapping[str, str] = os.environ) -> None:
    run_cases(cases, interpret=True, environment=environment)
