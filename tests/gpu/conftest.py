"""What only a GPU can show. Everything here is marked `gpu`, and skipped where there is none.

`QUIRE_GPU_TESTS_ON_CPU=1` runs the same tests in Triton's interpreter, as far as it goes: slowly,
and only to see that the tests themselves are right. Several processes may share the GPU, so an
engine takes a small cache and not what is left of the device; test_memory.py runs alone.
"""

from pathlib import Path

import pytest
from gpu_tests import DEVICE, ON_CPU

HERE = Path(__file__).parent
NUM_KV_BLOCKS = 400


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(HERE) and not ON_CPU:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session")
def device():
    return DEVICE


@pytest.fixture(scope="session")
def on_device():
    """Options of an engine that computes as on a GPU."""
    options = {"device": DEVICE, "num_kv_blocks": NUM_KV_BLOCKS}
    return options | ({"kernels": "triton", "attention_backend": "triton"} if ON_CPU else {})


@pytest.fixture(scope="session")
def in_bfloat16(on_device):
    """The same for whole models in bfloat16, which take too long to be interpreted."""
    plain = {"kernels": "torch", "attention_backend": "torch_sdpa"} if ON_CPU else {}
    return {**on_device, "dtype": "bfloat16", **plain}
