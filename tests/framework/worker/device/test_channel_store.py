"""torch's store over an exchange."""

from datetime import timedelta

import pytest
from rank_process import FolderExchange
from torch.distributed import PrefixStore

from quire.worker.device.channel_store import ChannelStore


def test_groups_do_not_see_each_others_values(tmp_path):
    exchange = FolderExchange(tmp_path)
    one, other = (ChannelStore(exchange, name, 5) for name in ("one", "other"))
    one.set("key", b"\x00\xff")
    other.set("key", "text")
    assert one.get("key") == b"\x00\xff"
    assert other.get("key") == b"text"
    assert one.check(["key"])
    assert not one.check(["key", "missing"])


def test_a_value_that_does_not_come_is_a_timeout(tmp_path):
    store = ChannelStore(FolderExchange(tmp_path), "group", 0.05)
    with pytest.raises(TimeoutError):
        store.get("missing")
    with pytest.raises(TimeoutError):
        store.wait(["missing"])
    with pytest.raises(TimeoutError):
        store.wait(["missing"], timedelta(seconds=0.02))


def test_torch_uses_it_through_its_own_stores(tmp_path):
    ours = ChannelStore(FolderExchange(tmp_path), "group", 5)
    store = PrefixStore("inner", ours)
    store.set("key", b"value")
    store.wait(["key"], timedelta(seconds=1))
    assert store.get("key") == b"value"
