"""A connection carries whole messages in order, whatever interrupts it."""

import os
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.errors import QuireError
from quire.process.local.unix_connection import (
    PIECE_BYTES,
    UnixConnection,
    UnknownPeerError,
    connected_to,
)


class Interrupting:
    """A socket that raises an interrupt before or after some of its calls."""

    def __init__(self, connected, before, after):
        self._socket, self._before, self._after = connected, before, after
        self._num_calls = 0

    def send(self, data):
        return self._interrupted(self._socket.send, data)

    def recv_into(self, buffer):
        return self._interrupted(self._socket.recv_into, buffer)

    def _interrupted(self, call, data):
        self._num_calls += 1
        if self._num_calls in self._before:
            raise KeyboardInterrupt
        size = call(data)
        if self._num_calls in self._after:
            raise KeyboardInterrupt
        return size

    def __getattr__(self, name):
        return getattr(self._socket, name)


@pytest.fixture
def pair():
    made = new_pair()
    yield made
    for connection in made:
        connection.close()


def new_pair():
    return [UnixConnection(end) for end in socket.socketpair(type=socket.SOCK_SEQPACKET)]


def received(connection):
    found = []
    while (message := connection.receive()) is not None:
        found.append(message)
    return found


def send(connection, data):
    connection.queue(connection.packets(data))
    connection.flush()


@given(
    st.lists(st.integers(0, 3 * PIECE_BYTES), max_size=12),
    st.sets(st.integers(1, 30)),
    st.sets(st.integers(1, 30)),
    st.booleans(),
)
def test_every_message_arrives_once_whatever_is_interrupted(sizes, before, after, queues_again):
    sender, receiver = new_pair()
    sender._socket = Interrupting(sender._socket, before, after)
    messages = [bytes([number]) * size for number, size in enumerate(sizes)]
    found = []
    for message in messages:
        packets = sender.packets(message)
        sender.queue(packets)
        if queues_again:  # as a caller does that was interrupted before it noted the first time
            sender.queue(packets)
    for _ in range(10_000):
        try:
            sender.flush()
        except KeyboardInterrupt:
            continue
        found += received(receiver)
        if len(found) == len(messages) and not sender._unsent:
            break
    assert found == messages
    sender.close()
    receiver.close()


@given(
    st.lists(st.integers(0, 3 * PIECE_BYTES), max_size=12),
    st.sets(st.integers(1, 30)),
    st.sets(st.integers(1, 30)),
)
def test_every_message_arrives_whole_whatever_interrupts_its_receiver(sizes, before, after):
    sender, receiver = new_pair()
    receiver._socket = Interrupting(receiver._socket, before, after)
    messages = [bytes([number]) * size for number, size in enumerate(sizes)]
    for message in messages:
        sender.queue(sender.packets(message))
    found = []
    for _ in range(10_000):
        sender.flush()
        try:
            if (message := receiver.receive()) is not None:
                found.append(message)
        except KeyboardInterrupt:
            continue
        if len(found) == len(messages):
            break
    assert found == messages
    sender.close()
    receiver.close()


class InterruptAtLine:
    """A trace that interrupts one line of those that receive."""

    FUNCTIONS = ("receive", "_has_packet", "_number", "_receive_packet")

    def __init__(self, line):
        self.line = line
        self.num_lines = 0

    def __call__(self, frame, event, argument):
        if frame.f_code.co_name in self.FUNCTIONS and event == "line":
            self.num_lines += 1
            if self.num_lines == self.line:
                raise KeyboardInterrupt
        return self


def test_an_interrupt_at_any_line_leaves_every_message_whole():
    messages = [b"first", os.urandom(2 * PIECE_BYTES + 7), b"last"]
    line, num_interrupts = 0, 1
    while num_interrupts:
        line += 1
        sender, receiver = new_pair()
        for message in messages:
            send(sender, message)
        found, num_interrupts = received_at(receiver, InterruptAtLine(line))
        assert [message for message in messages if message in found] == found
        assert len(found) >= len(messages) - num_interrupts
        sender.close()
        receiver.close()
    assert line > 40


def received_at(receiver, trace):
    """Return all messages, and the number of interrupts."""
    found, num_interrupts = [], 0
    before = sys.gettrace()
    for _ in range(2):
        sys.settrace(trace)
        try:
            while (message := receiver.receive()) is not None:
                found.append(message)
        except KeyboardInterrupt:
            num_interrupts += 1
        finally:
            sys.settrace(before)
    return found, num_interrupts


def test_what_does_not_fit_is_sent_later_and_nobody_waits(pair):
    sender, receiver = pair
    data = os.urandom(20 * 2**20)
    started = time.monotonic()
    send(sender, data)
    assert time.monotonic() - started < 5
    with ThreadPoolExecutor(1) as pool:
        drained = pool.submit(sender.drain, time.monotonic() + 30)
        while not (found := received(receiver)):
            time.sleep(0.001)
        drained.result()
    assert found == [data]


def test_draining_ends_at_its_deadline(pair):
    sender, _ = pair
    send(sender, bytes(2**20))
    started = time.monotonic()
    sender.drain(started + 0.1)
    assert 0.05 < time.monotonic() - started < 5


def test_messages_before_the_end_are_received_and_then_it_is_known(pair):
    sender, receiver = pair
    for text in (b"one", b"two"):
        send(sender, text)
    sender.close()
    assert receiver.has_input()
    assert received(receiver) == [b"one", b"two"]
    assert (receiver.has_ended, receiver.can_send) == (True, False)
    assert not receiver.has_input()


def test_an_end_with_messages_that_it_has_not_received_loses_none(pair):
    """The kernel reports a reset once, before the packets that came first."""
    sender, receiver = pair
    send(receiver, b"never read")
    send(sender, b"last")
    sender.close()
    assert receiver.has_input()
    assert received(receiver) == [b"last"]
    assert receiver.has_ended


def test_the_last_messages_are_received_at_once_although_a_reset_is_told_first(pair):
    sender, receiver = pair
    send(receiver, b"never read")
    send(sender, b"last")
    sender.close()
    assert receiver.receive() == b"last"


def test_sending_to_an_end_that_is_closed_is_noted(pair):
    sender, receiver = pair
    receiver.close()
    send(sender, b"too late")
    assert not sender.can_send
    assert not sender._unsent


@pytest.mark.parametrize("packet", [b"\x00", b"GET / HTTP/1.1\r\n\r\n", os.urandom(4096)])
def test_bytes_of_another_protocol_are_an_error(packet):
    raw, end = socket.socketpair(type=socket.SOCK_SEQPACKET)
    raw.send(packet)
    connection = UnixConnection(end)
    with pytest.raises(UnknownPeerError):
        connection.receive()
    connection.close()
    raw.close()


def test_a_socket_on_which_nobody_listens_is_named(tmp_path):
    with pytest.raises(QuireError, match=f"the socket {tmp_path}/none cannot be connected to"):
        connected_to(f"{tmp_path}/none")


def test_a_connection_that_is_forgotten_is_closed():
    first, second = new_pair()
    del first
    second.has_input()
    assert second.has_ended
    second.close()
