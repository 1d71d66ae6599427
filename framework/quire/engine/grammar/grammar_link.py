"""The engine's end of one grammar process: one message a step in each direction."""

import contextlib
import socket
import time
from typing import Self

import msgspec

from quire.engine.grammar.fork_server import GrammarForkServer
from quire.engine.grammar.grammar_wire import (
    Compiled,
    Fill,
    Operation,
    Sprout,
    Turn,
    TurnDone,
    receive,
    send,
)
from quire.errors import GrammarError, QuireError
from quire.sampling_params import StructuredOutputsParams

START_TIMEOUT_S = 30.0  # for the nursery to load its plugins, on top of the compile timeout
TURN_TIMEOUT_S = 10.0  # for masks to be filled; usual are microseconds


class LinkLostError(QuireError):
    """A grammar process is gone, or does not answer."""

    code = "grammar_process_lost"


class BackendFailedError(LinkLostError):
    """A backend raised what it should not have; the message is its traceback, for the log."""

    code = "grammar_backend_failed"


class GrammarLink:
    """One grammar, its process, and what is to be told to it in the next turn.

    Attributes:
        number: What the nursery calls it.
        is_compiling: Whether it has not said yet what became of its grammar.
        deadline: When, by `time.monotonic`, it must have.
        num_users: Requests that follow the grammar.
        num_bytes: Memory that the grammar takes, once it is compiled.
        is_in_turn: Whether a turn was begun and not ended. If that is so when the next step begins,
            an interrupt broke it off, perhaps within a frame: the process is of no use any more.
    """

    def __init__(
        self,
        number: int,
        connection: socket.socket,
        fork_server: GrammarForkServer,
        timeout_s: float,
    ) -> None:
        self.number = number
        self.is_compiling = True
        self.num_users = 0
        self.num_bytes = 0
        self.is_in_turn = False
        self.deadline = time.monotonic() + timeout_s + START_TIMEOUT_S
        self._connection = connection
        self._fork_server = fork_server
        self._timeout_s = timeout_s
        self._operations: list[Operation] = []
        self._is_lost = False

    @classmethod
    def start(
        cls,
        fork_server: GrammarForkServer,
        number: int,
        backend: str,
        params: StructuredOutputsParams,
        timeout_s: float,
    ) -> Self:
        """Start a process that compiles a grammar; does not wait for it.

        Raises:
            LinkLostError: It cannot be started.
        """
        order = Sprout(grammar=number, backend=backend, params=params, timeout_s=timeout_s)
        try:
            return cls(number, fork_server.sprout(order), fork_server, timeout_s)
        except GrammarError as error:
            raise LinkLostError(str(error)) from error
        except OSError as error:
            raise LinkLostError(f"no grammar process can be started: {error}") from error

    @property
    def is_late(self) -> bool:
        """Whether it still compiles after its time."""
        return self.is_compiling and time.monotonic() >= self.deadline

    def fileno(self) -> int:
        """File descriptor that becomes readable when it has something to say."""
        return self._connection.fileno()

    def compile_error(self) -> LinkLostError | None:
        """Take its first word: None if the grammar is ready, else why it is not."""
        try:
            self.wait_until_compiled(0.0 if self.is_late else TURN_TIMEOUT_S)
        except LinkLostError as error:
            return error
        return None

    def wait_until_compiled(self, timeout_s: float | None = None) -> None:
        """Block until its grammar is ready.

        Raises:
            LinkLostError: It has none; the message says why.
        """
        wait_s = max(0.0, self.deadline - time.monotonic()) if timeout_s is None else timeout_s
        self._connection.settimeout(max(wait_s, 0.001))
        try:
            compiled = receive(self._connection, Compiled)
        except (OSError, EOFError, msgspec.DecodeError) as error:
            raise LinkLostError(self._why_lost()) from error
        if (failure := compiled.failure) is not None:
            kind = LinkLostError if failure.is_for_client else BackendFailedError
            raise kind(failure.message)
        self.is_compiling = False
        self.num_bytes = compiled.num_bytes
        self._connection.settimeout(TURN_TIMEOUT_S)

    def add(self, operation: Operation) -> None:
        """Put an operation into the next turn."""
        self._operations.append(operation)

    def forget(self, matcher: int, drop: Operation) -> None:
        """Leave out what the next turn holds for a matcher, and drop it instead."""
        self._operations = [o for o in self._operations if o.matcher != matcher]
        self._operations.append(drop)

    def begin_turn(self, fills: list[Fill]) -> None:
        """Send all that was added, then what to fill. A process that is gone shows in `end_turn`.

        Fills are of one step only: what waits for the next turn never holds any.
        """
        self.is_in_turn = True
        operations, self._operations = self._operations, []
        try:
            send(self._connection, Turn([*operations, *fills]))
        except (OSError, GrammarError):
            self._is_lost = True

    def end_turn(self) -> TurnDone:
        """Wait until the turn is done.

        Raises:
            LinkLostError: The process is gone or does not answer.
        """
        if self._is_lost:
            raise LinkLostError("a grammar process died")
        try:
            done = receive(self._connection, TurnDone)
        except (OSError, EOFError, msgspec.DecodeError) as error:
            raise LinkLostError(f"a grammar process died while it filled masks: {error}") from error
        self.is_in_turn = False
        return done

    def wait_until_gone(self) -> None:
        """Hang up and wait for the process to end: before that it may still write a mask."""
        # Any error means that there is nothing left to wait for: it is gone, or cannot be killed.
        with contextlib.suppress(OSError):
            self._connection.settimeout(TURN_TIMEOUT_S)
            self._connection.shutdown(socket.SHUT_WR)
            while self._connection.recv(4096):
                pass

    def close(self) -> None:
        """Hang up; the process ends by itself if it can."""
        self._connection.close()

    def _why_lost(self) -> str:
        if not self._fork_server.is_alive:
            return "the process that compiles grammars has ended; its own messages are in the log"
        return (
            f"the grammar cannot be compiled within {self._timeout_s:g} s and the memory that one "
            "grammar may have; make it simpler"
        )
