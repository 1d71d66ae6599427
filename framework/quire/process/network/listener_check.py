"""Check from another machine that an engine listens at an address, and say what is there instead.

The socket of ZeroMQ would try for ever without saying why.
"""

import contextlib
import socket
import time
from dataclasses import dataclass

from quire.errors import QuireError, SettingsError
from quire.process.network.tcp_address import TcpAddress

RETRY_S = 0.5
CONNECT_TIMEOUT_S = 5.0
# ZMTP 3.1 (RFC 37): each end sends a signature and its version, and then the mechanism.
_SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
_VERSION = b"\x03\x01"
_MECHANISM = b"CURVE".ljust(20, b"\0")
_WEB_REQUEST = b"GET / HTTP/1.0\r\n\r\n"  # a web server does not speak first


@dataclass(frozen=True)
class Listener:
    """A listening socket of ZeroMQ.

    Attributes:
        address: Its IP address and port.
        local_host: IP address by which this machine reaches it.
    """

    address: TcpAddress
    local_host: str


def reachable_listener(address: TcpAddress, timeout_s: float) -> Listener:
    """Wait until a socket of ZeroMQ with encryption listens at an address.

    Raises:
        QuireError: Nothing can be reached there in time.
        SettingsError: Something else answers there.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        left_s = deadline - time.monotonic()
        try:
            return _check(address, min(max(left_s, RETRY_S), CONNECT_TIMEOUT_S))
        except (OSError, UnicodeError) as error:  # the latter of an impossible name
            if left_s <= RETRY_S:
                raise QuireError(
                    f"the engine at {address} cannot be reached within {round(timeout_s, 1):g} s: "
                    f"{_reason(error)}; check that it runs and still waits for workers, that it "
                    "listens at this address, and that no firewall is between"
                ) from error
        time.sleep(RETRY_S)


def _check(address: TcpAddress, timeout_s: float) -> Listener:
    """Connect, and check the greeting of the other end.

    Raises:
        OSError: There is no connection, or it ends without a byte, or too little comes in time.
        SettingsError: The other end is no engine.
    """
    deadline = time.monotonic() + timeout_s
    with socket.create_connection((address.host, address.port), timeout_s) as connection:
        if _mechanism(connection, deadline) != _MECHANISM:
            raise SettingsError(
                f"what listens at {address} is no engine of quire that waits for workers; check "
                "host and port"
            )
        peer, local = connection.getpeername(), connection.getsockname()
        return Listener(TcpAddress(str(peer[0]), int(peer[1])), str(local[0]))


def _mechanism(connection: socket.socket, deadline: float) -> bytes:
    """Return the mechanism that a listening socket of ZeroMQ names; empty if it is no such one.

    Raises:
        OSError: The other end says nothing, or too little in time.
    """
    half_time = (time.monotonic() + deadline) / 2
    signature = _received(connection, len(_SIGNATURE), half_time)
    if not signature:
        connection.sendall(_WEB_REQUEST)
        if not _received(connection, 1, deadline):
            raise TimeoutError("it accepts connections and does not answer")
        return b""
    if signature[0] != _SIGNATURE[0]:
        return b""
    connection.sendall(_SIGNATURE + _VERSION)  # no more: a mechanism would be refused or begun
    rest = len(_SIGNATURE + _VERSION + _MECHANISM) - len(signature)
    greeting = signature + _received(connection, rest, deadline)
    if len(greeting) < len(_SIGNATURE + _VERSION + _MECHANISM):
        raise TimeoutError("it begins to answer and does not go on")
    return greeting[len(_SIGNATURE + _VERSION) :]


def _received(connection: socket.socket, num_bytes: int, deadline: float) -> bytes:
    """Return the next bytes, or those that come until the deadline.

    Raises:
        ConnectionResetError: The other end closes the connection before.
    """
    received = b""
    with contextlib.suppress(TimeoutError):
        while len(received) < num_bytes and (left_s := deadline - time.monotonic()) > 0:
            connection.settimeout(left_s)
            data = connection.recv(num_bytes - len(received))
            if not data:
                raise ConnectionResetError("it closes the connection without an answer")
            received += data
    return received


def _reason(error: OSError | UnicodeError) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)
