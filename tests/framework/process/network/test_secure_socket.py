"""Which sockets need a key, and messages in pieces."""

import socket

import pytest
import zmq
from hub_ends import KEY
from hypothesis import given
from hypothesis import strategies as st

from quire.process.network.secure_socket import (
    PIECE_BYTES,
    monitor,
    pieces,
    secure_joiner,
    secure_listener,
)


@given(st.integers(0, 5), st.integers(-2, 2))
def test_pieces_are_the_message_and_none_is_empty_or_too_long(num_pieces, more):
    size = max(1, num_pieces * PIECE_BYTES + more)
    data = bytes(range(251)) * (size // 251 + 1)
    split = pieces(data[:size])
    assert b"".join(split) == data[:size]
    assert all(0 < len(piece) <= PIECE_BYTES for piece in split)


def test_a_message_of_one_piece_is_not_copied():
    data = bytes(PIECE_BYTES)
    assert pieces(data)[0] is data


@pytest.mark.parametrize("secure", [secure_listener, secure_joiner])
def test_both_ends_limit_strangers_and_silence(secure):
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        secure(dealer, KEY)
        assert (dealer.heartbeat_ivl, dealer.heartbeat_timeout) == (1000, 5000)
        assert dealer.handshake_ivl == 10_000
        assert PIECE_BYTES < dealer.maxmsgsize < 2 * PIECE_BYTES
        assert dealer.mechanism == zmq.CURVE


def test_a_monitor_that_is_not_read_holds_up_nothing():
    with zmq.Context() as context:
        server, client = context.socket(zmq.PULL), context.socket(zmq.PUSH)
        events = monitor(context, server, zmq.EVENT_ACCEPTED)
        server.backlog = 3000
        port = server.bind_to_random_port("tcp://127.0.0.1")
        for _ in range(2300):  # more than a socket queues by default, at both ends
            socket.create_connection(("127.0.0.1", port)).close()
        client.connect(f"tcp://127.0.0.1:{port}")
        client.send(b"x")
        assert server.poll(60_000)
        for made in (events, client, server):
            made.close(0)
