"""Whether the machines of a launch reach each other: each listens on its address, and all dial all.

A listener answers with a number that only the engine's agents know. So an address that several
machines have, as those of container bridges, is not taken for another machine's.
"""

import secrets
import selectors
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from ipaddress import ip_address
from types import TracebackType
from typing import Self

import msgspec

from quire.errors import SettingsError
from quire.machine.network_interfaces import family_of, listening_address

PROBE_TIMEOUT_S = 5.0  # time for all machines to be reached
TOKEN_BYTES = 16
ANOTHER = "another program or machine answered there"


class ProbeTarget(msgspec.Struct, frozen=True, array_like=True):
    """Address at which a machine answers while all machines try to reach each other.

    Attributes:
        host: IP address at which its ranks will listen.
        port: Port of its listener.
        token: Answer of its listener.
    """

    host: str
    port: int
    token: bytes

    def __repr__(self) -> str:
        """Return the address for people, without the token."""
        return f"{type(self).__name__}(host={self.host!r}, port={self.port})"


class ProbeListener:
    """Answers the probes of other machines in a thread, until the end of its `with` block.

    Args:
        host: IP address of this machine at which its ranks will listen.

    Raises:
        SettingsError: It is not an address of this machine, or one of all interfaces.

    Attributes:
        target: Address for the other machines.
    """

    def __init__(self, host: str) -> None:
        address = listening_address(host)
        self._listener = socket.create_server((str(address), 0), family=family_of(address))
        port = self._listener.getsockname()[1]
        self.target = ProbeTarget(str(address), port, secrets.token_bytes(TOKEN_BYTES))
        self._thread = threading.Thread(target=self._serve, name="reachability", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Listen no longer. May be called twice."""
        with suppress(OSError):  # closed before
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except ConnectionError:
                continue  # the other end has gone already
            except OSError:
                return  # closed
            with connection, suppress(OSError):
                connection.setblocking(False)  # so few bytes always fit
                connection.send(self.target.token)


def probe(targets: Sequence[ProbeTarget], timeout_s: float) -> list[str | None]:
    """Try to reach all targets at the same time.

    Returns:
        For each target the reason why it cannot be reached, or None.
    """
    deadline = time.monotonic() + timeout_s
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        dials = [stack.enter_context(_Dial(target)) for target in targets]
        for dial in dials:
            if dial.begin():
                selector.register(dial.socket, selectors.EVENT_READ, dial)
        while selector.get_map() and (left_s := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left_s):
                if not key.data.receive():
                    selector.unregister(key.fileobj)
    return [f"no answer within {timeout_s:g} s" if dial.is_open else dial.reason for dial in dials]


def check_reachability(
    names: Sequence[str], targets: Sequence[ProbeTarget], reasons: Sequence[Sequence[str | None]]
) -> None:
    """Check that all machines reach each other.

    Args:
        names: Names of the ranks of each machine, for people: "rank 8 on nodeB".
        targets: Target of each machine.
        reasons: For each machine, the reasons why it cannot reach the targets, or None.

    Raises:
        SettingsError: Some cannot be reached; the message has a line for each and reason.
    """
    lines = [
        _failure(name, target, reason, sources)
        for place, (name, target) in enumerate(zip(names, targets, strict=True))
        for reason, sources in _sources(names, [found[place] for found in reasons]).items()
    ]
    if lines:
        raise SettingsError("\n".join(["the machines cannot all reach each other:", *lines]))


class _Dial:
    """Attempt to reach one target; the end of its `with` block closes its connection.

    Attributes:
        is_open: Whether the result is not known yet.
        reason: Reason why it cannot be reached; None: it was reached, or the result is not known.
    """

    def __init__(self, target: ProbeTarget) -> None:
        self.is_open = True
        self.reason: str | None = None
        self.socket = socket.socket(family_of(ip_address(target.host)), socket.SOCK_STREAM)
        self.socket.setblocking(False)
        self._target = target
        self._received = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def begin(self) -> bool:
        """Begin to connect; return whether the result is not known yet."""
        try:
            self.socket.connect((self._target.host, self._target.port))
        except BlockingIOError:
            pass
        except OSError as error:
            self._end(error.strerror or str(error))
        return self.is_open

    def receive(self) -> bool:
        """Take what has arrived; return whether the result is not known yet."""
        try:
            part = self.socket.recv(TOKEN_BYTES - len(self._received))
        except OSError as error:
            self._end(error.strerror or str(error))
            return False
        self._received += part
        if not part or len(self._received) == TOKEN_BYTES:
            self._end(None if self._received == self._target.token else ANOTHER)
        return self.is_open

    def _end(self, reason: str | None) -> None:
        self.is_open, self.reason = False, reason


def _sources(names: Sequence[str], reasons: Sequence[str | None]) -> dict[str, list[str]]:
    """Return the machines that cannot reach one target, by the reason."""
    sources = defaultdict(list)
    for name, reason in zip(names, reasons, strict=True):
        if reason is not None:
            sources[reason].append(name)
    return sources


def _failure(name: str, target: ProbeTarget, reason: str, sources: Sequence[str]) -> str:
    kind = ", a loopback address," if ip_address(target.host).is_loopback else ""
    return (
        f"{target.host}{kind} of {name} cannot be reached from {', '.join(sources)}: {reason}; "
        "start its agent with --host-ip and the address of the interface that connects the "
        "machines, where a firewall must let them connect to any port"
    )
