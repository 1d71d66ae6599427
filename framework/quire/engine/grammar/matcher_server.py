"""The matchers of a grammar process: executes the engine's turns."""

import math
import mmap
import socket
import time
from collections.abc import Mapping
from typing import Final

from quire.engine.grammar.grammar_wire import (
    RUNNING,
    Accept,
    Drop,
    Failure,
    Fill,
    LoadGrammar,
    Operation,
    Start,
    Turn,
    TurnDone,
    UnloadGrammar,
    receive,
    send,
)
from quire.errors import GrammarError, QuireError
from quire.interfaces.structured_output import CompiledGrammar, Matcher, StructuredOutputBackend
from quire.process.traceback_text import sendable, traceback_text

SLOW_S = 0.02  # CPU time of a token or mask beyond which it is slow; usual is 0.0001
MAX_EXCESS_S = 0.5  # that the matchers of a grammar may take beyond it: whole steps wait for them
WORD: Final = "i"  # int32, as a view of a mask
EXCESS_HALF_LIFE_S = 10.0  # time in which half of that is forgotten


class TooSlowError(GrammarError):
    """A grammar has kept the requests of other grammars waiting for too long."""


class MatcherServer:
    """Serves the matchers of one grammar, or of several.

    A failure ends one matcher. There are two exceptions: a grammar that is slow for too long fails
    with all its matchers, and a shared process ends when its memory is exhausted.

    Args:
        backends: Backends that load grammars, by name.
        masks: Table of masks, and the number of the grammar that a shared process executes.
        row_bytes: Number of bytes of a mask.
        is_shared: Whether several grammars share this process.
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
        self._excess_s: dict[int, float] = {}  # of slow grammars
        self._decayed_s = time.monotonic()

    def add(self, number: int, grammar: CompiledGrammar) -> None:
        """Add a grammar that was compiled here."""
        self._grammars[number] = grammar

    def serve(self, connection: socket.socket) -> None:
        """Execute turns until the engine disconnects."""
        while True:
            send(connection, self.take_turn(receive(connection, Turn)))

    def take_turn(self, turn: Turn) -> TurnDone:
        """Execute operations, and return what failed. Nothing follows a failure of its matcher."""
        done = TurnDone({})
        self._decay_excess()
        for operation in turn.operations:
            self._write_running(self._grammar_number(operation))
            match operation:
                case LoadGrammar():
                    self._load(operation)
                case UnloadGrammar():
                    self._unload(operation.grammar)
                case Drop():
                    self._drop(operation.matcher)
                case _ if operation.matcher not in done.failed:
                    self._guarded(operation, done)
        self._write_running(0)
        return done

    def _grammar_number(self, operation: Operation) -> int:
        if isinstance(operation, LoadGrammar | UnloadGrammar | Start):
            return operation.grammar
        return self._grammar_of.get(operation.matcher, 0)

    def _write_running(self, grammar: int) -> None:
        """Write which grammar is at work: the engine reads it if this process ends or hangs."""
        if self._is_shared:
            RUNNING.pack_into(self._masks, len(self._masks) - RUNNING.size, grammar)

    def _load(self, operation: LoadGrammar) -> None:
        """Load a grammar; if that fails, its matchers do when they start."""
        backend = self._backends[operation.sendable.backend]
        try:
            self._grammars[operation.grammar] = backend.load(operation.sendable.packed)
        except Exception as error:  # noqa: BLE001 - the edge of a plugin: it ends its requests
            self._end_without_memory(error)
            self._grammars[operation.grammar] = _NotLoaded(error)

    def _unload(self, grammar: int) -> None:
        for matcher in [each for each, of in self._grammar_of.items() if of == grammar]:
            self._drop(matcher)
        self._grammars.pop(grammar, None)
        self._excess_s.pop(grammar, None)

    def _drop(self, matcher: int) -> None:
        self._matchers.pop(matcher, None)
        self._grammar_of.pop(matcher, None)

    def _guarded(self, operation: Start | Accept | Fill, done: TurnDone) -> None:
        if isinstance(operation, Start):
            self._grammar_of[operation.matcher] = operation.grammar
        try:
            grammar = self._grammar_of[operation.matcher]
            self._check_excess(grammar)
            started_s = time.thread_time()
            self._execute(operation, done)
            self._count_excess(grammar, operation, time.thread_time() - started_s)
            self._check_excess(grammar)
        except Exception as error:  # noqa: BLE001 - the edge of a plugin: it ends one request
            self._end_without_memory(error)
            done.failed[operation.matcher] = failure_of(error)

    def _end_without_memory(self, error: Exception) -> None:
        if self._is_shared and isinstance(error, MemoryError):
            raise error

    def _count_excess(self, grammar: int, operation: Start | Accept | Fill, cpu_s: float) -> None:
        """Count the time by which an operation was slow."""
        match operation:
            case Accept(token_ids=token_ids):
                num_tokens = len(token_ids)
            case Fill(draft_token_ids=token_ids):
                num_tokens = 1 + len(token_ids)
            case _:
                num_tokens = 1
        if (excess_s := cpu_s - num_tokens * SLOW_S) > 0:
            self._excess_s[grammar] = self._excess_s.get(grammar, 0.0) + excess_s

    def _check_excess(self, grammar: int) -> None:
        if self._excess_s.get(grammar, 0.0) > MAX_EXCESS_S:
            raise TooSlowError(
                "the grammar takes too long to follow for the completions of its requests; make it "
                "less ambiguous"
            )

    def _decay_excess(self) -> None:
        now = time.monotonic()
        kept = math.exp2((self._decayed_s - now) / EXCESS_HALF_LIFE_S)
        self._decayed_s = now
        for grammar in self._excess_s:
            self._excess_s[grammar] *= kept

    def _execute(self, operation: Start | Accept | Fill, done: TurnDone) -> None:
        match operation:
            case Start():
                self._matchers[operation.matcher] = self._grammars[operation.grammar].matcher()
            case Accept():
                self._accept(operation.matcher, operation.token_ids, done)
            case Fill():
                self._fill(operation)

    def _accept(self, key: int, token_ids: list[int], done: TurnDone) -> None:
        for token_id in token_ids:
            if not self._matchers[key].accept(token_id):
                done.failed[key] = Failure(f"the grammar does not allow token {token_id} here")
                return

    def _fill(self, fill: Fill) -> None:
        matcher = self._matchers[fill.matcher]
        matcher.fill_bitmask(self._row(fill.row).cast(WORD))
        num_accepted = 0
        for token_id in fill.draft_token_ids:
            if not matcher.accept(token_id):
                break
            num_accepted += 1
            matcher.fill_bitmask(self._row(fill.row + num_accepted).cast(WORD))
        for index in range(num_accepted, len(fill.draft_token_ids)):
            self._row(fill.row + index + 1)[:] = bytes(self._row_bytes)
        if num_accepted:
            matcher.rollback(num_accepted)

    def _row(self, index: int) -> memoryview:
        return self._masks[index * self._row_bytes : (index + 1) * self._row_bytes]


class _NotLoaded(CompiledGrammar):
    """A grammar that could not be loaded: its matchers fail with the error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def matcher(self) -> Matcher:
        raise self._error


def failure_of(error: Exception) -> Failure:
    """Return the failure: our own errors are for the client, others for the log, in full."""
    if isinstance(error, MemoryError):
        return Failure("the grammar exceeds the memory limit of one grammar; make it simpler")
    if isinstance(error, QuireError):
        return Failure(sendable(str(error)), is_slow=isinstance(error, TooSlowError))
    return Failure(traceback_text(error), is_for_client=False)
