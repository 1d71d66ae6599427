"""Groups of ranks that have nothing to stop, and groups that cannot start again."""

import pytest
import torch

from quire.errors import QuireError
from quire.layers import SingleDevice, TensorParallelGroup


class Summing(TensorParallelGroup):
    rank, size = 0, 2

    def all_reduce(self, x):
        return 2 * x

    def all_gather(self, x, dim=-1):
        return torch.cat([x, x], dim)


def test_one_device_can_always_be_used_again():
    group = SingleDevice()
    group.set_timeout(1.0)
    group.abort()
    assert group.can_reset
    group.reset(2)
    x = torch.ones(3)
    assert group.all_reduce(x) is x
    assert group.all_gather(x) is x
    group.close()


def test_a_group_that_cannot_be_reset_says_what_to_do():
    group = Summing()
    assert not group.can_reset
    with pytest.raises(QuireError, match="Summing cannot be used again after a collective failed"):
        group.reset(2)
