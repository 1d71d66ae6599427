"""Device of the kernels' own tests: a GPU in `make test-gpu`, otherwise the interpreter."""

import os
from dataclasses import replace

import pytest
import torch
from model_parts import CONTEXT

DEVICE = torch.device(os.environ.get("QUIRE_TEST_DEVICE", "cpu"))

ONLY_INTERPRETED = pytest.mark.skipif(
    DEVICE.type == "cuda", reason="compiled kernels do not read the memory of the CPU"
)
BY_TORCH_OR_KERNEL = pytest.mark.parametrize(
    "context",
    [
        CONTEXT,
        pytest.param(replace(CONTEXT, kernels="triton"), marks=ONLY_INTERPRETED, id="kernel"),
    ],
)
