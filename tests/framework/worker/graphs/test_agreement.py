"""Steps are replayed by all devices of a group, or by none."""

import pytest
import torch

from quire.layers import SingleDevice
from quire.testing.model.threaded_ranks import RankThreads
from quire.worker.graphs.agreement import all_agree

CPU = torch.device("cpu")


@pytest.mark.parametrize("is_fine", [True, False])
def test_a_single_device_decides_alone(is_fine):
    assert all_agree(SingleDevice(), is_fine, CPU) == is_fine


@pytest.mark.parametrize("votes", [(True,) * 3, (True, False, True), (False,) * 3])
def test_one_device_that_cannot_is_enough(votes):
    threads = RankThreads(3, 1)
    calls = [
        lambda group=group, vote=vote: all_agree(group, vote, CPU)
        for group, vote in zip(threads.groups, votes, strict=True)
    ]
    assert threads.run(calls) == [all(votes)] * 3
    threads.close()
