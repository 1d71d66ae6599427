"""Thread beside a hub: admits connections with the launch's key, ends others, reports ends.

    connection --> ZeroMQ's thread --(key of the joiner?)--> guard
                                  --(accepted)-----------> guard --> ends the oldest half-open ones
                                  --(disconnected)-------> guard --> `disconnections`

ZeroMQ asks for each connection before it delivers any message. The answer must not wait for a step,
so it comes from a thread.
"""

import logging
import math
import threading
import time
from collections.abc import Sequence
from typing import Any

import zmq
from zmq.utils import z85

from quire.process.launch_key import LaunchKey
from quire.process.network.half_open import HalfOpenConnections
from quire.process.network.secure_socket import ZAP_DOMAIN, monitor, monitored
from quire.process.wake_event import WakeEvent

logger = logging.getLogger(__name__)

ZAP_ADDRESS = "inproc://zeromq.zap.01"  # where ZeroMQ asks (RFC 27)
ZAP_VERSION = b"1.0"
MIN_REPORT_INTERVAL_S = 0.1  # strangers who connect and disconnect cannot wake the engine more
CLOSE_TIMEOUT_S = 5.0  # more than the socket lingers
REPEAT_S = 1.0  # a socket learns of a disconnection a little later than its monitor


class ConnectionGuard:
    """The guard of one listening socket; it must be made before the socket listens.

    Args:
        context: Context of the socket, which `close` terminates.
        socket: The socket.
        key: Key of the launch.
        half_open: Connections of the socket that are not admitted yet.

    Attributes:
        disconnections: Event that is set when a connection has ended, and once more later.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        socket: zmq.Socket[bytes],
        key: LaunchKey,
        half_open: HalfOpenConnections,
    ) -> None:
        self.disconnections = WakeEvent()
        self._end = WakeEvent()
        requests = context.socket(zmq.REP)
        requests.bind(ZAP_ADDRESS)
        self._thread = threading.Thread(
            target=_guard,
            args=(
                context,
                requests,
                monitor(context, socket, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED),
                z85.decode(key.joiner.public),
                half_open,
                self.disconnections,
                self._end,
            ),
            name="quire-connection-guard",
            daemon=True,
        )
        self._thread.start()

    def close(self) -> None:
        """End the thread and terminate the context; the guarded socket must be closed before.

        ZeroMQ may wait for connections that do not end. They must not keep the engine from ending.
        """
        self._end.set()
        if threading.current_thread() is not self._thread:  # garbage may be collected in any thread
            self._thread.join(CLOSE_TIMEOUT_S)
            if self._thread.is_alive():
                logger.warning(
                    "connections of workers did not close within %g s; they end with this process",
                    CLOSE_TIMEOUT_S,
                )
                return
        self._end.close()
        self.disconnections.close()


def _guard(
    context: zmq.Context[Any],
    requests: zmq.Socket[bytes],
    events: zmq.Socket[bytes],
    allowed_key: bytes,
    half_open: HalfOpenConnections,
    disconnections: WakeEvent,
    end: WakeEvent,
) -> None:
    """Answer requests and report events until the end, then terminate the context."""
    poller = zmq.Poller()
    end_fd = end.fileno()
    for source in (requests, events, end_fd):
        poller.register(source, zmq.POLLIN)
    report = ReportTimes()
    while end_fd not in (ready := dict(poller.poll(report.timeout_ms(time.monotonic())))):
        if requests in ready:
            requests.send_multipart(_answer(requests.recv_multipart(), allowed_key))
        if events in ready and _has_ended(events, half_open):
            report.plan(time.monotonic())
        if report.is_due(time.monotonic()):
            disconnections.set()
    requests.close(0)
    events.close(0)
    context.term()


class ReportTimes:
    """Times at which disconnections are reported: soon after one, and once more later."""

    def __init__(self) -> None:
        self._due: list[float] = []
        self._last = -MIN_REPORT_INTERVAL_S

    def plan(self, now: float) -> None:
        """Plan the reports of a disconnection; they replace those planned."""
        self._due = [max(now, self._last + MIN_REPORT_INTERVAL_S), now + REPEAT_S]

    def is_due(self, now: float) -> bool:
        """Whether a report is due, which then counts as made."""
        if not self._due or now < self._due[0]:
            return False
        del self._due[0]
        self._last = now
        return True

    def timeout_ms(self, now: float) -> int | None:
        """Time until the next report; None: none is planned."""
        return max(0, math.ceil((self._due[0] - now) * 1000)) if self._due else None


def _answer(request: Sequence[bytes], allowed_key: bytes) -> Sequence[bytes]:
    """Answer a request of ZeroMQ's authentication protocol (RFC 27)."""
    _, request_id, domain, _, _, mechanism, *credentials = request
    is_allowed = (domain, mechanism, credentials) == (ZAP_DOMAIN, b"CURVE", [allowed_key])
    verdict = (b"200", b"OK", b"joiner") if is_allowed else (b"400", b"unknown key", b"")
    return (ZAP_VERSION, request_id, *verdict, b"")


def _has_ended(events: zmq.Socket[bytes], half_open: HalfOpenConnections) -> bool:
    """Take note of events, and return whether a connection has ended."""
    has_ended = False
    while events.poll(0):
        event, fd = monitored(events)
        if event == zmq.EVENT_ACCEPTED:
            half_open.add(fd)
        else:
            half_open.remove(fd)
            has_ended = True
    return has_ended
