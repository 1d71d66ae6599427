"""Options of the two CPU implementations: compiled kernels and torch's operators.

Compiled kernels use two threads, so that merging is tested, too.
"""

from typing import Any

import pytest
from cpp_compilers import NEEDS_COMPILER

from quire.native.availability import native_unavailable_reason

NATIVE: dict[str, Any] = {"kernels": "native", "attention_backend": "cpu", "threads": 2}
TORCH: dict[str, Any] = {"kernels": "torch", "attention_backend": "torch_sdpa"}
BY_EITHER = pytest.mark.parametrize(
    "mode",
    [pytest.param(NATIVE, marks=NEEDS_COMPILER, id="native"), pytest.param(TORCH, id="torch")],
)
OWN_BACKEND = (
    "torch_sdpa" if native_unavailable_reason() else "cpu"
)  # the choice of auto on this machine
