"""Client of an engine in another process, with the same methods as `EngineCore`.

That process runs steps as long as it has work and sends one message per step; `step` returns the
next one. The engine does not wait for the client between two steps.
"""

import contextlib
import logging
import sys
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, NoReturn, Self

from quire.engine.results import failed_output, outcome_of, report_of
from quire.errors import EngineDeadError, InvalidRequestError, QuireError
from quire.launch.engine_process.engine_link import EngineLink
from quire.launch.engine_process.engine_start import EngineStart
from quire.launch.engine_process.engine_wire import (
    REPLY_TYPES,
    Abort,
    Add,
    Call,
    Command,
    EncodedRequest,
    ReadStats,
    Reply,
    Shutdown,
    Stepped,
)
from quire.messages import (
    EngineOutput,
    EngineOutputs,
    EngineRequest,
    EngineStats,
    Started,
)
from quire.process.ipc import decode
from quire.process.local.channel import Channel

STOP_TIMEOUT_S = 10.0  # time for the running step to complete, before the process is killed
NEVER = sys.maxsize

logger = logging.getLogger(__name__)


class RemoteCore:
    """An `EngineCore` in a separate process.

    It is used by one thread, except `wake` and `kill`, which any thread may call. In a fork of the
    process that started it, its methods raise `EngineDeadError`.

    Args:
        link: Connection to the process, whose engine is ready for requests.

    Attributes:
        num_received: Number of messages that the process has sent, as far as they were taken.
    """

    def __init__(self, link: EngineLink) -> None:
        self._link = link
        self.num_received = 0
        self._open: dict[str, int] = {}  # unfinished requests: number of the command that added it
        self._unsent: list[EncodedRequest] = []
        self._inbox: deque[Stepped] = deque()
        self._stats = EngineStats()
        self._calls: dict[int, Command] = {}  # whose results were not returned
        self._replies: dict[int, Reply] = {}

    @classmethod
    def of(cls, start: EngineStart) -> tuple[Self, Started]:
        """Wait until the engine of a process is ready for requests.

        Raises:
            QuireError: The engine cannot start, or it chose other parts than this process.
            EngineDeadError: The process ended.
        """
        started = start.wait()
        return cls(start.link), started

    @property
    def pid(self) -> int:
        """Process id of the engine."""
        return self._link.pid

    @property
    def channel(self) -> Channel:
        """Channel to the engine, on which another caller may wait."""
        return self._link.channel

    def add(self, request: EngineRequest) -> None:
        """Queue a request; queued requests are sent together before the next other command.

        Raises:
            InvalidRequestError: A request with this id is not finished yet.
            EngineDeadError: This process is a fork of the one that started the engine.
        """
        self._link.check_owner()
        request_id = request.request_id
        if request_id in self._open:
            raise InvalidRequestError(f"request id {request_id!r} is in use")
        self._open[request_id] = self._link.num_sent + 1
        try:
            self._unsent.append(EncodedRequest.of(request))
        except InvalidRequestError as error:
            self._refuse(request_id, error)

    def flush(self) -> None:
        """Send the queued requests.

        Raises:
            EngineDeadError: The engine is dead.
        """
        self._link.check_owner()
        if self._unsent:
            unsent, self._unsent = self._unsent, []
            self._link.send(Add(unsent))

    def abort(self, request_ids: Sequence[str]) -> None:
        """Abort requests; unknown ids are ignored."""
        gone = [request_id for request_id in request_ids if request_id in self._open]
        with contextlib.suppress(EngineDeadError):  # then there is nothing left to abort
            if gone:
                self.flush()
                self._link.send(Abort(gone))
        for request_id in gone:
            self._open.pop(request_id, None)

    def has_work(self) -> bool:
        """Whether a step would have outputs."""
        return bool(self._open or self._inbox)

    def step(self) -> EngineOutputs | None:
        """Wait for the next step to complete, and return its outputs.

        Returns:
            The outputs, or None if `wake` was called first.

        Raises:
            EngineDeadError: The engine is dead.
        """
        self.flush()
        if not self.has_work():
            return EngineOutputs([], self._stats)
        while not self._inbox:
            if (message := self._link.receive(can_wake=True)) is None:
                return None
            self._take(message)
        return self._next_step()

    def poll_step(self) -> EngineOutputs | None:
        """Return the outputs of the next step if it is complete, else None; never waits.

        Raises:
            EngineDeadError: The engine is dead, and all its steps were returned.
        """
        self.flush()
        while not self._inbox and (message := self._link.poll()) is not None:
            self._take(message)
        return self._next_step() if self._inbox else None

    def wake(self) -> None:
        """Make a waiting `step` return; from any thread."""
        self._link.wake()

    def kill(self) -> bool:
        """Kill the process, so that no method waits any longer; from any thread.

        Returns:
            Whether it can be: it belongs to this process.
        """
        return self._link.kill()

    def control(self, command: Command) -> Any:
        """Execute a command in the engine between two steps; return its result or raise its error.

        Raises:
            EngineDeadError: The engine is dead.
        """
        return self.result(self.call(command))

    def begin_control(self, command: Command) -> Future[Any]:
        """Execute a command; return its result or error, which are there already."""
        return outcome_of(lambda: self.control(command))

    def call(self, command: Command) -> int:
        """Send a command, which the engine executes between two steps; return the call's id.

        Raises:
            EngineDeadError: The engine is dead.
        """
        self.flush()
        call_id = self._link.num_sent + 1
        self._link.send(Call(call_id, command))
        self._calls[call_id] = command
        return call_id

    def has_open_calls(self) -> bool:
        """Whether the result of a call has not arrived yet."""
        return len(self._calls) > len(self._replies)

    def has_result(self, call_id: int) -> bool:
        """Whether `result` would not wait."""
        return call_id in self._replies

    def result(self, call_id: int) -> Any:
        """Wait for the result of a call, and return or raise it.

        Raises:
            EngineDeadError: The engine is dead.
        """
        try:
            while call_id not in self._replies:
                self._take(self._link.receive())
            return _value(self._replies[call_id], self._calls[call_id])
        finally:
            del self._calls[call_id]
            self._replies.pop(call_id, None)

    def stats(self) -> EngineStats:
        """Return the current statistics of the engine.

        Raises:
            EngineDeadError: The engine is dead.
        """
        stats: EngineStats = self.control(ReadStats())
        return stats

    def check_health(self) -> None:
        """Check that the engine is alive, and take what it has sent while nothing was waited for.

        Raises:
            EngineDeadError: The engine is dead.
        """
        while (message := self._link.poll()) is not None:
            self._take(message)

    def end(self, reason: str) -> NoReturn:
        """End the process now, and raise the reason, as later calls do.

        Raises:
            EngineDeadError: Always.
        """
        self._link.die(EngineDeadError(reason))

    def begin_shutdown(self) -> None:
        """Request the process to end after the running step."""
        with contextlib.suppress(EngineDeadError):  # it is dead already
            self._link.send(Shutdown())

    def shutdown(self) -> None:
        """End the process after the running step, or after a timeout. May be called twice."""
        self.begin_shutdown()
        self._link.close(EngineDeadError("the engine was shut down"), STOP_TIMEOUT_S)

    def _next_step(self) -> EngineOutputs:
        stepped = self._inbox.popleft()
        step = stepped.outputs
        self._stats = step.stats
        expected = self._expected(stepped)
        return EngineOutputs(expected, self._stats, step.kv_events, step.steps, step.load)

    def _refuse(self, request_id: str, error: QuireError) -> None:
        """Fail a request with the next step, without sending it to the engine."""
        output = failed_output(request_id, report_of(error))
        num_taken = self._open[request_id]
        self._inbox.append(Stepped(EngineOutputs([output], self._stats), num_taken))

    def _take(self, message: Any) -> None:
        self.num_received += 1
        match message:
            case Stepped():
                self._inbox.append(message)
            case Reply() if message.call_id in self._calls:
                self._replies[message.call_id] = message
            case Reply():  # its caller was interrupted
                logger.debug("ignoring the reply to call %d: its caller is gone", message.call_id)
            case _:
                self._link.die(EngineDeadError(f"the engine sent {message!r} unexpectedly"))

    def _expected(self, stepped: Stepped) -> list[EngineOutput]:
        """Drop outputs of aborted requests, and forget requests that are finished."""
        num_taken, added_by = stepped.num_taken, self._open
        expected = []
        for output in stepped.outputs.outputs:
            if added_by.get(output.request_id, NEVER) <= num_taken:
                expected.append(output)
                if output.finish_reason is not None:
                    del added_by[output.request_id]
        return expected


def _value(reply: Reply, command: Command) -> Any:
    """Return the result of a call, or raise its error."""
    if reply.error is not None:
        raise reply.error.error()
    return decode(reply.value, REPLY_TYPES[type(command)])
