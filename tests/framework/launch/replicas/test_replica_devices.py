"""GPUs are divided among replicas in order, and too few are refused."""

import pytest

from quire.errors import CapacityError
from quire.launch.replicas.replica_devices import divide_devices


def test_each_replica_has_its_own_gpus():
    assert divide_devices(["4", "5", "GPU-6", "7"], 2, 2) == [
        {"CUDA_VISIBLE_DEVICES": "4,5"},
        {"CUDA_VISIBLE_DEVICES": "GPU-6,7"},
    ]
    assert divide_devices(["0", "1", "2"], 2, 1)[1] == {"CUDA_VISIBLE_DEVICES": "1"}


def test_too_many_replicas_are_refused_with_the_number_that_fits():
    with pytest.raises(CapacityError, match=r"need 6 GPUs, and 4 .* to at most 2"):
        divide_devices(["0", "1", "2", "3"], 3, 2)
    with pytest.raises(CapacityError, match="no replica fits"):
        divide_devices([], 2, 1)
