"""Engine-side state of a request: its tokens, and the number of them that are computed.

The tokens of a launched step count as computed, and those it will sample as expected, before the
host receives them:

    token_ids                 [ prompt | completion so far ]  expected
    num_computed_tokens       [ .................................. ]

    num_expected_tokens = max(0, num_computed_tokens + 1 - len(token_ids))

A decoding request therefore always has exactly one token to compute next, known or expected.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

from quire.engine.repetition import ends_in_repetition
from quire.engine.thinking_end import ThinkingEnd
from quire.messages import AdapterRef, BlockCopy, EngineRequest, FinishReason, SlotAssignment


class Status(Enum):
    """State of a request."""

    WAITING_FOR_GRAMMAR = "waiting for grammar"  # its grammar is being compiled
    WAITING = "waiting"  # in the queue
    WAITING_FOR_PREFIX = "waiting for prefix"  # another request computes their shared prefix
    STANDING_BY = "standing by"  # a companion, which starts with the request that it guides
    WAITING_FOR_KV_LOOKUP = "waiting for KV lookup"  # the KV store's lookup is pending
    WAITING_FOR_REMOTE_KV = "waiting for remote KV"  # a KV store loads its prefix
    RUNNING = "running"
    FINISHED = "finished"


class AdmissionAttempt(NamedTuple):
    """Prefix lookup of a request that could not start.

    Attributes:
        step_index: Number of the engine step of the lookup.
        num_hit_blocks: Number of blocks found in the prefix cache.
        num_needed_blocks: Number of free blocks needed to start.
    """

    step_index: int
    num_hit_blocks: int
    num_needed_blocks: int


class Request:
    """A request in the engine.

    Args:
        message: Request of the caller.
        num_groups: Number of KV groups.
        max_timeout_s: Timeout of requests that name none, and the maximum for all, in seconds;
            None: no limit.

    Attributes:
        deadline_s: Time by which it must finish, on the monotonic clock; infinity without a limit.
        num_computed_tokens: Number of tokens whose KV is computed, or will be by a launched step.
        block_ids: Block table in each KV group; 0 where no block is needed.
        next_check: Number of computed tokens at which the scheduler next checks whether the request
            needs blocks or ends; 0: in the next step.
        next_block_end: Number of known tokens beyond which another block is full.
        hashes: Parent hash of the first block, then the hash of each full block.
        num_committed_blocks: Number of full, computed blocks offered to the prefix cache.
        num_sent_tokens: Number of known tokens that the first stage of a pipeline has; of a beam
            search, that the workers have.
        num_freed: Number of leading table entries of each KV group whose blocks are freed, as no
            later token attends to them.
        key: Sort key in the waiting queue.
        companion: Request that gets the same tokens, and whose logits guide this one; None: there
            is none.
        guided: Request whose companion it is; None: it is none.
        group: The `RequestGroup` of which it is a member; None: it runs by itself.
        sampler_state: State of sampler steps after its last known token; empty if there is none.
        needs_assignment: Whether its tokens and blocks were replaced while it runs, so that its
            slot is assigned again.
        block_copies: Blocks to copy with that assignment.
        started_s: Time at which it got its first slot, on the monotonic clock; 0: before, and once
            an output has reported it.
    """

    __slots__ = (
        "__weakref__",
        "awaited_hash",
        "block_copies",
        "block_ids",
        "companion",
        "deadline_s",
        "draft_token_ids",
        "followers",
        "group",
        "guided",
        "hashes",
        "is_cacheable",
        "key",
        "last_attempt",
        "last_plan_id",
        "leader",
        "max_total_tokens",
        "message",
        "needs_assignment",
        "next_block_end",
        "next_check",
        "num_cached_tokens",
        "num_committed_blocks",
        "num_computed_tokens",
        "num_drafts_in_flight",
        "num_freed",
        "num_loads",
        "num_preemptions",
        "num_prompt_logprobs_seen",
        "num_prompt_logprobs_sent",
        "num_prompt_tokens",
        "num_sent_tokens",
        "num_tokens_in_flight",
        "promised_hashes",
        "repetition",
        "request_id",
        "sampler_state",
        "slot",
        "started_s",
        "status",
        "stop_token_ids",
        "thinking_end",
        "token_ids",
    )

    def __init__(
        self, message: EngineRequest, num_groups: int, max_timeout_s: float | None = None
    ) -> None:
        self.message = message
        self.request_id = message.request_id
        self.token_ids = list(message.token_ids)
        self.num_prompt_tokens = len(message.token_ids)
        self.max_total_tokens = self.num_prompt_tokens + message.max_tokens
        self.stop_token_ids = message.stop_token_ids
        self.deadline_s = message.deadline_s(max_timeout_s)
        self.repetition = message.params.repetition_detection
        self.num_computed_tokens = 0
        self.num_sent_tokens = 0
        self.num_tokens_in_flight = 0  # sampled by steps launched before a preemption
        self.block_ids: list[list[int]] = [[] for _ in range(num_groups)]
        self.next_check = 0
        self.next_block_end = 0
        self.hashes: list[bytes] = []
        self.num_committed_blocks = 0
        self.num_freed = [0] * num_groups
        self.is_cacheable = True
        self.num_cached_tokens = 0
        self.num_loads = 0  # attempted loads from a KV store
        self.promised_hashes: list[bytes] = []  # prompt blocks that other requests may wait for
        self.followers: list[Request] = []
        self.leader: Request | None = None  # the request that computes their shared prefix
        self.awaited_hash: bytes | None = None  # the last block of that prefix
        self.draft_token_ids: list[int] = []
        self.num_drafts_in_flight = 0
        self.slot: int | None = None
        self.status = Status.WAITING
        self.key: tuple[Any, ...] = (0, 0)
        self.last_attempt: AdmissionAttempt | None = None  # the last that failed
        self.last_plan_id = 0  # of the last step with a chunk, or in a pipeline with any tokens
        self.num_preemptions = 0
        self.num_prompt_logprobs_sent = 0  # to the caller
        self.num_prompt_logprobs_seen = 0  # since it last started
        self.thinking_end: ThinkingEnd | None = None  # the grammar waits for it
        if (end := message.thinking_end) is not None:
            self.thinking_end = ThinkingEnd(end, message.call_openers, message.stop_token_ids)
        self.group: Any = None
        self.companion: Request | None = None
        self.guided: Request | None = None
        self.sampler_state: dict[str, float] = {}
        self.needs_assignment = False
        self.block_copies: list[BlockCopy] = []
        self.started_s = 0.0

    @property
    def rank(self) -> Any:
        """The policy's key; requests of equal rank run in the order of their arrival."""
        return self.key[0]

    @property
    def priority(self) -> int:
        """Priority given by the caller; lower goes first."""
        return self.message.priority

    @property
    def arrival_s(self) -> float:
        """Time of arrival, on the monotonic clock."""
        return self.message.arrival_s

    @property
    def adapter(self) -> AdapterRef | None:
        """LoRA adapter of the request."""
        return self.message.adapter

    @property
    def adapter_name(self) -> str | None:
        """Name of the LoRA adapter."""
        return None if self.message.adapter is None else self.message.adapter.name

    @property
    def num_generated_tokens(self) -> int:
        """Number of tokens generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_expected_tokens(self) -> int:
        """Number of tokens that launched steps sample and the host has not received."""
        return max(0, self.num_computed_tokens + 1 - len(self.token_ids))

    @property
    def num_pending_tokens(self) -> int:
        """Number of known tokens whose KV is not computed yet."""
        return max(0, len(self.token_ids) - self.num_computed_tokens)

    @property
    def num_prefill_tokens(self) -> int:
        """Number of pending tokens that can be computed without other members of its group."""
        num_held_back = 0 if self.group is None else self.group.num_held_back
        return max(0, self.num_pending_tokens - num_held_back)

    @property
    def last_computed(self) -> int:
        """Maximum number of computed tokens: the last generated token is never computed."""
        return self.max_total_tokens - 1

    @property
    def has_grammar(self) -> bool:
        """Whether the completion must follow a grammar."""
        return self.message.params.structured_outputs is not None

    @property
    def num_prompt_logprobs(self) -> int | None:
        """Number of most likely tokens to report for each prompt position; None: no logprobs."""
        return self.message.params.prompt_logprobs

    @property
    def reads_cache(self) -> bool:
        """Whether the request may use prefix hits: not if it needs prompt logprobs."""
        return self.num_prompt_logprobs is None

    def sibling(self, index: int) -> Request:
        """Return another member of its beam search, without tokens, next to it in the order."""
        request = Request(self.message, len(self.block_ids))
        request.request_id = f"{self.request_id}/{index}"
        request.key = (*self.key, index)
        request.token_ids = []
        request.group = self.group
        return request

    def with_companion(self, message: EngineRequest) -> Request:
        """Return a companion, which starts with this request and is next to it in the order."""
        request = Request(message, len(self.block_ids))
        request.guided = self
        request.request_id = f"{self.request_id}/companion"
        request.key = (*self.key, 1)
        request.status = Status.STANDING_BY
        return request

    def reset_progress(self) -> None:
        """Reset to no computed tokens, after a preemption."""
        self.needs_assignment, self.block_copies = False, []
        self.num_computed_tokens = self.num_drafts_in_flight = 0
        self.draft_token_ids = []
        self.is_cacheable = True
        self.num_preemptions += 1

    def assignment(self) -> SlotAssignment:
        """Return the whole state of the request's slot, for the worker.

        Raises:
            RuntimeError: The request has no slot.
        """
        message, params = self.message, self.message.params
        if self.slot is None:
            raise RuntimeError(f"request {self.request_id} has no slot")
        return SlotAssignment(
            slot=self.slot,
            token_ids=list(self.token_ids),
            num_computed_tokens=self.num_computed_tokens,
            block_ids=[list(ids) for ids in self.block_ids],
            num_prompt_tokens=self.num_prompt_tokens,
            fields=params.sampler_fields,
            seed=message.seed,
            child=message.child,
            num_logprobs=self._num_logprobs,
            num_prompt_logprobs=self.num_prompt_logprobs,
            logprob_token_ids=params.logprob_token_ids,
            min_tokens=params.min_tokens,
            stop_token_ids=message.stop_token_ids,
            adapter=message.adapter,
            block_copies=self.block_copies,
            state=self.sampler_state,
            companion_slot=None if self.companion is None else self.companion.slot,
        )

    @property
    def _num_logprobs(self) -> int | None:
        """Number of most likely tokens that the worker returns; None: no logprobs."""
        if self.message.beam_search is None:
            return self.message.params.logprobs
        num_needed = self.message.beam_search.num_candidates(len(self.stop_token_ids))
        return max(num_needed, self.message.params.logprobs or 0)

    def append(self, token_ids: list[int]) -> tuple[list[int], FinishReason | None, int | None]:
        """Append sampled tokens, up to the one that ends the completion.

        Returns:
            The appended tokens, the finish reason (None: not finished), and the stop token id if
            one that the caller named ended the completion.
        """
        for index, token_id in enumerate(token_ids, start=1):
            self.token_ids.append(token_id)
            reason, stop_reason = self.end(token_id)
            if reason is not None:
                return token_ids[:index], reason, stop_reason
        return token_ids, None, None

    def end(self, token_id: int) -> tuple[FinishReason | None, int | None]:
        """Return the finish reason after the token just appended, and the caller's stop token."""
        is_long_enough = self.num_generated_tokens > self.message.params.min_tokens
        is_thought = self.thinking_end is not None and self.thinking_end.is_due_at(token_id)
        if token_id in self.stop_token_ids and not is_thought:
            named = token_id in self.message.params.stop_token_ids
            has_ended = self.has_grammar and self.thinking_end is None and not named
            if is_long_enough or has_ended:  # after a grammar's end only its end could follow
                return "stop", token_id if named else None
        if len(self.token_ids) >= self.max_total_tokens:
            return "length", None
        if is_long_enough and self._repeats():
            return "repetition", None
        return None, None

    def _repeats(self) -> bool:
        pattern = self.repetition
        if pattern is None:
            return False
        return ends_in_repetition(self.token_ids, self.num_prompt_tokens, pattern)
