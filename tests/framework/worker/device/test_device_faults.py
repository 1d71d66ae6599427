"""A device failure ends the engine; the error of a part does not."""

import pytest
import torch

from quire.errors import EngineDeadError, RequestFailedError
from quire.worker.device.device_faults import end_if_device_failed

ILLEGAL = "CUDA error: an illegal memory access was encountered"


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError(ILLEGAL),
        RuntimeError(ILLEGAL),
        RuntimeError("Triton Error [CUDA]: misaligned address"),
    ],
)
def test_a_device_that_failed_ends_the_engine(error):
    with pytest.raises(EngineDeadError, match="the device failed") as caught:
        end_if_device_failed(error)
    assert str(error) in str(caught.value)


def _blamed():
    try:
        raise torch.AcceleratorError(ILLEGAL)
    except RuntimeError as error:
        raise RequestFailedError("sampler x failed") from error


def test_the_first_device_error_is_reported():
    with pytest.raises(RequestFailedError) as blamed:
        _blamed()
    with pytest.raises(EngineDeadError, match="illegal memory access"):
        end_if_device_failed(blamed.value)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("shapes differ"),
        ValueError("CUDA error is a word of a part's"),
    ],
)
def test_an_error_of_a_part_is_not_a_device_failure(error):
    end_if_device_failed(error)
