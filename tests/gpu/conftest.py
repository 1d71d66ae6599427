"""What only a GPU can show. Everything here is marked `gpu`, and skipped where there is none.

`QUIRE_GPU_TESTS_ON_CPU=1` runs the same tests in Triton's interpreter, as far as it goes: slowly,
and only to see that the tests themselves are right.
"""

import os
from pathlib import Path

import pytest

ON_CPU = os.environ.get("QUIRE_GPU_TESTS_ON_CPU") == "1"
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(HERE) and not ON_CPU:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session")
def device():
    return "cpu" if ON_CPU else "cuda"


@pytest.fixture(scope="session")
def on_device():
    """Options of an engine that computes as on a GPU."""
    if ON_CPU:
        return {"device": "cpu", "kernels": "triton", "attention_backend": "triton"}
    return {"device": "cuda"}
