"""Engine-side connection to one grammar process: one message per step in each direction.

A process matches one grammar, which it has compiled itself, or several, which it has loaded.
"""

import contextlib
import signal
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
    LoadGrammar,
    Operation,
    Sendable,
    Spawn,
    SpawnMatcher,
    Turn,
    TurnDone,
    UnloadGrammar,
    receive,
    send,
)
from quire.errors import GrammarError, QuireError
from quire.sampling_params import StructuredOutputsParams

START_TIMEOUT_S = 30.0  # for the fork server to load plugins, on top of the compile timeout
TURN_TIMEOUT_S = 10.0  # for masks to be filled, which usually takes microseconds, and replays
# Alarms of a compilation, and what libraries do if they cannot allocate memory.
LIMIT_SIGNALS = (signal.SIGPROF, signal.SIGALRM, signal.SIGABRT)
SHARED_TURN_TIMEOUT_S = 2.0  # in a process that others share: a backend that hangs stops them too


class LinkLostError(QuireError):
    """A grammar process is gone or does not respond."""

    code = "grammar_process_lost"


class NotStartedError(LinkLostError):
    """The processes of grammars cannot be started: a failure of the server, not of a grammar."""

    code = "grammar_process_not_started"


class CrashedError(LinkLostError):
    """A grammar process ended for another reason than a limit: a failure of the server."""

    code = "grammar_process_crashed"


class BackendFailedError(LinkLostError):
    """A backend raised an unexpected exception; the message is its traceback, for the log."""

    code = "grammar_backend_failed"


class GrammarLink:
    """One grammar process, and the operations of its next turn.

    A turn is one message with operations for the process, and its response.

    Attributes:
        number: Id of the process in the fork server.
        is_compiling: Whether the compile result is still missing.
        is_shared: Whether the process loads grammars that others have compiled.
        deadline: Time by which the compile result must arrive, by `time.monotonic`.
        is_in_turn: Whether a turn was begun and not ended. If so when the next step begins, an
            interrupt stopped it, perhaps within a frame, and the process must be replaced.

    Args:
        timeout_s: CPU time that the process has to compile; None: it compiles nothing.
    """

    def __init__(
        self,
        number: int,
        connection: socket.socket,
        fork_server: GrammarForkServer,
        timeout_s: float | None,
    ) -> None:
        self.number = number
        self.is_compiling = timeout_s is not None
        self.is_shared = not self.is_compiling
        self.is_in_turn = False
        self._timeout_s = timeout_s or 0.0
        self.deadline = time.monotonic() + ELAPSED_PER_CPU * self._timeout_s + START_TIMEOUT_S
        self._connection = connection
        self._fork_server = fork_server
        self._turn_timeout_s = SHARED_TURN_TIMEOUT_S if self.is_shared else TURN_TIMEOUT_S
        self._operations: list[Operation] = []
        self._is_lost = False
        connection.settimeout(self._turn_timeout_s)

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
        command = Spawn(process=number, backends=list(backends), params=params, timeout_s=timeout_s)
        return cls._spawn(fork_server, command, timeout_s)

    @classmethod
    def start_shared(
        cls, fork_server: GrammarForkServer, number: int, backends: Sequence[str]
    ) -> Self:
        """Start a process for grammars that were compiled elsewhere; raises NotStartedError."""
        command = SpawnMatcher(process=number, backends=list(backends))
        return cls._spawn(fork_server, command, None)

    @classmethod
    def _spawn(
        cls, fork_server: GrammarForkServer, command: Spawn | SpawnMatcher, timeout_s: float | None
    ) -> Self:
        try:
            return cls(command.process, fork_server.spawn(command), fork_server, timeout_s)
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

    def receive_compiled(self) -> Compiled:
        """Return the compile result; wait for it until the deadline.

        Raises:
            LinkLostError: The grammar could not be compiled, for the reason in the message.
            CrashedError: The process ended, and not by its limits.
        """
        self._connection.settimeout(max(self.deadline - time.monotonic(), 0.001))
        try:
            compiled = receive(self._connection, Compiled)
        except TimeoutError as error:
            raise self._too_costly() from error
        except (OSError, EOFError, msgspec.DecodeError) as error:
            raise self._lost_compiling() from error
        if (failure := compiled.failure) is not None:
            error_type = LinkLostError if failure.is_for_client else BackendFailedError
            raise error_type(failure.message)
        self.is_compiling = False
        self._connection.settimeout(self._turn_timeout_s)
        return compiled

    def add(self, operation: Operation) -> None:
        """Add an operation to the next turn."""
        self._operations.append(operation)

    def drop(self, matcher: int) -> None:
        """Remove a matcher with the next turn, in place of all other operations on it."""
        self._operations = [
            o
            for o in self._operations
            if isinstance(o, LoadGrammar | UnloadGrammar) or o.matcher != matcher
        ]
        self._operations.append(Drop(matcher))

    def load(self, grammar: int, sendable: Sendable) -> None:
        """Load a compiled grammar with the next turn."""
        self._operations.append(LoadGrammar(grammar, sendable))

    def unload(self, grammar: int) -> None:
        """Remove a grammar with the next turn; one that is not sent yet never is."""
        kept = [
            o for o in self._operations if not isinstance(o, LoadGrammar) or o.grammar != grammar
        ]
        if len(kept) == len(self._operations):
            kept.append(UnloadGrammar(grammar))
        self._operations = kept

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

    def end_turn(self, timeout_s: float | None = None) -> TurnDone:
        """Wait for the response to the turn, by default as long as a turn may usually take.

        Raises:
            LinkLostError: The process does not respond, or has run out of memory.
            CrashedError: The process is gone for another reason.
        """
        if self._is_lost:
            raise self._lost_matching()
        timeout_s = timeout_s or self._turn_timeout_s
        try:
            self._connection.settimeout(timeout_s)
            done = receive(self._connection, TurnDone)
        except TimeoutError as error:
            message = f"a grammar process has not filled its masks within {timeout_s:g} s"
            raise LinkLostError(message) from error
        except (OSError, EOFError, msgspec.DecodeError) as error:
            raise self._lost_matching() from error
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

    def _lost_compiling(self) -> LinkLostError:
        if not self._fork_server.is_alive:
            return NotStartedError(
                "the process that compiles grammars has ended; see its messages in the log"
            )
        status = self._fork_server.exit_status(self.number)
        if status is None or -status in LIMIT_SIGNALS:
            return self._too_costly()
        return CrashedError(f"the process that compiled the grammar has {_written(status)}")

    def _lost_matching(self) -> LinkLostError:
        status = self._fork_server.exit_status(self.number)
        if status is not None and -status in LIMIT_SIGNALS:
            return LinkLostError("a grammar process ran out of memory while it filled masks")
        how = "died" if status is None else _written(status)
        return CrashedError(f"a grammar process has {how} while it filled masks")

    def _too_costly(self) -> LinkLostError:
        return LinkLostError(
            f"the grammar cannot be compiled within {self._timeout_s:g} s of CPU time and the "
            "memory limit of one grammar; make it simpler"
        )


def _written(status: int) -> str:
    """Return an exit status in words; a negative one is that of a signal."""
    if status >= 0:
        return f"exited with status {status}"
    try:
        return f"been ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"been ended by signal {-status}"
