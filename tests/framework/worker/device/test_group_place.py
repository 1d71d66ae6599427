"""What ranks are given to join a group, and the address that they wait for."""

import pytest
from rank_process import FolderExchange

from quire.errors import CollectiveError
from quire.native.collectives.shared_segment import SegmentHandle
from quire.worker.device.group_place import GroupPlace, get_handle, set_handle

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
