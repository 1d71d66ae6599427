import numpy as np
import pytest
import torch
from kernel_device import DEVICE

from quire.worker.device.mirror import ALIGNMENT, BufferSpec, Mirror

BUFFERS = {
    "odd": BufferSpec(3, torch.bool),
    "seed": BufferSpec(5, torch.int64),
    "temperature": BufferSpec(5, torch.float32),
    "start": BufferSpec(7, torch.int32),
}


def test_what_the_host_writes_is_on_the_device_after_a_push():
    mirror = Mirror(BUFFERS, DEVICE)
    mirror.host["odd"][1] = True
    mirror.host["seed"][:] = [1, -(2**62), 3, 4, 5]
    mirror.host["temperature"][4] = 0.5
    mirror.host["start"][6] = 9
    assert not any(buffer.any() for buffer in mirror.device.values()), "not before"
    mirror.push()
    assert mirror.device["odd"].tolist() == [False, True, False]
    assert mirror.device["seed"].tolist() == [1, -(2**62), 3, 4, 5]
    assert mirror.device["temperature"].tolist() == [0, 0, 0, 0, 0.5]
    assert mirror.device["start"].tolist() == [0, 0, 0, 0, 0, 0, 9]


def test_the_host_may_write_again_at_once():
    mirror = Mirror(BUFFERS, DEVICE)
    mirror.host["start"][:] = 1
    mirror.push()
    mirror.host["start"][:] = 2
    assert mirror.device["start"].tolist() == [1] * 7


@pytest.mark.parametrize("name", BUFFERS)
def test_buffers_have_their_type_and_a_fixed_aligned_address(name):
    mirror = Mirror(BUFFERS, DEVICE)
    buffer, address = mirror.device[name], mirror.device[name].data_ptr()
    assert (len(buffer), buffer.dtype) == (BUFFERS[name].size, BUFFERS[name].dtype)
    assert buffer.is_contiguous()
    assert (address - mirror.device["odd"].data_ptr()) % ALIGNMENT == 0
    mirror.host[name][:] = np.ones(len(buffer))
    mirror.push()
    assert mirror.device[name].data_ptr() == address
    assert mirror.device[name].tolist() == [1] * len(buffer)
