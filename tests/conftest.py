"""Settings of the whole suite: threads, devices, random examples and garbage collection.

One thread a process: the models here are tiny, and synchronizing threads costs more. Where a test
asks for two, the idle one sleeps and does not spin, because other processes need its core.
"""

import gc
import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# Asserts of the shared parts hold with `python -O` too, as those of test modules do.
pytest.register_assert_rewrite(*(path.stem for path in Path(__file__).parent.glob("parts/*.py")))
from quick_interpreter import quicken_interpreter  # noqa: E402

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"
os.environ["OMP_WAIT_POLICY"] = "passive"
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
def _frozen_heap():
    """Exclude the objects that exist from garbage collection.

    Engines collect garbage after loading and on closing. With all tests and transformers imported,
    scanning a million old objects takes longer than the rest of a small test.
    """
    gc.collect()  # garbage of the module before must not be kept for the whole session
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """Set one torch thread again: an engine in this process sets the number for all."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


@pytest.fixture(scope="module", autouse=True)
def _quick_interpreter():
    quicken_interpreter()


def pytest_unconfigure():
    """Unfreeze, so that libraries that report leaks at exit see these objects freed."""
    gc.unfreeze()
