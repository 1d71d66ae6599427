"""The matchers of a grammar process: executes the engine's turns."""

import mmap
import socket
from collections.abc import Mapping

from quire.engine.grammar.grammar_wire import (
    Accept,
    Drop,
    Failure,
    Fill,
    Load,
    Operation,
    Start,
    Turn,
    TurnDone,
    Unload,
    receive,
    send,
)
from quire.errors import QuireError
from quire.interfaces.structured_output import CompiledGrammar, Matcher, StructuredOutputBackend
from quire.process.traceback_text import sendable, traceback_text


class MatcherServer:
    """Serves the matchers of one grammar, or of several.

    Several grammars must not hurt each other. What fails in a shared process is blamed on no
    request there: its grammar is expelled, to be tried again in a process of its own.

    Args:
        backends: Backends that load grammars, by name.
        masks: Table of masks.
        row_bytes: Number of bytes of a mask.
        is_shared: Whether others share this process.
    """

    def __init__(
        self,
        backends: Mapping[str, StructuredOutputBackend],
        masks: mmap.mmap,
        row_bytes: int,
        is_shared: bool,
    ) -> None:
        self._backends = backends
        self._masks = memoryview(masks)
        self._row_bytes = row_bytes
        self._is_shared = is_shared
        self._grammars: dict[int, CompiledGrammar] = {}
        self._matchers: dict[int, Matcher] = {}
        self._grammar_of: dict[int, int] = {}  # matcher -> its grammar
        self._expelled: set[int] = set()  # grammars of which nothing is known until `Unload`

    def add(self, number: int, grammar: CompiledGrammar) -> None:
        """Add a grammar that was compiled here."""
        self._grammars[number] = grammar

    def serve(self, connection: socket.socket) -> None:
        """Execute turns until the engine disconnects."""
        while True:
            send(connection, self.take_turn(receive(connection, Turn)))

    def take_turn(self, turn: Turn) -> TurnDone:
        """Execute operations, and return what failed. Nothing follows a failure of its matcher."""
        done = TurnDone({}, [])
        for operation in turn.operations:
            if isinstance(operation, Load | Unload):
                self._guarded(operation, operation.grammar, done)
            elif operation.matcher not in done.failed:
                self._guarded(operation, self._grammar(operation), done)
        return done

    def _grammar(self, operation: Start | Accept | Fill | Drop) -> int | None:
        """Return the number of an operation's grammar; None: its matcher was never started."""
        if isinstance(operation, Start):
            self._grammar_of[operation.matcher] = operation.grammar
        return self._grammar_of.get(operation.matcher)

    def _guarded(self, operation: Operation, grammar: int | None, done: TurnDone) -> None:
        try:
            if grammar not in self._expelled or isinstance(operation, Unload):
                self._execute(operation, done)
        except Exception as error:
            if not (self._is_shared or isinstance(operation, Load | Unload)):
                done.failed[operation.matcher] = failure_of(error)
            elif grammar is None or isinstance(error, MemoryError):
                raise  # whose fault it is cannot be told: the process ends, and each gets its own
            else:
                self._expelled.add(grammar)
        if grammar in self._expelled and grammar not in done.expelled:
            done.expelled.append(grammar)

    def _execute(self, operation: Operation, done: TurnDone) -> None:
        match operation:
            case Load():
                backend = self._backends[operation.sendable.backend]
                self._grammars[operation.grammar] = backend.load(operation.sendable.packed)
            case Unload():
                self._unload(operation.grammar)
            case Start():
                self._matchers[operation.matcher] = self._grammars[operation.grammar].matcher()
            case Accept():
                self._accept(operation.matcher, operation.token_ids, done)
            case Fill():
                self._fill(operation)
            case Drop():
                self._drop(operation.matcher)

    def _unload(self, grammar: int) -> None:
        for matcher in [each for each, of in self._grammar_of.items() if of == grammar]:
            self._drop(matcher)
        self._grammars.pop(grammar, None)
        self._expelled.discard(grammar)

    def _drop(self, matcher: int) -> None:
        self._matchers.pop(matcher, None)
        self._grammar_of.pop(matcher, None)

    def _accept(self, key: int, token_ids: list[int], done: TurnDone) -> None:
        for token_id in token_ids:
            if not self._matchers[key].accept(token_id):
                done.failed[key] = Failure(f"the grammar does not allow token {token_id} here")
                return

    def _fill(self, fill: Fill) -> None:
        start = fill.row * self._row_bytes
        self._matchers[fill.matcher].fill_bitmask(self._masks[start : start + self._row_bytes])


def failure_of(error: Exception) -> Failure:
    """Return the failure: our own errors are for the client, others for the log, in full."""
    if isinstance(error, MemoryError):
        return Failure("the grammar exceeds the memory limit of one grammar; make it simpler")
    if isinstance(error, QuireError):
        return Failure(sendable(str(error)))
    return Failure(traceback_text(error), is_for_client=False)
