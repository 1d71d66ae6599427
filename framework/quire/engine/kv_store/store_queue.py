"""Requests that wait for a KV store, outside the queue: for its answer, or for what it loads.

A store is asked once for a request and what it finds already; the answer is remembered for a
moment, as a request may have to wait for room. One that says "later" is asked again, less and less
often and only for so many requests a step, until the request has waited as long as it may.
"""

import logging
import time
from collections import OrderedDict
from dataclasses import dataclass
from itertools import islice

from quire.engine.kv_cache.kv_cache_manager import KVCacheManager, PrefixHit
from quire.engine.kv_store.kv_transfers import MAX_LOADS, KVTransfers
from quire.engine.request import Request, Status

MAX_ASKED = 64  # requests for which a step hears "later"
MAX_REMEMBERED = 1024  # answers
FRESH_S = 1.0  # an answer is believed
MIN_PAUSE_S = 0.001  # before it is asked again
MAX_PAUSE_S = 0.05

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Question:
    """What a store has not answered yet."""

    num_hit_blocks: int
    since_s: float
    next_s: float  # when it is asked again


@dataclass(frozen=True, slots=True)
class _LookupAnswer:
    """So many blocks lie behind a hit."""

    num_hit_blocks: int
    num_blocks: int
    at_s: float
    num_resets: int  # of the store, before


class StoreQueue:
    """Who asked a KV store, and who waits for what it loads.

    Args:
        kv: Whose blocks are loaded.
        transfers: The store, if there is one.
    """

    def __init__(self, kv: KVCacheManager, transfers: KVTransfers | None) -> None:
        self._kv = kv
        self._transfers = transfers
        self._asked: OrderedDict[Request, _Question] = OrderedDict()
        self._answers: OrderedDict[Request, _LookupAnswer] = OrderedDict()
        self._num_later = 0  # "later", in this step
        self._has_warned = False

    @property
    def is_waiting(self) -> bool:
        """Whether a store has something to end or to say."""
        is_busy = self._transfers is not None and self._transfers.is_busy
        return is_busy or bool(self._asked)

    def sets_aside(
        self, request: Request, hit: PrefixHit | None, num_running: int
    ) -> Status | None:
        """Let a request wait for the store, if it has what the request lacks, or may have it.

        Args:
            request: Who might wait; the caller takes it out of the queue.
            hit: What it finds already.
            num_running: Requests that run, to each of which a block is left.

        Returns:
            What it waits for; None: it goes on without the store.
        """
        if self._transfers is None or not (self._kv.has_cache and request.reads_cache):
            return None
        num_hit_blocks = 0 if hit is None else hit.num_blocks
        num_blocks = self._num_stored(self._transfers, request, num_hit_blocks)
        if num_blocks is None:
            return Status.WAITING_FOR_KV_LOOKUP
        if not num_blocks or (num_running and self._is_too_long(request, hit, num_running)):
            return None
        if not self._transfers.load(request, hit, num_blocks, num_running):
            return None
        self._answers.pop(request, None)
        return Status.WAITING_FOR_REMOTE_KV

    def call_back(self, now_s: float) -> list[Request]:
        """Return those to queue again; once a step.

        The store has answered, or will not in time; or their load will not come.
        """
        self._num_later = 0
        if self._transfers is None:
            return []
        return self._transfers.late(now_s) + self._answered(self._transfers, now_s)

    def leave(self, request: Request) -> None:
        """The request is over, whatever it waited for."""
        self._asked.pop(request, None)
        self._answers.pop(request, None)
        if self._transfers is not None:
            self._transfers.abandon(request)

    def _num_stored(
        self, transfers: KVTransfers, request: Request, num_hit_blocks: int
    ) -> int | None:
        """Return how many blocks the store has behind a hit; None: the request asked for that."""
        if not transfers.may_have(request, num_hit_blocks):
            return 0
        now_s = time.monotonic()
        answer = self._answers.get(request)
        if answer is not None and self._is_fresh(answer, num_hit_blocks, now_s):
            return answer.num_blocks
        is_too_much = self._num_later >= MAX_ASKED  # others wait already
        num_blocks = None if is_too_much else transfers.look_up(request, num_hit_blocks)
        if num_blocks is None:
            self._num_later += 1
            self._asked[request] = _Question(num_hit_blocks, now_s, now_s + MIN_PAUSE_S)
        else:
            self._remember(request, num_hit_blocks, num_blocks, now_s)
        return num_blocks

    def _is_too_long(self, request: Request, hit: PrefixHit | None, num_running: int) -> bool:
        """Whether it could not begin beside those that run; a load would be gone until it can."""
        return self._kv.needed_to_begin(request, hit) + num_running > self._kv.pool.num_free

    def _answered(self, transfers: KVTransfers, now_s: float) -> list[Request]:
        """Ask again for some, in turn; returns those who need not ask any more."""
        ready = []
        for request, question in list(islice(self._asked.items(), MAX_ASKED)):
            if question.next_s <= now_s and self._ask_again(transfers, request, question, now_s):
                del self._asked[request]
                ready.append(request)
            else:
                self._asked.move_to_end(request)
        return ready

    def _ask_again(
        self, transfers: KVTransfers, request: Request, question: _Question, now_s: float
    ) -> bool:
        """Whether there is an answer now, or has been none for too long."""
        num_blocks = transfers.look_up(request, question.num_hit_blocks)
        if num_blocks is not None:
            self._remember(request, question.num_hit_blocks, num_blocks, now_s)
            return True
        self._num_later += 1
        waited_s = now_s - question.since_s
        question.next_s = now_s + min(max(waited_s / 4, MIN_PAUSE_S), MAX_PAUSE_S)
        if waited_s < transfers.timeout_s:
            return False
        self._give_up(transfers, request)
        return True

    def _give_up(self, transfers: KVTransfers, request: Request) -> None:
        request.num_loads = MAX_LOADS
        logger.log(
            logging.DEBUG if self._has_warned else logging.WARNING,
            "%s did not say within %g s what it has; computing instead",
            transfers.name, transfers.timeout_s,
        )  # fmt: skip
        self._has_warned = True

    def _is_fresh(self, answer: _LookupAnswer, num_hit_blocks: int, now_s: float) -> bool:
        num_resets = 0 if self._transfers is None else self._transfers.num_resets
        is_same = answer.num_hit_blocks == num_hit_blocks and answer.num_resets == num_resets
        return is_same and now_s - answer.at_s < FRESH_S

    def _remember(
        self, request: Request, num_hit_blocks: int, num_blocks: int, now_s: float
    ) -> None:
        num_resets = 0 if self._transfers is None else self._transfers.num_resets
        self._answers[request] = _LookupAnswer(num_hit_blocks, num_blocks, now_s, num_resets)
        self._answers.move_to_end(request)
        if len(self._answers) > MAX_REMEMBERED:
            self._answers.popitem(last=False)
