"""Options of sockets between machines: encryption, heartbeats, and limits for strangers.

A frame's size is limited before the sender is known, so that a stranger cannot make this process
allocate much. Longer messages are sent in pieces, each a frame.
"""

import struct
from collections.abc import Sequence
from typing import Any

import zmq

from quire.process.launch_key import LaunchKey

ZAP_DOMAIN = b"quire"
HEARTBEAT_S = 1.0
HEARTBEAT_TIMEOUT_S = 5.0
HANDSHAKE_TIMEOUT_S = 10.0  # a connection that is not authenticated by then is closed
PIECE_BYTES = 256 * 1024
_ENCRYPTION_BYTES = 1024  # more than encryption adds to a frame
_EVENT = struct.Struct("=Hi")
_NEVER_MS = 10**9  # eleven days


def secure_listener(socket: zmq.Socket[bytes], key: LaunchKey) -> None:
    """Set the options of the listening end."""
    _secure(socket)
    socket.curve_server = True
    socket.curve_secretkey = key.listener.secret


def secure_joiner(socket: zmq.Socket[bytes], key: LaunchKey) -> None:
    """Set the options of a connecting end, which does not connect again once it is disconnected."""
    _secure(socket)
    socket.curve_serverkey = key.listener.public
    socket.curve_publickey = key.joiner.public
    socket.curve_secretkey = key.joiner.secret
    # Never, but the value for "never" would drop the messages received before the disconnection.
    socket.reconnect_ivl = _NEVER_MS


def pieces(data: bytes) -> Sequence[bytes]:
    """Split a message into the frames that a socket between machines accepts."""
    if len(data) <= PIECE_BYTES:
        return (data,)
    return [data[start : start + PIECE_BYTES] for start in range(0, len(data), PIECE_BYTES)]


def monitor(context: zmq.Context[Any], socket: zmq.Socket[bytes], events: int) -> zmq.Socket[bytes]:
    """Return a socket that receives the events of another one.

    It queues any number of them: a full queue would block the thread of ZeroMQ.
    """
    address = f"inproc://monitor-{id(socket)}"
    socket.monitor(address, events)
    receiver: zmq.Socket[bytes] = context.socket(zmq.PAIR)
    receiver.set_hwm(0)
    receiver.connect(address)
    return receiver


def monitored(events: zmq.Socket[bytes]) -> tuple[int, int]:
    """Return the type and the value of the next event of a monitor."""
    event, value = _EVENT.unpack(events.recv_multipart()[0])
    return event, value


def _secure(socket: zmq.Socket[bytes]) -> None:
    socket.heartbeat_ivl = int(HEARTBEAT_S * 1000)
    socket.heartbeat_timeout = int(HEARTBEAT_TIMEOUT_S * 1000)
    socket.handshake_ivl = int(HANDSHAKE_TIMEOUT_S * 1000)
    socket.maxmsgsize = PIECE_BYTES + _ENCRYPTION_BYTES
