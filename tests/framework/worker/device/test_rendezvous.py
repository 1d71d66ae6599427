"""Rendezvous over torch.distributed: the address to listen on, and ranks that do not come."""

import os

import pytest
import torch
import torch.distributed as dist
from rank_process import FolderExchange

from quire.errors import CollectiveError, SettingsError
from quire.worker.device import rendezvous
from quire.worker.device.group_place import GroupPlace
from quire.worker.device.rendezvous import NCCL_INTERFACE, Rendezvous, _use_interface

CPU = torch.device("cpu")


def connect(folder, address, timeout_s=0.3):
    means = Rendezvous(
        exchange=FolderExchange(folder),
        key="group",
        place=GroupPlace(rank=1, ranks=(4, 5), ranks_on_node=2, timeout_s=20),
        device=CPU,
        interface_address=address,
    )
    return means.connect(1, timeout_s)


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


def test_a_port_of_gloo_that_cannot_be_closed_is_logged(caplog):
    reader, writer = os.pipe()  # to which no packet filter can be attached
    rendezvous._close_ports("10.0.0.7", [reader])
    assert "the port of Gloo at 10.0.0.7 stays open" in caplog.text
    os.close(reader)
    os.close(writer)


def test_nccl_listens_on_the_interface_of_the_address_unless_the_user_has_set_another(monkeypatch):
    monkeypatch.setenv(NCCL_INTERFACE, "")
    monkeypatch.delenv(NCCL_INTERFACE)
    _use_interface("127.0.0.1")
    assert os.environ[NCCL_INTERFACE] == "=lo"
    monkeypatch.setenv(NCCL_INTERFACE, "ib0")
    _use_interface("127.0.0.1")
    assert os.environ[NCCL_INTERFACE] == "ib0"


@pytest.mark.skipif(dist.is_nccl_available(), reason="this torch has NCCL")
def test_a_torch_without_nccl_is_refused_with_the_remedy(tmp_path):
    means = Rendezvous(
        exchange=FolderExchange(tmp_path),
        key="group",
        place=GroupPlace(rank=1, ranks=(4, 5), ranks_on_node=2, timeout_s=20),
        device=torch.device("cuda", 1),
        interface_address="127.0.0.1",
    )
    with pytest.raises(SettingsError, match=r"has no NCCL.*install one that has it"):
        means.connect(1, 0.3)
