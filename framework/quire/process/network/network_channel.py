"""Channel from another machine to the engine."""

import time
from collections.abc import Sequence
from typing import Any

import msgspec
import zmq

from quire.errors import EngineDeadError, QuireError, SettingsError
from quire.process.hub import HubChannel
from quire.process.ipc import decode_frame, encode
from quire.process.launch_key import LaunchKey
from quire.process.network.listener_check import reachable_listener
from quire.process.network.secure_socket import (
    HANDSHAKE_TIMEOUT_S,
    ZAP_DOMAIN,
    monitor,
    monitored,
    pieces,
    secure_joiner,
)
from quire.process.network.tcp_address import TcpAddress

_REFUSAL_S = 5.0  # a hub with another key refuses at once
_MAX_HANDSHAKES = 2  # an engine that ends in the first one does not refuse the second one
_LEAST_HANDSHAKE_S = 0.5
_CONNECTION_EVENTS = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED


class KeyRefusedError(SettingsError):
    """The hub has another key."""


class NetworkChannel(HubChannel):
    """The connecting end of a hub on another machine.

    Args:
        kind: Type of messages from the hub; any other message is an error.
        address: Address on which the hub listens.
        key: Key of the launch.
    """

    def __init__(self, kind: Any, address: str, key: LaunchKey) -> None:
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._address = address
        self._last_number = 0
        self._is_lost = False
        self._context = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.set_hwm(0)
        self._socket.zap_domain = ZAP_DOMAIN
        self._poller = zmq.Poller()  # without the watched file descriptors
        self._poller.register(self._socket, zmq.POLLIN)
        self._watching_poller = zmq.Poller()
        self._watching_poller.register(self._socket, zmq.POLLIN)
        secure_joiner(self._socket, key)
        self._events = monitor(self._context, self._socket, _CONNECTION_EVENTS)
        for poller in (self._poller, self._watching_poller):
            poller.register(self._events, zmq.POLLIN)

    def connect(self, timeout_s: float) -> str:
        """Connect to the hub.

        Args:
            timeout_s: Time to wait for a hub that does not listen yet.

        Returns:
            IP address by which this machine reaches the hub.

        Raises:
            QuireError: The hub cannot be reached in time.
            SettingsError: The address is wrong.
            KeyRefusedError: The hub has another key.
        """
        deadline = time.monotonic() + timeout_s
        for _ in range(_MAX_HANDSHAKES):
            left_s = max(deadline - time.monotonic(), 0.0)
            listener = reachable_listener(TcpAddress.parse(self._address), left_s)
            if self._is_admitted(listener.address, deadline):
                return listener.local_host
        raise KeyRefusedError(
            f"the engine at {self._address} has another launch key; a key is valid for one "
            "launch only: pass the one of the engine that runs now"
        )

    def watch(self, fd: int) -> None:
        """Make `wait` also return when a file descriptor becomes readable."""
        self._watching_poller.register(fd, zmq.POLLIN)

    def unwatch(self, fd: int) -> None:
        """Watch a file descriptor no longer."""
        self._watching_poller.unregister(fd)

    def wait(self, timeout_s: float | None = None) -> Sequence[int]:
        """Block until `receive` or a watched file descriptor has something, or until timeout."""
        if self._is_lost:
            timeout_s = 0.0
        found = self._watching_poller.poll(_milliseconds(timeout_s))
        return [source for source, _ in found if isinstance(source, int)]

    def send(self, message: Any) -> None:
        """Queue a message for the hub; raises as `encode` does.

        Raises:
            EngineDeadError: `receive` has found that the connection was lost.
        """
        data = encode(message)
        if self._is_lost:
            raise self._lost()
        self._socket.send_multipart(pieces(data), zmq.NOBLOCK)

    def receive(self, timeout_s: float | None = None) -> Any:
        """Wait for the next message; raises as `HubChannel.receive` does."""
        while (frames := self._next_frames(timeout_s)) is not None:
            if not frames[-1]:  # a probe, or a message that an interrupt cut off
                continue
            number = int.from_bytes(frames[0], "little")
            if number > self._last_number:
                self._last_number = number
                return decode_frame(self._decoder, b"".join(frames[1:]), "the engine")
        return None

    def close(self, linger_s: float = 0.0) -> None:
        """Close the channel, after a time for the hub to read what was sent."""
        self._events.close(0)
        self._socket.close(0 if self._is_lost else int(linger_s * 1000))
        self._context.term()

    def _is_admitted(self, address: TcpAddress, deadline: float) -> bool:
        """Connect, and return whether the hub admits this end; else it ends the connection.

        Raises:
            QuireError: The hub does neither in time.
        """
        events = self._events
        while events.poll(0):  # of a connection before
            events.recv_multipart()
        self._socket.ipv6 = address.is_ipv6
        self._socket.connect(str(address))
        started = time.monotonic()
        left_s = min(max(deadline - started, _LEAST_HANDSHAKE_S), HANDSHAKE_TIMEOUT_S)
        event = monitored(events)[0] if events.poll(int(left_s * 1000)) else None
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            return True
        if event is None or time.monotonic() - started > _REFUSAL_S:
            raise QuireError(
                f"the engine at {self._address} does not complete the handshake; it is stopped, "
                "or its machine or the network is overloaded"
            )
        self._socket.disconnect(str(address))
        return False

    def _next_frames(self, timeout_s: float | None) -> list[bytes] | None:
        while True:
            ready = dict(self._poller.poll(0 if self._is_lost else _milliseconds(timeout_s)))
            if self._socket in ready:  # also after the loss: it came before
                return self._socket.recv_multipart()
            if self._is_lost:
                raise self._lost()
            if self._events not in ready:
                return None
            self._is_lost = monitored(self._events)[0] == zmq.EVENT_DISCONNECTED

    def _lost(self) -> EngineDeadError:
        return EngineDeadError(f"the connection to the engine at {self._address} was lost")


def _milliseconds(timeout_s: float | None) -> int | None:
    return None if timeout_s is None else int(timeout_s * 1000)
