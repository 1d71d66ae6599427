"""Connections of torch.distributed: the address they listen on, and ranks that do not come."""

import pytest
import torch
from rank_process import FolderExchange

from quire.errors import CollectiveError, SettingsError
from quire.worker.device.group_place import GroupPlace
from quire.worker.device.process_group import ProcessGroup

CPU = torch.device("cpu")


def connect(folder, address, timeout_s=0.3):
    place = GroupPlace(rank=1, ranks=(4, 5), ranks_on_node=2, timeout_s=timeout_s)
    return ProcessGroup.connect(FolderExchange(folder), "group", place, CPU, address, "collective")


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("0.0.0.0", "do not listen on 0.0.0.0"),
        ("::", "do not listen on ::"),
        ("localhost", "'localhost' is not an IP address"),
        ("", "'' is not an IP address"),
        ("192.0.2.1", "cannot listen on 192.0.2.1"),
    ],
)
def test_an_address_that_is_not_an_interface_is_refused(tmp_path, address, message):
    with pytest.raises(SettingsError, match=message):
        connect(tmp_path, address)
    assert not list(tmp_path.iterdir()), "nothing is published"


def test_a_rank_that_waits_alone_says_who_is_missing(tmp_path):
    with pytest.raises(CollectiveError, match="rank 5 cannot connect to the group of ranks 4, 5"):
        connect(tmp_path, "127.0.0.1")
