"""Who computes on a CPU, compiled kernels or torch's operators: what is asked for, in one place.

Compiled kernels share their work among two threads, so that what they merge is seen, too.
"""

from typing import Any

import pytest
from cpp_compilers import NEEDS_COMPILER

from quire.native.availability import native_unavailable_reason

NATIVE: dict[str, Any] = {"kernels": "native", "attention_backend": "cpu", "threads": 2}
TORCH: dict[str, Any] = {"kernels": "torch", "attention_backend": "torch_sdpa"}
BY_EITHER = pytest.mark.parametrize(
    "ways",
    [pytest.param(NATIVE, marks=NEEDS_COMPILER, id="native"), pytest.param(TORCH, id="torch")],
)
OWN_BACKEND = (
    "torch_sdpa" if native_unavailable_reason() else "cpu"
)  # what auto takes on this machine
