"""Grammars never run in the engine: its host sends tokens to grammar processes and reads masks.

A request's life here: `submit`, then `poll` until its grammar is ready (the scheduler lets it wait
and runs others), then in each step `accept` what was drawn and ask for a mask, and `release`.
Nothing here blocks for longer than masks take to fill, but for one case: a grammar process that
dies is replaced while a step waits for it, and gets the tokens again that the host has kept.

A hostile grammar can hurt nobody else. It compiles in a process of its own, under limits of time
and memory that the kernel keeps; see `grammar_process`.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from quire.config import PluginSettings
from quire.engine.grammar.fork_server import GrammarForkServer
from quire.engine.grammar.grammar_link import BackendFailedError, LinkLostError
from quire.engine.grammar.grammar_pool import GrammarLimits, GrammarPool
from quire.engine.grammar.grammar_wire import (
    Accept,
    Drop,
    Failure,
    Fill,
    Rollback,
    Setup,
    Start,
    TurnDone,
    VocabularyMessage,
)
from quire.engine.grammar.shared_masks import SharedMasks
from quire.errors import GrammarError, RequestError, RequestFailedError
from quire.interfaces.structured_output import Vocabulary
from quire.messages import RowBitmask
from quire.sampling_params import StructuredOutputsParams

logger = logging.getLogger(__name__)

MAX_PARAMS_BYTES = 4 * 2**20  # of one grammar, as a message

Outcome = tuple[str, RequestError | None]


@dataclass(slots=True, eq=False)
class _Request:
    """What the host keeps of a request, so that its matcher can be made again."""

    request_id: str
    matcher: int
    key: bytes
    params: StructuredOutputsParams
    is_active: bool
    token_ids: list[int] = field(default_factory=list)
    is_finished: bool = False
    error: RequestError | None = None

    @property
    def follows_grammar(self) -> bool:
        """Whether its tokens and masks concern the grammar."""
        return self.is_active and self.error is None


class GrammarHost:
    """The grammars of one engine. Used from one thread; starts nothing before the first `submit`.

    Args:
        load_vocabulary: Called once, with the first grammar.
        backend: Name of the backend for requests that name none.
        plugins: Which plugins the grammar processes load: the engine's own settings.
        max_rows: Masks in one step, at most.
        limits: What grammars may take.
    """

    def __init__(
        self,
        load_vocabulary: Callable[[], Vocabulary],
        *,
        backend: str = "outlines",
        plugins: PluginSettings | None = None,
        max_rows: int = 64,
        limits: GrammarLimits | None = None,
    ) -> None:
        self._load_vocabulary = load_vocabulary
        self._backend = backend
        self._plugins = plugins or PluginSettings()
        self._max_rows = max_rows
        self._limits = limits or GrammarLimits()
        self._started: tuple[GrammarPool, SharedMasks] | None = None
        self._requests: dict[str, _Request] = {}
        self._queue: deque[_Request] = deque()
        self._outcomes: list[Outcome] = []
        self._rows: list[tuple[int, _Request]] = []
        self._num_submitted = 0

    # --- a request comes and goes ------------------------------------------------------------

    def submit(
        self, request_id: str, params: StructuredOutputsParams, *, is_active: bool = True
    ) -> None:
        """Begin to compile a request's grammar; `poll` says when it is ready.

        Args:
            request_id: The engine's own id.
            params: The grammar, already checked by its backend's `check`.
            is_active: False lets the request think first: no masks before `activate`.
        """
        self._num_submitted += 1
        request = _Request(request_id, self._num_submitted, b"", params, is_active)
        try:
            request.key = _message(params)
            self._queue.append(request)
        except (RecursionError, OverflowError, UnicodeEncodeError, GrammarError) as error:
            reason = f"the grammar cannot be sent to its process: {error}"
            self._fail(request, GrammarError(reason))
        self._requests[request_id] = request
        self._start_queued()

    def activate(self, request_id: str) -> None:
        """Let the grammar begin with the next token."""
        self._requests[request_id].is_active = True

    def poll(self) -> list[Outcome]:
        """Return whose grammar became ready (None) or failed since the last call; never blocks.

        To be called in each step after `collect_masks`: a request whose grammar fails while it runs
        has to end with that error, whatever was drawn for it.
        """
        if self._started is not None:
            for key in self._pool.settled(0):
                self._settle(key)
            self._start_queued()
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def wait_for_compile(self, timeout_s: float) -> bool:
        """Block until `poll` may have something to say, or the time is up; for an idle engine.

        Returns:
            Whether there is something to poll for; False at once if nothing is being compiled.
        """
        if self._outcomes or self._started is None:
            return bool(self._outcomes)
        return bool(self._pool.settled(timeout_s))

    def accept(self, request_id: str, token_ids: Sequence[int]) -> None:
        """Tell the grammar which tokens were drawn; a refusal shows in `poll` after the masks."""
        request = self._requests[request_id]
        if request.follows_grammar:
            request.token_ids.extend(token_ids)
            self._pool[request.key].add(Accept(request.matcher, list(token_ids)))

    def rollback(self, request_id: str, num_tokens: int) -> None:
        """Take back the last accepted tokens."""
        request = self._requests[request_id]
        if request.follows_grammar and num_tokens > 0:
            del request.token_ids[-num_tokens:]
            self._pool[request.key].add(Rollback(request.matcher, num_tokens))

    def is_finished(self, request_id: str) -> bool:
        """Whether, when its last mask was filled, only the end of the answer could follow."""
        return self._requests[request_id].is_finished

    def release(self, request_id: str) -> None:
        """Forget a request; one that is unknown or gone is no error."""
        request = self._requests.pop(request_id, None)
        if request is None or request.error is not None:
            return
        if request in self._queue:
            self._queue.remove(request)
            return
        self._pool[request.key].forget(request.matcher, Drop(request.matcher))
        self._pool.leave(request.key)

    def shutdown(self) -> None:
        """End all grammar processes and give the memory back. May be called twice."""
        self._requests.clear()
        self._queue.clear()
        self._rows.clear()
        if self._started is not None:
            self._pool.close()
            self._masks.close()
            self._started = None

    # --- a step ------------------------------------------------------------------------------

    def request_masks(self, rows: Sequence[tuple[int, str]]) -> None:
        """Begin to fill the masks of a step; to be sent before the forward pass.

        A step whose masks were never collected, as an interrupt came between, does no harm: the
        processes that it concerned are replaced.

        Args:
            rows: Slot and request id. Requests that still think get no mask.

        Raises:
            ValueError: More rows than the table has.
        """
        if len(rows) > self._max_rows:
            raise ValueError(f"{len(rows)} masks in one step; the table has {self._max_rows} rows")
        requests = [(slot, self._requests[request_id]) for slot, request_id in rows]
        self._rows = [(slot, request) for slot, request in requests if request.is_active]
        if self._started is not None:
            self._pool.end_broken_off()
        for key in self._keys_of_step():
            self._pool[key].begin_turn(self._fills(key))

    def collect_masks(self) -> list[RowBitmask]:
        """Return the masks that were asked for.

        A row whose grammar failed allows only the end of the text; its error is in the next `poll`.
        """
        for key in self._keys_of_step():
            self._finish_turn(key)
        masks = [
            RowBitmask(slot, 0, self._masks.row(row) if request.error is None else self._masks.end)
            for row, (slot, request) in enumerate(self._rows)
        ]
        self._rows = []
        return masks

    def _keys_of_step(self) -> list[bytes]:
        return list(dict.fromkeys(r.key for _, r in self._rows if r.error is None))

    def _fills(self, key: bytes) -> list[Fill]:
        requests = [request for _, request in self._rows]
        users = [(i, r) for i, r in enumerate(requests) if r.key == key and r.error is None]
        return [Fill(request.matcher, row) for row, request in users]

    def _finish_turn(self, key: bytes) -> None:
        """Wait for a process; replace it if it died. What fails twice fails all its requests."""
        try:
            self._take(key, self._pool[key].end_turn())
            return
        except LinkLostError as error:  # what it knew is known here too
            logger.warning("%s; started again for requests %s", error, self._names(key))
        try:
            self._revive(key)
            self._take(key, self._pool[key].end_turn())
        except LinkLostError as error:
            self._fail_all(key, error)

    def _revive(self, key: bytes) -> None:
        """Start a grammar's process again and bring its matchers to where they were.

        Raises:
            LinkLostError: It does not come back.
        """
        users = self._users(key)
        link = self._pool.replace(key, users[0].params)
        link.wait_until_compiled()
        for request in users:
            link.add(Start(request.matcher))
            link.add(Accept(request.matcher, request.token_ids))
        link.begin_turn(self._fills(key))

    def _take(self, key: bytes, done: TurnDone) -> None:
        for request in self._users(key):
            if request.matcher in done.failed:
                self._fail(request, self._error_of(done.failed[request.matcher], [request]))
                self._pool[key].forget(request.matcher, Drop(request.matcher))
                self._pool.leave(key)
        finished = set(done.finished)
        for _, request in self._rows:
            if request.key == key:
                request.is_finished = request.matcher in finished

    # --- compiling ---------------------------------------------------------------------------

    def _start_queued(self) -> None:
        """Give those who wait a process, as far as the limits go."""
        for request in list(self._queue):
            try:
                link = self._pool.join(request.key, request.params)
            except LinkLostError as error:
                self._queue.remove(request)
                logger.warning("%s; request %s fails", error, request.request_id)
                self._fail(request, GrammarError(str(error)))
                continue
            if link is not None:
                self._queue.remove(request)
                if not link.is_compiling:
                    self._make_ready(request)

    def _settle(self, key: bytes) -> None:
        """Take a grammar process's first word, and pass it on to all who wait for it."""
        error = self._pool[key].compile_error()
        if error is not None:
            self._fail_all(key, error)
        for request in self._users(key):
            self._make_ready(request)
        self._pool.make_small()

    def _make_ready(self, request: _Request) -> None:
        self._pool[request.key].add(Start(request.matcher))
        self._outcomes.append((request.request_id, None))

    def _fail(self, request: _Request, error: RequestError) -> None:
        request.error = error
        self._outcomes.append((request.request_id, request.error))

    def _fail_all(self, key: bytes, lost: LinkLostError) -> None:
        failure = Failure(str(lost), not isinstance(lost, BackendFailedError))
        users = self._users(key)
        if lost.__cause__ is not None:  # the process itself is gone; otherwise it said why
            logger.warning("%s; requests %s fail", lost, self._names(key))
        error = self._error_of(failure, users)
        for request in users:
            self._fail(request, error)
        self._pool.cut(key)

    def _error_of(self, failure: Failure, requests: Sequence[_Request]) -> RequestError:
        """Return what clients are told; what a plugin did not foresee is for the log alone."""
        if failure.is_for_client:
            return GrammarError(failure.message)
        names = ", ".join(request.request_id for request in requests)
        logger.error("a structured-output backend failed for %s:\n%s", names, failure.message)
        return RequestFailedError(
            "the structured-output backend failed on this form; the log says how"
        )

    def _names(self, key: bytes) -> str:
        return ", ".join(request.request_id for request in self._users(key))

    def _users(self, key: bytes) -> list[_Request]:
        return [r for r in self._requests.values() if r.key == key and r.error is None]

    # --- what starts with the first grammar --------------------------------------------------

    @property
    def _pool(self) -> GrammarPool:
        return self._parts[0]

    @property
    def _masks(self) -> SharedMasks:
        return self._parts[1]

    @property
    def _parts(self) -> tuple[GrammarPool, SharedMasks]:
        if self._started is None:
            vocabulary = self._load_vocabulary()
            masks = SharedMasks(self._max_rows, vocabulary)
            setup = Setup(
                plugins=msgspec.to_builtins(self._plugins),
                vocabulary=VocabularyMessage.of(vocabulary),
                num_rows=self._max_rows,
                memory_limit_bytes=self._limits.memory_bytes,
            )
            fork_server = GrammarForkServer(setup, masks.fd)
            self._started = (GrammarPool(fork_server, self._backend, self._limits), masks)
        return self._started


def _message(params: StructuredOutputsParams) -> bytes:
    """Return a grammar as a message, which also tells it from others; raises a GrammarError."""
    message = msgspec.msgpack.encode(params)
    if len(message) > MAX_PARAMS_BYTES:
        raise GrammarError(f"it takes {len(message)} bytes, of {MAX_PARAMS_BYTES} at most")
    return message
