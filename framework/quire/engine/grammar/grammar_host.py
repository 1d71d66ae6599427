"""Engine-side host of the grammar processes: sends them tokens and reads masks.

Life of a request: `submit`, then `poll` until its grammar is ready (other requests run meanwhile),
then in each step `accept` the sampled tokens and request a mask, and finally `release`. No call
blocks for longer than masks take to fill, with one exception: a grammar process that dies is
restarted while a step waits for it, and the host replays the tokens that it has kept.

Grammars start in the order of the compile time that their clients have had, then of their own. One
that compiles longer than its turn makes way for another that has had less, and starts again later
with a longer turn. So slow grammars delay quick ones by little, those of other clients included.

Grammars never run in the engine's process. Each compiles in a process of its own, under time and
memory limits enforced by the kernel, so a hostile one affects no other; see `grammar_process`.
Those that can be sent and are cheap are matched in one process, with one message a step. When that
process is lost, it starts again with its grammars. The one that was at work, if any, gets a process
of its own, so that a grammar at fault fails alone.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from quire.config import PluginSettings
from quire.engine.grammar.compile_load import CompileLoad, Waiting
from quire.engine.grammar.compile_shares import CompileShares
from quire.engine.grammar.fork_server_client import GrammarForkServer
from quire.engine.grammar.grammar_link import (
    TURN_TIMEOUT_S,
    BackendFailedError,
    CrashedError,
    GrammarLink,
    LinkLostError,
    NotStartedError,
)
from quire.engine.grammar.grammar_pool import GrammarLimits, GrammarPool, digest
from quire.engine.grammar.grammar_wire import (
    Accept,
    Failure,
    Fill,
    Setup,
    Start,
    TurnDone,
    VocabularyMessage,
)
from quire.engine.grammar.shared_masks import SharedMasks
from quire.errors import GrammarError, OverloadedError, RequestError, RequestFailedError
from quire.interfaces.structured_output import Vocabulary
from quire.messages import RowBitmask
from quire.sampling_params import StructuredOutputsParams

logger = logging.getLogger(__name__)

MAX_PARAMS_BYTES = 4 * 2**20  # of one grammar, as a message

PATIENCE = 8.0  # turn of a grammar, in units of the time that the next one has had

MAX_UNEXPLAINED = 2  # losses of the shared process in a step while it executed no grammar
NOT_RESTARTED = "the process that matches grammars ends whenever it is started; see the log"

Outcome = tuple[str, RequestError | None]


@dataclass(slots=True, eq=False)
class _Request:
    """State of a request, sufficient to recreate its matcher."""

    request_id: str
    matcher: int
    key: bytes
    params: StructuredOutputsParams
    is_active: bool
    client: str
    compile_s: float = 0.0  # that its grammar has had, before it made way for another
    token_ids: list[int] = field(default_factory=list)
    error: RequestError | None = None

    @property
    def follows_grammar(self) -> bool:
        """Whether its tokens must be passed to the grammar."""
        return self.is_active and self.error is None


class _Rows(NamedTuple):
    """Rows of the shared table for one request: a mask, and one after each draft token."""

    slot: int
    request: _Request
    first: int
    draft_token_ids: list[int]


class GrammarHost:
    """The grammars of one engine. Used from one thread; starts nothing before the first `submit`.

    Args:
        load_vocabulary: Function that loads the vocabulary; called once, with the first grammar.
        backends: Names of the backends that are tried in turn for requests that name none.
        plugins: Plugin settings of the grammar processes: the engine's own.
        max_rows: Maximum number of masks in one step.
        limits: Time and memory limits of grammars.
    """

    def __init__(
        self,
        load_vocabulary: Callable[[], Vocabulary],
        *,
        backends: Sequence[str] = ("outlines",),
        plugins: PluginSettings | None = None,
        max_rows: int = 64,
        limits: GrammarLimits | None = None,
    ) -> None:
        self._load_vocabulary = load_vocabulary
        self._backends = tuple(backends)
        self._plugins = plugins or PluginSettings()
        self._max_rows = max_rows
        self._limits = limits or GrammarLimits()
        self._started: tuple[GrammarPool, SharedMasks] | None = None
        self._requests: dict[str, _Request] = {}
        self._queue: list[_Request] = []
        self._shares = CompileShares()
        self._load = CompileLoad(
            self._limits.max_waiting,
            self._limits.max_wait_s,
            self._limits.turn_s,
            self._limits.max_compiling,
        )
        self._failures: dict[bytes, GrammarError] = {}  # by digest of the grammar, oldest first
        self._outcomes: list[Outcome] = []
        self._rows: list[_Rows] = []
        self._num_submitted = 0

    # --- per request -------------------------------------------------------------------------

    def submit(
        self,
        request_id: str,
        params: StructuredOutputsParams,
        *,
        is_active: bool = True,
        client: str = "",
    ) -> None:
        """Start to compile a request's grammar; `poll` reports when it is ready.

        Args:
            request_id: The engine's own id.
            params: The grammar, already checked by its backend's `check`.
            is_active: Whether masks are needed from the start; False: from `activate` on.
            client: Identity by which compile time is shared fairly, and of whose grammars only so
                many may wait; empty: shared with all others that have none, without that limit.
        """
        self._num_submitted += 1
        request = _Request(request_id, self._num_submitted, b"", params, is_active, client)
        try:
            request.key = _message(params)
            if (error := self._failures.get(digest(request.key))) is None:
                self._check_load(request)
                self._queue.append(request)
            else:
                self._fail(request, error)
        except OverloadedError as refusal:
            self._fail(request, refusal)
        except (RecursionError, OverflowError, UnicodeEncodeError, GrammarError) as caught:
            reason = f"the grammar cannot be sent to its process: {caught}"
            self._fail(request, GrammarError(reason))
        self._requests[request_id] = request
        self._start_queued()

    def activate(self, request_id: str) -> None:
        """Apply the grammar from the next token on."""
        self._requests[request_id].is_active = True

    def poll(self) -> list[Outcome]:
        """Return the requests whose grammar is ready (None) or failed since the last call.

        Never blocks. Must be called in each step after `collect_masks`: a request whose grammar
        fails while it runs must end with that error, whatever token was sampled for it.
        """
        if self._started is not None:
            for key in self._pool.poll_compiling(0):
                self._finish_compile(key)
            self._start_queued()
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def wait_for_compile(self, timeout_s: float) -> bool:
        """Block until `poll` has something to report, or the timeout; for an idle engine.

        Returns:
            Whether there is something to poll for; False at once if nothing is being compiled.
        """
        if self._outcomes or self._started is None:
            return bool(self._outcomes)
        next_s, _ = self._next_preemption()
        return bool(self._pool.poll_compiling(min(timeout_s, next_s))) or next_s <= timeout_s

    def accept(self, request_id: str, token_ids: Sequence[int]) -> None:
        """Pass sampled tokens to the grammar; `poll` reports a rejection after the next masks."""
        request = self._requests[request_id]
        if request.follows_grammar:
            request.token_ids.extend(token_ids)
            self._pool[request.key].link.add(Accept(request.matcher, list(token_ids)))

    def release(self, request_id: str) -> None:
        """Remove a request; unknown ids are ignored."""
        request = self._requests.pop(request_id, None)
        if request is None or request.error is not None:
            return
        if request in self._queue:
            self._queue.remove(request)
            return
        if request.client and (grammar := self._pool[request.key]).link.is_compiling:
            self._shares.add(request.client, time.monotonic() - grammar.started_s)
        self._drop_matcher(request)

    def shutdown(self) -> None:
        """End all grammar processes and free the shared memory. May be called twice."""
        self._requests.clear()
        self._queue.clear()
        self._rows.clear()
        if self._started is not None:
            self._pool.close()
            self._masks.close()
            self._started = None

    # --- per step ----------------------------------------------------------------------------

    def request_masks(
        self,
        rows: Sequence[tuple[int, str]],
        drafts: Mapping[str, Sequence[int]] = MappingProxyType({}),
    ) -> None:
        """Start to fill the masks of a step; called before the forward pass.

        If an interrupt prevented the masks of the last step from being collected, the processes
        concerned are restarted.

        Args:
            rows: Pairs of slot and request id. Requests that are still thinking get no mask.
            drafts: Draft tokens by request id: there is a mask after each of them, too. It allows
                nothing after a token that the grammar forbids.

        Raises:
            ValueError: There are more masks than the table has rows.
        """
        self._rows, num_rows = [], 0
        for slot, request_id in rows:
            draft_token_ids = list(drafts.get(request_id, ()))
            if (request := self._requests[request_id]).is_active:
                self._rows.append(_Rows(slot, request, num_rows, draft_token_ids))
            num_rows += 1 + len(draft_token_ids)
        if num_rows > self._max_rows:
            self._rows = []
            raise ValueError(f"{num_rows} masks in one step; the table has {self._max_rows} rows")
        if self._started is not None:
            self._pool.end_interrupted()
            self._masks.take_running()  # a grammar whose turn was interrupted is not at fault
        for link in self._links_of_step():
            link.begin_turn(self._fills(link))

    def collect_masks(self) -> list[RowBitmask]:
        """Return the requested masks.

        The masks of a failed grammar allow only the end-of-text token; its error is in the next
        `poll`.
        """
        for link in self._links_of_step():
            self._finish_turn(link)
        masks = [mask for rows in self._rows for mask in self._bitmasks(rows)]
        self._rows = []
        return masks

    def _bitmasks(self, rows: _Rows) -> list[RowBitmask]:
        has_failed = rows.request.error is not None
        return [
            RowBitmask(
                rows.slot,
                sample,
                self._masks.end if has_failed else self._masks.row(rows.first + sample),
            )
            for sample in range(1 + len(rows.draft_token_ids))
        ]

    def _links_of_step(self) -> list[GrammarLink]:
        requests = [rows.request for rows in self._rows if rows.request.error is None]
        links = [self._pool[request.key].link for request in requests]
        return list({id(link): link for link in links}.values())

    def _fills(self, link: GrammarLink) -> list[Fill]:
        return [
            Fill(rows.request.matcher, rows.first, rows.draft_token_ids)
            for rows in self._rows
            if rows.request.error is None and self._pool[rows.request.key].link is link
        ]

    def _finish_turn(self, link: GrammarLink) -> None:
        """Wait for a process. One that is lost is replaced, with its matchers as they were."""
        try:
            self._apply_turn(link.end_turn())
        except LinkLostError as error:
            if link not in self._links_of_step():
                return  # it was ended and replaced together with another one
            keys = self._lose(link, error)
            if link.is_shared:
                self._restart_shared(keys)
            else:
                self._isolate(keys)

    def _lose(self, link: GrammarLink, error: LinkLostError) -> list[bytes]:
        keys = self._pool.lose(link)
        names = _request_ids([request for key in keys for request in self._users(key)])
        logger.warning("%s; restarting it for requests %s", error, names)
        return keys

    def _restart_shared(self, keys: list[bytes]) -> None:
        """Start the shared process again with its grammars, without those that end it.

        It has written which grammar was at work when it was lost; that one gets a process of its
        own. If none was, the process was ended from outside; if so twice, its requests fail.
        """
        num_unexplained = 0
        while keys:
            suspect = self._take_suspect(keys)
            if suspect is not None:
                keys.remove(suspect)
                self._pool.keep_unshared(suspect)
                self._isolate([suspect])
            elif (num_unexplained := num_unexplained + 1) > MAX_UNEXPLAINED:
                for key in keys:
                    self._fail_grammar(key, NotStartedError(NOT_RESTARTED))
                return
            keys = self._replay_shared(keys) if keys else []

    def _take_suspect(self, keys: Sequence[bytes]) -> bytes | None:
        number = self._masks.take_running()
        return next((key for key in keys if self._pool[key].number == number), None)

    def _replay_shared(self, keys: list[bytes]) -> list[bytes]:
        """Replay a turn in a new shared process; return the grammars if that is lost, too."""
        try:
            link = self._pool.restart_shared(keys)
        except NotStartedError as error:
            logger.warning("the process that matches grammars is not restarted: %s", error)
            return keys
        self._replay(keys, link)
        try:
            self._apply_turn(link.end_turn(TURN_TIMEOUT_S))
        except LinkLostError as error:
            return self._lose(link, error)
        return []

    def _isolate(self, keys: Sequence[bytes]) -> None:
        """Replay the turn of a grammar in a process of its own.

        A failure is the grammar's own now: it fails its requests, and the grammar does not move to
        the shared process again.
        """
        for key in keys:
            if not (users := self._users(key)):
                self._pool.remove(key)
                continue
            try:
                link = self._pool.isolate(key, users[0].params)
                link.receive_compiled()
                self._replay([key], link)
                self._apply_turn(link.end_turn())
            except LinkLostError as error:
                self._give_up(key, error)

    def _replay(self, keys: Sequence[bytes], link: GrammarLink) -> None:
        """Begin the turn in which a new process comes to where the old one was."""
        for key in keys:
            grammar = self._pool[key].number
            for request in self._users(key):
                link.add(Start(request.matcher, grammar))
                link.add(Accept(request.matcher, request.token_ids))
        link.begin_turn(self._fills(link))

    def _give_up(self, key: bytes, error: LinkLostError) -> None:
        self._pool.keep_unshared(key)
        self._fail_grammar(key, error)

    def _fail_grammar(self, key: bytes, error: LinkLostError) -> None:
        self._fail_all(self._users(key), error)
        self._pool.remove(key)

    def _apply_turn(self, done: TurnDone) -> None:
        if not done.failed:
            return
        for request in list(self._requests.values()):
            if request.error is not None or request.matcher not in done.failed:
                continue
            failure = done.failed[request.matcher]
            if failure.is_slow:
                self._pool.keep_unshared(request.key)
            self._fail(request, self._error_of(failure, [request]))
            self._drop_matcher(request)

    # --- compiling ---------------------------------------------------------------------------

    def _check_load(self, request: _Request) -> None:
        """Refuse the new grammar of a named client if too many wait.

        Raises:
            OverloadedError: They do.
        """
        if not request.client or (self._started is not None and request.key in self._pool):
            return
        firsts = {other.key: other for other in reversed(self._queue)}
        if request.key not in firsts:
            waiting = [Waiting(each.client, self._rank(each)) for each in firsts.values()]
            self._load.check(Waiting(request.client, self._rank(request)), waiting)

    def _start_queued(self) -> None:
        """Start processes for queued requests, the best ranked first, as far as limits allow."""
        self._queue.sort(key=self._rank)
        self._preempt()
        for request in list(self._queue):
            try:
                grammar = self._pool.acquire(request.key, request.params)
            except LinkLostError as error:
                self._queue.remove(request)
                self._fail_all([request], error)
                continue
            if grammar is not None:
                self._queue.remove(request)
                if not grammar.link.is_compiling:
                    self._make_ready(request)

    def _preempt(self) -> None:
        """End a grammar whose turn is over for the first of the queue, and queue its requests."""
        wait_s, key = self._next_preemption()
        if wait_s > 0:
            return
        requests, seconds = self._users(key), self._count_compile_time(key)
        self._pool.remove(key)
        for request in requests:
            request.compile_s += seconds
        self._queue.extend(requests)

    def _next_preemption(self) -> tuple[float, bytes]:
        """Return the seconds until a grammar must make way, and its key; infinite: none must."""
        waits = [
            (self._turn_s(user, age_s) - age_s, key)
            for key, age_s in (self._pool.preemptible() if self._queue else [])
            if (user := next(iter(self._users(key)), None)) is not None
        ]
        wait_s, key = min(waits, default=(math.inf, b""))
        return max(0.0, wait_s), key

    def _turn_s(self, request: _Request, age_s: float) -> float:
        """Return how long a grammar may compile before it makes way for the first of the queue.

        A new one, which may be quick, waits least. Turns grow with the time that was lost before.
        """
        first_share, first_s = self._rank(self._queue[0])
        if first_share > self._rank(request, age_s)[0]:
            return math.inf
        return max(self._limits.turn_s, PATIENCE * first_s)

    def _rank(self, request: _Request, age_s: float = 0.0) -> tuple[float, float]:
        """Return compile time of the client and of the grammar, that of a current turn left out."""
        return self._shares[request.client] + age_s * bool(request.client), request.compile_s

    def _count_compile_time(self, key: bytes) -> float:
        """Count the time of a grammar for its clients, and return it."""
        seconds = time.monotonic() - self._pool[key].started_s
        for client in {request.client for request in self._users(key)} - {""}:
            self._shares.add(client, seconds)
        return seconds

    def _finish_compile(self, key: bytes) -> None:
        """Receive a grammar's compile result, and report it for all requests that wait for it."""
        self._count_compile_time(key)
        try:
            self._pool.finish_compile(key)
        except LinkLostError as error:
            users = self._users(key)
            self._fail_all(users, error)
            self._remember(key, users)
            self._pool.remove(key)
        for request in self._users(key):
            self._make_ready(request)
        self._pool.evict_to_fit()

    def _remember(self, key: bytes, requests: Sequence[_Request]) -> None:
        """Keep the error of a grammar, unless the server is at fault."""
        for request in requests:
            if isinstance(request.error, GrammarError):
                self._failures[digest(key)] = request.error
        for oldest in list(self._failures)[: -self._limits.max_failures]:
            del self._failures[oldest]

    def _make_ready(self, request: _Request) -> None:
        grammar = self._pool[request.key]
        grammar.link.add(Start(request.matcher, grammar.number))
        self._outcomes.append((request.request_id, None))

    def _fail(self, request: _Request, error: RequestError) -> None:
        request.error = error
        self._outcomes.append((request.request_id, request.error))

    def _fail_all(self, requests: Sequence[_Request], lost: LinkLostError) -> None:
        """Fail the requests of a grammar whose process is lost or did not compile it."""
        if lost.__cause__ is not None:  # the process is gone; otherwise it reported the reason
            logger.warning("%s; failing requests %s", lost, _request_ids(requests))
        error: RequestError
        if isinstance(lost, NotStartedError | CrashedError):
            error = RequestFailedError(str(lost))
        else:
            failure = Failure(str(lost), not isinstance(lost, BackendFailedError))
            error = self._error_of(failure, requests)
        for request in requests:
            self._fail(request, error)

    def _drop_matcher(self, request: _Request) -> None:
        """Remove a request from the users of its grammar."""
        self._pool[request.key].link.drop(request.matcher)
        self._pool.release(request.key)

    def _error_of(self, failure: Failure, requests: Sequence[_Request]) -> RequestError:
        """Return the error for clients; a plugin's unexpected error is logged, not sent to them."""
        if failure.is_for_client:
            return GrammarError(failure.message)
        logger.error(
            "a structured-output backend failed for requests %s:\n%s",
            _request_ids(requests),
            failure.message,
        )
        return RequestFailedError(
            "the structured-output backend failed on this grammar; see the server's log"
        )

    def _users(self, key: bytes) -> list[_Request]:
        return [r for r in self._requests.values() if r.key == key and r.error is None]

    # --- started with the first grammar ------------------------------------------------------

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
                shared_memory_limit_bytes=self._limits.shared_memory_bytes,
            )
            fork_server = GrammarForkServer(setup, masks.fd)
            self._started = (GrammarPool(fork_server, self._backends, self._limits), masks)
        return self._started


def _request_ids(requests: Sequence[_Request]) -> str:
    return ", ".join(request.request_id for request in requests)


def _message(params: StructuredOutputsParams) -> bytes:
    """Return a grammar as a message, which also identifies it; raises a GrammarError."""
    message = msgspec.msgpack.encode(params)
    if len(message) > MAX_PARAMS_BYTES:
        raise GrammarError(f"it takes {len(message)} bytes, of {MAX_PARAMS_BYTES} at most")
    return message
