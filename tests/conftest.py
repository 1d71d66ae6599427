"""One thread a process: the models here are tiny, and waiting for each other costs more."""

import gc
import os

import pytest
from hypothesis import settings

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"
# Kernels are interpreted, so that they run anywhere; `make test-gpu` compiles them.
ON_GPU = os.environ.get("QUIRE_TEST_DEVICE") == "cuda"
if not ON_GPU:
    os.environ["TRITON_INTERPRET"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"  # no test asks the network for anything
os.environ["TOKENIZERS_PARALLELISM"] = "false"

# Each run at a desk looks at new examples; what CI says must depend on the change alone.
settings.register_profile("ci", derandomize=True, deadline=None)
if os.environ.get("CI"):
    settings.load_profile("ci")


@pytest.hookimpl(trylast=True)  # after the folder that marks its own
def pytest_collection_modifyitems(items):
    """Skip what needs a GPU, so that a report says what was not shown."""
    if ON_GPU:
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device: make test-gpu"))


@pytest.fixture(scope="module", autouse=True)
def _set_aside():
    """Keep what is there, up to a million objects, from being searched for garbage.

    Engines look for garbage when they have loaded and when they close: with all tests and
    transformers in this process, that takes longer than the rest of a small one's life.
    """
    gc.freeze()


def pytest_unconfigure():
    """Let libraries that count what they leave behind find it freed."""
    gc.unfreeze()
