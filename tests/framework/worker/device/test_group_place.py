"""What ranks are given to join a group, and the address that they wait for."""

import pytest
import torch
from rank_process import FolderExchange

from quire.errors import CollectiveError
from quire.interfaces.model import StageTensors
from quire.native.collectives.shared_segment import SegmentHandle
from quire.worker.device.group_place import GroupPlace, StageShape, get_handle, set_handle

PLACE = GroupPlace(rank=1, ranks=(4, 5, 8), ranks_on_node=3, timeout_s=0.05)


def test_a_handle_arrives_as_it_was_sent(tmp_path):
    handle = SegmentHandle(pid=12, fd=3, key=2**63 - 1)
    set_handle(FolderExchange(tmp_path), "group", handle)
    assert get_handle(FolderExchange(tmp_path), "group", PLACE) == handle
    assert PLACE.size == 3


def test_a_first_rank_that_does_not_come_is_named(tmp_path):
    with pytest.raises(CollectiveError, match=r"rank 4 has not created group within 0\.05 s") as e:
        get_handle(FolderExchange(tmp_path), "group", PLACE)
    assert e.value.ranks == (4,)


@pytest.mark.parametrize(
    "residual",
    [torch.zeros(3, 4), torch.zeros(2, 4, dtype=torch.bfloat16)],
    ids=["dtype", "number of tokens"],
)
def test_a_residual_unlike_the_hidden_states_is_not_sent(residual):
    shape = StageShape(hidden_size=4, dtype=torch.bfloat16, max_num_tokens=8, num_messages=2)
    hidden_states = torch.zeros(3, 4, dtype=torch.bfloat16)
    shape.check(StageTensors(hidden_states, None))
    shape.check(StageTensors(hidden_states, hidden_states))
    with pytest.raises(ValueError, match=r"up to 8 tokens of 4 torch\.bfloat16, not "):
        shape.check(StageTensors(hidden_states, residual))
