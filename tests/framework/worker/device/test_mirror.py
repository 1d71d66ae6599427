import numpy as np
import pytest
import torch
from kernel_device import DEVICE

from quire.worker.device.mirror import ALIGNMENT, BufferSpec, Mirror

COLUMNS = {
    "odd": BufferSpec(3, torch.bool),
    "seed": BufferSpec(5, torch.int64),
    "temperature": BufferSpec(5, torch.float32),
    "start": BufferSpec(7, torch.int32),
}


def test_what_the_host_writes_is_on_the_device_after_a_push():
    mirror = Mirror(COLUMNS, DEVICE)
    mirror.host["odd"][1] = True
    mirror.host["seed"][:] = [1, -(2**62), 3, 4, 5]
    mirror.host["temperature"][4] = 0.5
    mirror.host["start"][6] = 9
    assert not any(column.any() for column in mirror.device.values()), "not before"
    mirror.push()
    assert mirror.device["odd"].tolist() == [False, True, False]
    assert mirror.device["seed"].tolist() == [1, -(2**62), 3, 4, 5]
    assert mirror.device["temperature"].tolist() == [0, 0, 0, 0, 0.5]
    assert mirror.device["start"].tolist() == [0, 0, 0, 0, 0, 0, 9]


def test_the_host_may_write_again_at_once():
    mirror = Mirror(COLUMNS, DEVICE)
    mirror.host["start"][:] = 1
    mirror.push()
    mirror.host["start"][:] = 2
    assert mirror.device["start"].tolist() == [1] * 7


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_have_their_type_and_an_aligned_place_that_stays(name):
    mirror = Mirror(COLUMNS, DEVICE)
    column, place = mirror.device[name], mirror.device[name].data_ptr()
    assert (len(column), column.dtype) == (COLUMNS[name].size, COLUMNS[name].dtype)
    assert column.is_contiguous()
    assert (place - mirror.device["odd"].data_ptr()) % ALIGNMENT == 0
    mirror.host[name][:] = np.ones(len(column))
    mirror.push()
    assert mirror.device[name].data_ptr() == place
    assert mirror.device[name].tolist() == [1] * len(column)
