"""Engine-side connection to one grammar process: one message per step in each direction."""

import contextlib
import socket
import time
from collections.abc import Sequence
from typing import Self

import msgspec

from quire.engine.grammar.fork_server_client import GrammarForkServer
from quire.engine.grammar.grammar_wire import (
    ELAPSED_PER_CPU,
    Compiled,
    Drop,
    Fill,
    Operation,
    Spawn,
    Turn,
    TurnDone,
    receive,
    send,
)
from quire.errors import GrammarError, QuireError
from quire.sampling_params import StructuredOutputsParams

START_TIMEOUT_S = 30.0  # for the fork server to load plugins, on top of the compile timeout
TURN_TIMEOUT_S = 10.0  # for masks to be filled, which usually takes microseconds


class LinkLostError(QuireError):
    """A grammar process is gone or does not respond."""

    code = "grammar_process_lost"


class NotStartedError(LinkLostError):
    """The processes of grammars cannot be started: a failure of the server, not of a grammar."""

    code = "grammar_process_not_started"


class BackendFailedError(LinkLostError):
    """A backend raised an unexpected exception; the message is its traceback, for the log."""

    code = "grammar_backend_failed"


class GrammarLink:
    """One grammar, its process, and the operations of its next turn.

    A turn is one message with operations for the process, and its response.

    Attributes:
        number: Id of the grammar in the fork server.
        is_compiling: Whether the compile result is still missing.
        started_s: Time at which it was started, by `time.monotonic`.
        deadline: Time by which it must arrive, by the same clock.
        num_users: Number of requests that use the grammar.
        num_bytes: Number of bytes that the compiled grammar takes.
        is_in_turn: Whether a turn was begun and not ended. If so when the next step begins, an
            interrupt stopped it, perhaps within a frame, and the process must be replaced.
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
        self.started_s = time.monotonic()
        self.deadline = self.started_s + ELAPSED_PER_CPU * timeout_s + START_TIMEOUT_S
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
        backends: Sequence[str],
        params: StructuredOutputsParams,
        timeout_s: float,
    ) -> Self:
        """Start a process that compiles a grammar, without waiting for it.

        Raises:
            LinkLostError: The grammar is too large to be sent.
            NotStartedError: The process cannot be started.
        """
        command = Spawn(grammar=number, backends=list(backends), params=params, timeout_s=timeout_s)
        try:
            return cls(number, fork_server.spawn(command), fork_server, timeout_s)
        except GrammarError as error:
            raise LinkLostError(str(error)) from error
        except OSError as error:
            raise NotStartedError(f"no grammar process can be started: {error}") from error

    @property
    def is_overdue(self) -> bool:
        """Whether the grammar is still compiling after its deadline."""
        return self.is_compiling and time.monotonic() >= self.deadline

    def fileno(self) -> int:
        """Return the file descriptor that becomes readable when the process sends a message."""
        return self._connection.fileno()

    def compile_error(self) -> LinkLostError | None:
        """Receive the compile result: None if the grammar is ready, else the error."""
        try:
            self.wait_until_compiled(0.0 if self.is_overdue else TURN_TIMEOUT_S)
        except LinkLostError as error:
            return error
        return None

    def wait_until_compiled(self, timeout_s: float | None = None) -> None:
        """Block until the grammar is ready.

        Raises:
            LinkLostError: The grammar could not be compiled, for the reason in the message.
        """
        wait_s = max(0.0, self.deadline - time.monotonic()) if timeout_s is None else timeout_s
        self._connection.settimeout(max(wait_s, 0.001))
        try:
            compiled = receive(self._connection, Compiled)
        except (OSError, EOFError, msgspec.DecodeError) as error:
            raise self._lost() from error
        if (failure := compiled.failure) is not None:
            error_type = LinkLostError if failure.is_for_client else BackendFailedError
            raise error_type(failure.message)
        self.is_compiling = False
        self.num_bytes = compiled.num_bytes
        self._connection.settimeout(TURN_TIMEOUT_S)

    def add(self, operation: Operation) -> None:
        """Add an operation to the next turn."""
        self._operations.append(operation)

    def drop(self, matcher: int) -> None:
        """Remove a matcher with the next turn, in place of all other operations on it."""
        self._operations = [o for o in self._operations if o.matcher != matcher]
        self._operations.append(Drop(matcher))

    def begin_turn(self, fills: list[Fill]) -> None:
        """Send the added operations, then the fills. A lost process is reported by `end_turn`.

        Fills belong to one step only, so they are never kept for the next turn.
        """
        self.is_in_turn = True
        operations, self._operations = self._operations, []
        try:
            send(self._connection, Turn([*operations, *fills]))
        except (OSError, GrammarError):
            self._is_lost = True

    def end_turn(self) -> TurnDone:
        """Wait for the response to the turn.

        Raises:
            LinkLostError: The process is gone or does not respond.
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
        """Close the sending side and wait for the process to end: it may still write a mask."""
        # After any error there is nothing to wait for: the process is gone or cannot be killed.
        with contextlib.suppress(OSError):
            self._connection.settimeout(TURN_TIMEOUT_S)
            self._connection.shutdown(socket.SHUT_WR)
            while self._connection.recv(4096):
                pass

    def close(self) -> None:
        """Close the connection, on which the process ends by itself."""
        self._connection.close()

    def _lost(self) -> LinkLostError:
        if not self._fork_server.is_alive:
            return NotStartedError(
                "the process that compiles grammars has ended; see its messages in the log"
            )
        return LinkLostError(
            f"the grammar cannot be compiled within {self._timeout_s:g} s of CPU time and the "
            "memory limit of one grammar; make it simpler"
        )
