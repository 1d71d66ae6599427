"""Hubs and their peers, in this process."""

import time

import msgspec

from quire.process.launch_key import LaunchKey
from quire.process.local.local_channel import LocalChannel
from quire.process.network.network_channel import NetworkChannel

KEY = LaunchKey.new()
TCP = "tcp://127.0.0.1:0"


class Word(msgspec.Struct, tag=True, array_like=True):
    """A message in both directions."""

    text: str


def joined(hub, address=None):
    """Return a new channel of a hub, and the hub's id of it.

    Args:
        hub: The hub.
        address: Address to connect to, if not the hub's own.
    """
    if hub.address.startswith("tcp"):
        channel = NetworkChannel(Word, address or hub.address, KEY)
        assert channel.connect(5) == "127.0.0.1"
    else:
        channel = LocalChannel(Word, hub.address)
    channel.send(Word("hello"))
    peer, message = hub.take(5)
    assert message == Word("hello")
    return channel, peer


def next_lost(hub):
    """Wait until the hub has lost peers, and return them."""
    deadline = time.monotonic() + 20
    while not (lost := hub.lost()):
        assert time.monotonic() < deadline, "no peer is lost"
        hub.wait(1)
    return lost


def port_of(hub):
    """Return the port of a hub."""
    return int(hub.address.rpartition(":")[2])


def check_serves(hub, channel, peer):
    """Check that a message in each direction arrives, and nothing else."""
    hub.send([peer], Word("question"))
    assert channel.receive(10) == Word("question")
    channel.send(Word("answer"))
    assert hub.take(10) == (peer, Word("answer"))
    assert hub.take() is None
