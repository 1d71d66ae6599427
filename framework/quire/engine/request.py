"""One request, as the engine sees it: its tokens, and how many of them are computed.

A launched step counts as computed, and the tokens that it will draw count as expected, before the
host knows them:

    token_ids                 [ prompt | answer so far ]  expected
    num_computed_tokens       [ .............................. ]

    num_expected_tokens = max(0, num_computed_tokens + 1 - len(token_ids))

so while a request decodes there is always exactly one token to compute next, known or expected.
"""

from enum import Enum
from typing import Any, NamedTuple

from quire.messages import AdapterRef, EngineRequest, FinishReason, SlotAssignment


class Status(Enum):
    """Where a request stands."""

    WAITING_FOR_GRAMMAR = "preparing"  # its grammar is being compiled
    WAITING = "waiting"  # in the queue
    WAITING_FOR_PREFIX = "following"  # another request computes the beginning that they share
    WAITING_FOR_KV_LOOKUP = "asking"  # a KV store has not said yet what it has
    WAITING_FOR_REMOTE_KV = "loading"  # a KV store brings its beginning
    RUNNING = "running"
    FINISHED = "finished"


class LastLook(NamedTuple):
    """What the prefix cache said about a request that could not begin.

    Attributes:
        num_steps: When, in steps of the engine.
        num_hit_blocks: How much of it was found.
        num_needed_blocks: How many free blocks it lacked.
    """

    num_steps: int
    num_hit_blocks: int
    num_needed_blocks: int


class Request:
    """A request in the engine.

    Attributes:
        num_computed_tokens: Tokens whose KV is computed, or will be by a launched step.
        block_ids: Its block table in each KV group; 0 where no block is needed.
        checkpoint: It may compute up to so many tokens before its blocks or its end must be looked
            at; 0 makes the scheduler look at once.
        next_block_end: With more known tokens than these, a further block is full.
        hashes: The parent of its first block, then the name of each full block.
        num_committed_blocks: Full and computed blocks that were offered to the prefix cache.
        num_freed: In each KV group, how far its table was searched for blocks to free.
        key: Its place in the order of the queue.
    """

    __slots__ = (
        "__weakref__",
        "awaited",
        "block_ids",
        "checkpoint",
        "draft_token_ids",
        "followers",
        "hashes",
        "is_cacheable",
        "is_thinking",
        "key",
        "last_look",
        "leader",
        "max_total_tokens",
        "message",
        "next_block_end",
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
        "num_tokens_on_their_way",
        "promises",
        "request_id",
        "slot",
        "status",
        "stop_token_ids",
        "token_ids",
    )

    def __init__(self, message: EngineRequest, num_groups: int) -> None:
        self.message = message
        self.request_id = message.request_id
        self.token_ids = list(message.token_ids)
        self.num_prompt_tokens = len(message.token_ids)
        self.max_total_tokens = self.num_prompt_tokens + message.max_tokens
        self.stop_token_ids = message.stop_token_ids
        self.num_computed_tokens = 0
        self.num_tokens_on_their_way = 0  # drawn by steps from before a preemption
        self.block_ids: list[list[int]] = [[] for _ in range(num_groups)]
        self.checkpoint = 0
        self.next_block_end = 0
        self.hashes: list[bytes] = []
        self.num_committed_blocks = 0
        self.num_freed = [0] * num_groups
        self.is_cacheable = True
        self.num_cached_tokens = 0
        self.num_loads = 0  # of a KV store, tried
        self.promises: list[bytes] = []  # blocks of the prompt that others may wait for
        self.followers: list[Request] = []
        self.leader: Request | None = None  # who computes the beginning that they share
        self.awaited: bytes | None = None  # the last block that they share
        self.draft_token_ids: list[int] = []
        self.num_drafts_in_flight = 0
        self.slot: int | None = None
        self.status = Status.WAITING
        self.key: tuple[Any, int] = (0, 0)
        self.last_look: LastLook | None = None  # when it could not begin
        self.num_preemptions = 0
        self.num_prompt_logprobs_sent = 0  # to the caller
        self.num_prompt_logprobs_seen = 0  # since it last began
        self.is_thinking = message.thinking_end_token_id is not None  # its form has not begun

    @property
    def rank(self) -> Any:
        """The policy's key: requests of equal rank go in the order of their arrival."""
        return self.key[0]

    @property
    def priority(self) -> int:
        """As the caller gave it; lower goes first."""
        return self.message.priority

    @property
    def arrival_s(self) -> float:
        """When it arrived, on the monotonic clock."""
        return self.message.arrival_s

    @property
    def adapter(self) -> AdapterRef | None:
        """The LoRA adapter that it runs with."""
        return self.message.adapter

    @property
    def adapter_name(self) -> str | None:
        """The name of that adapter."""
        return None if self.message.adapter is None else self.message.adapter.name

    @property
    def num_generated_tokens(self) -> int:
        """Tokens of the answer so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_expected_tokens(self) -> int:
        """Tokens that launched steps draw, and the host does not know yet."""
        return max(0, self.num_computed_tokens + 1 - len(self.token_ids))

    @property
    def num_pending_tokens(self) -> int:
        """Known tokens whose KV is not computed yet."""
        return max(0, len(self.token_ids) - self.num_computed_tokens)

    @property
    def last_computed(self) -> int:
        """Tokens that are computed at most: the last of an answer never is."""
        return self.max_total_tokens - 1

    @property
    def has_grammar(self) -> bool:
        """Whether its answer must follow a form."""
        return self.message.params.structured_outputs is not None

    @property
    def num_prompt_logprobs(self) -> int | None:
        """Likeliest tokens to report for each position of the prompt; None: nothing."""
        return self.message.params.prompt_logprobs

    @property
    def reads_cache(self) -> bool:
        """Whether a prefix hit may spare it computing: not if it must look at its own prompt."""
        return self.num_prompt_logprobs is None

    def forget_progress(self) -> None:
        """Note that it was preempted: nothing of it is computed any more."""
        self.num_computed_tokens = self.num_drafts_in_flight = 0
        self.draft_token_ids = []
        self.is_cacheable = True
        self.num_preemptions += 1

    def assignment(self) -> SlotAssignment:
        """Return the whole state of the request's slot, for the worker.

        Raises:
            RuntimeError: It has none.
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
            fields=message.fields,
            seed=message.seed,
            child=message.child,
            num_logprobs=params.logprobs,
            num_prompt_logprobs=self.num_prompt_logprobs,
            min_tokens=params.min_tokens,
            stop_token_ids=message.stop_token_ids,
            adapter=message.adapter,
        )

    def append(self, token_ids: list[int]) -> tuple[list[int], FinishReason | None, int | None]:
        """Take in drawn tokens, up to the one that ends the answer.

        Returns:
            The tokens taken, why the answer is over (None: it is not), and the stop token if one
            that the caller named ended it.
        """
        for index, token_id in enumerate(token_ids, start=1):
            self.token_ids.append(token_id)
            reason, stop_reason = self.end(token_id)
            if reason is not None:
                return token_ids[:index], reason, stop_reason
        return token_ids, None, None

    def end(self, token_id: int) -> tuple[FinishReason | None, int | None]:
        """Return whether the token just taken ends the answer, and which stop token did."""
        is_long_enough = self.num_generated_tokens > self.message.params.min_tokens
        if is_long_enough and token_id in self.stop_token_ids:
            named = token_id in self.message.params.stop_token_ids
            return "stop", token_id if named else None
        if len(self.token_ids) >= self.max_total_tokens:
            return "length", None
        return None, None
