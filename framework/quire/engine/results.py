"""Results of a step: sampled tokens become outputs, and blocks that are full are committed.

Nearly every row is one token of a running request; it takes a short path, other rows a longer one.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from quire.engine.beam_search.beam_search import BeamSearch
from quire.engine.kv_cache.kv_cache_manager import KVCacheManager
from quire.engine.kv_store.kv_transfers import KVTransfers
from quire.engine.request import Request, Status
from quire.engine.scheduling.prompt_sharing import PromptSharing
from quire.engine.scheduling.running_set import RunningSet
from quire.engine.scheduling.step_in_progress import Chunk
from quire.errors import EngineDeadError, OverloadedError, QuireError, RefusedError
from quire.messages import EngineOutput, ErrorReport, SlotResult, TokenLogprobs


class ResultProcessor:
    """Applies the results of steps to their requests.

    Args:
        kv: Block tables of the requests.
        running: Running requests, by slot.
        sharing: Requests that wait for blocks of others.
        transfers: Transfers of the external KV store, which saves full blocks, if there is one.
        remove: Removes a finished request from the scheduler.
        start_member: Gives a new member of a beam search a slot.
    """

    def __init__(
        self,
        kv: KVCacheManager,
        running: RunningSet,
        sharing: PromptSharing,
        transfers: KVTransfers | None,
        remove: Callable[[str], Request | None],
        start_member: Callable[[Request], None],
    ) -> None:
        self._kv = kv
        self._running = running
        self._sharing = sharing
        self._transfers = transfers
        self._remove = remove
        self._start_member = start_member
        self._failed_searches: dict[BeamSearch, ErrorReport] = {}  # in the rows of one step
        self._ended_pairs: dict[str, None] = {}  # likewise: ids of the guided requests

    def apply(self, rows: Sequence[SlotResult]) -> list[EngineOutput]:
        """Apply the rows of the oldest step in flight, and return their outputs.

        Raises:
            RuntimeError: A row names a slot that no request of that step owned.
        """
        outputs: list[EngineOutput] = []
        by_slot, running = self._running.by_slot, Status.RUNNING
        for row in rows:
            request = by_slot[row.slot]
            if request is None:
                raise RuntimeError(f"slot {row.slot} has a result and no request")
            token_ids = row.token_ids
            if (
                len(token_ids) != 1
                or request.status is not running
                or request.num_drafts_in_flight
                or row.error is not None
                or row.prompt_logprobs is not None
                or request.group is not None
            ):
                outputs += self._apply_other(request, row)
                continue
            known = request.token_ids
            known.append(token_ids[0])
            if row.state is not None:
                request.sampler_state = row.state
            if len(known) > request.next_block_end:
                self.commit(request, len(known) - 1)
            finish_reason = stop_reason = None
            if (
                token_ids[0] in request.stop_token_ids
                or len(known) >= request.max_total_tokens
                or request.repetition is not None
            ):
                finish_reason, stop_reason = request.end(token_ids[0])
                if finish_reason is not None:
                    self._finish(request)
            started_s = request.started_s
            if started_s:
                request.started_s = 0.0
            outputs.append(
                EngineOutput(
                    request_id=request.request_id,
                    token_ids=token_ids,
                    logprobs=row.logprobs,
                    finish_reason=finish_reason,
                    stop_reason=stop_reason,
                    num_cached_tokens=request.num_cached_tokens,
                    started_s=started_s,
                )
            )
        for request_id in self._ended_pairs:  # once no row of their other members is left
            self._remove(request_id)
        self._ended_pairs.clear()
        if self._failed_searches:
            outputs += [self._fail_search(*failed) for failed in self._failed_searches.items()]
            self._failed_searches = {}
        return outputs

    def commit_chunks(self, chunks: Sequence[Chunk]) -> None:
        """Commit the blocks that the chunks of a completed step have filled."""
        for chunk in chunks:
            request = chunk.request
            has_same_slot = request.status is Status.RUNNING and request.slot == chunk.slot
            if has_same_slot and chunk.end > request.num_committed_blocks * self._kv.block_size:
                self.commit(request, chunk.end)

    def commit(self, request: Request, num_computed: int) -> None:
        """Commit the first `num_computed` tokens of a running request.

        Its full blocks are added to the prefix cache and offered to the store, blocks that it
        needs no longer are freed, and requests that wait for its blocks are queued again.
        """
        fresh = self._kv.commit(request, num_computed)
        if fresh and self._transfers is not None:
            self._transfers.offer(request, fresh)
        self._kv.free_unneeded(request, num_computed)
        if request.promised_hashes:
            self._sharing.release(request, self._kv.is_cached)
            if num_computed >= request.num_prompt_tokens:
                self._sharing.withdraw(request)

    def _apply_other(self, request: Request, row: SlotResult) -> list[EngineOutput]:
        """Apply a row with drafts, prompt logprobs or an error, or of a preempted request."""
        if request.status is Status.FINISHED:
            return []  # finished while this step ran: its tokens are dropped
        if isinstance(request.group, BeamSearch):
            return self._apply_beam(request, request.group, row)
        if row.error is not None:
            request.is_cacheable = False  # the KV that this step wrote may be wrong
            root = request.guided or request
            if root.request_id in self._ended_pairs:
                return []
            self._remove_ended(root)
            return [failed_output(root.request_id, row.error)]
        if request.slot not in (None, row.slot):
            return []  # a chunk of a prompt that is being computed again
        if request.guided is not None:
            self._apply_companion(request, row)
            return []
        prompt_logprobs = _fresh_prompt_logprobs(request, row)
        num_drafts, request.num_drafts_in_flight = request.num_drafts_in_flight, 0
        if request.status is not Status.RUNNING:
            request.num_tokens_in_flight -= bool(row.token_ids)
        if row.state is not None:
            request.sampler_state = row.state
        taken, finish_reason, stop_reason = request.append(row.token_ids)
        if num_drafts and request.status is Status.RUNNING:
            request.num_computed_tokens = len(request.token_ids) - 1  # rejected drafts do not count
            self._kv.set_next_check(request)
        if finish_reason is not None:
            self._finish(request)
        elif taken and request.status is Status.RUNNING:
            self.commit(request, len(request.token_ids) - 1)
        started_s, request.started_s = request.started_s, 0.0
        return [
            EngineOutput(
                request_id=request.request_id,
                token_ids=taken,
                logprobs=None if row.logprobs is None else row.logprobs[: len(taken)],
                prompt_logprobs=prompt_logprobs,
                finish_reason=finish_reason,
                stop_reason=stop_reason,
                num_cached_tokens=request.num_cached_tokens,
                started_s=started_s,
            )
        ]

    def _apply_beam(
        self, request: Request, search: BeamSearch, row: SlotResult
    ) -> list[EngineOutput]:
        """Apply the row of a beam; once those of all beams are known, select the next beams."""
        error = row.error if row.state is None else _state_in_beams(row.state)
        if error is not None:
            request.is_cacheable = False
            self._failed_searches.setdefault(search, error)
            return []
        if request.slot not in (None, row.slot):
            return []
        if request.status is not Status.RUNNING:
            request.num_tokens_in_flight -= 1  # it was preempted, and will be computed again
            return []
        if not search.note(request, *(row.logprobs or ())):
            return []
        for member in search.members:
            self.commit(member, member.num_computed_tokens)
        continuations = search.select()
        if search.selection.is_over:
            self._remove(search.root.request_id)
            return [search.output()]
        search.advance(continuations, self._kv, self._start_member)
        return []

    def _apply_companion(self, request: Request, row: SlotResult) -> None:
        """Apply the row of a companion: the token of the request that it guides."""
        request.token_ids += row.token_ids
        if request.status is Status.RUNNING:
            self.commit(request, len(request.token_ids) - 1)
        else:
            request.num_tokens_in_flight -= bool(row.token_ids)

    def _fail_search(self, search: BeamSearch, error: ErrorReport) -> EngineOutput:
        self._remove(search.root.request_id)
        return failed_output(search.root.request_id, error)

    def _finish(self, request: Request) -> None:
        if request.status is Status.RUNNING:
            self.commit(request, len(request.token_ids) - 1)
        self._remove_ended(request)

    def _remove_ended(self, request: Request) -> None:
        """Remove a request; a guided one once the row of its companion has been read."""
        if request.companion is None:
            self._remove(request.request_id)
        else:
            self._ended_pairs[request.request_id] = None


def _state_in_beams(state: Iterable[str]) -> ErrorReport:
    """Return the error of a beam search whose rows have a state: beams are not sampled tokens."""
    return ErrorReport(
        RefusedError.code,
        "a beam search does not follow the tokens that are sampled, so no sampler step may carry "
        f"state from token to token in it, and one carries {', '.join(state)}; start the engine "
        "without that step",
    )


def _fresh_prompt_logprobs(request: Request, row: SlotResult) -> list[TokenLogprobs] | None:
    """Return the prompt logprobs not sent yet: a preempted request computes its prompt again."""
    if row.prompt_logprobs is None:
        return None
    num_known = max(0, request.num_prompt_logprobs_sent - request.num_prompt_logprobs_seen)
    request.num_prompt_logprobs_seen += len(row.prompt_logprobs)
    fresh = row.prompt_logprobs[num_known:]
    request.num_prompt_logprobs_sent += len(fresh)
    return fresh


def failed_output(request_id: str, error: ErrorReport) -> EngineOutput:
    """Return the last output of a request that failed."""
    return EngineOutput(request_id=request_id, token_ids=[], finish_reason="error", error=error)


def report_of(error: QuireError) -> ErrorReport:
    """Return the report of an error that was raised on purpose; its message is for the client."""
    retry_after_s = error.retry_after_s if isinstance(error, OverloadedError) else 0.0
    return ErrorReport(error.code, str(error), retry_after_s=retry_after_s)


def outcome_of(call: Callable[[], Any]) -> Future[Any]:
    """Run a call, and return its result or its `QuireError`.

    Raises:
        EngineDeadError: The engine is dead, which is no outcome of one call.
    """
    outcome: Future[Any] = Future()
    try:
        outcome.set_result(call())
    except EngineDeadError:
        raise
    except QuireError as error:
        outcome.set_exception(error)
    return outcome
