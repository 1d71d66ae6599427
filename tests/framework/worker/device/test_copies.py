import numpy as np
import pytest
import torch
from kernel_device import DEVICE

from quire.worker.device.copies import upload, upload_into


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32, np.bool_, np.uint8])
def test_an_array_arrives_with_its_type(dtype):
    array = np.array([[1, 0, 1], [0, 1, 1]], dtype)
    found = upload(array, DEVICE)
    assert found.dtype == torch.from_numpy(array).dtype
    assert found.tolist() == array.tolist()


def test_an_empty_array_arrives():
    assert upload(np.empty((0, 2), np.int64), DEVICE).shape == (0, 2)


def test_what_was_uploaded_into_a_tensor_does_not_change_with_the_array():
    target = torch.zeros(3, dtype=torch.int32, device=DEVICE)
    address, array = target.data_ptr(), np.array([1, 2, 3], np.int32)
    upload_into(array, target)
    array[:] = 9
    assert target.tolist() == [1, 2, 3]
    assert target.data_ptr() == address
