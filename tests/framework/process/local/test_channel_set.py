"""A wait for several channels ends with a message on any, or with a descriptor of any."""

import os
import threading
import time

import msgspec
import pytest

from quire.process.local.channel import Channel
from quire.process.local.channel_set import ChannelSet
from quire.process.wake_event import WakeEvent


class Ball(msgspec.Struct, frozen=True, tag=True):
    number: int


@pytest.fixture
def pairs(tmp_path_factory):
    made = []
    for number in range(3):
        address = f"unix://{tmp_path_factory.mktemp('s')}/{number}"
        pair = [Channel(Ball, address, is_listening=is_first) for is_first in (True, False)]
        pair[1].send(Ball(0))
        assert pair[0].take(5.0) == Ball(0)
        made.append(pair)
    yield made
    for pair in made:
        for channel in pair:
            channel.close()


def waited_s(channels, timeout_s):
    started = time.monotonic()
    found = channels.wait(timeout_s)
    return found, time.monotonic() - started


@pytest.mark.parametrize("which", range(3))
def test_a_message_on_any_channel_ends_the_wait(pairs, which):
    channels = ChannelSet()
    channels.replace(mine for mine, _ in pairs)
    sending = threading.Timer(0.05, pairs[which][1].send, [Ball(1)])
    sending.start()
    found, seconds = waited_s(channels, 20)
    sending.join()
    assert found == set()
    assert seconds < 10
    assert pairs[which][0].take() == Ball(1)


def test_a_descriptor_that_a_channel_watches_ends_the_wait(pairs):
    fd = os.eventfd(0)
    pairs[1][0].watch(fd)
    channels = ChannelSet()
    channels.replace([pairs[1][0]])
    os.eventfd_write(fd, 1)
    assert waited_s(channels, 20)[1] < 10
    os.close(fd)


def test_the_sets_own_descriptor_is_named(pairs):
    event = WakeEvent()
    channels = ChannelSet([event.fileno()])
    event.set()
    assert channels.wait(20) == {event.fileno()}
    channels.replace([pairs[0][0]])
    assert channels.wait(20) == {event.fileno()}
    event.clear()
    assert channels.wait(0.01) == set()
    event.close()


def test_a_channel_that_was_replaced_ends_no_wait(pairs):
    channels = ChannelSet()
    channels.replace(mine for mine, _ in pairs)
    channels.replace([pairs[0][0]])
    pairs[1][1].send(Ball(1))
    started = time.monotonic()
    assert channels.wait(0.1) == set()
    assert time.monotonic() - started > 0.09
