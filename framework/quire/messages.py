"""Messages between frontend, engine and workers: plain msgpack data, without behaviour or torch.

frontend -> engine   EngineRequest, and request ids to abort
engine -> worker     StepPlan: tokens to compute per slot, and the changes since the last plan
worker -> engine     StepResult
engine -> frontend   EngineOutputs, one message a step
caller -> engine     Control: commands run between two steps; some are forwarded to the workers

A running request owns a slot: a row in the worker's tables, the same one as long as it runs. A plan
names slots and sends differences only: a slot's whole state once, when it is assigned, and after
that the new block ids.
"""

import math
from enum import IntEnum
from typing import Any, Literal

import msgspec

from quire.sampling_params import BeamSearchParams, SamplingParams

FinishReason = Literal["stop", "length", "repetition", "abort", "error"]


class AdapterRef(msgspec.Struct, frozen=True):
    """A LoRA adapter: the name that requests use, and the files that are loaded.

    Attributes:
        name: Name that requests use for it.
        path: Path of its files.
        content_hash: Hash of its files, part of the prefix-cache key; computed by the engine, never
            taken from a client.
        source: Name of the LoRA source that reads it; empty for the configured one.
    """

    name: str
    path: str
    content_hash: str = ""
    source: str = ""


class MediaSpan(msgspec.Struct, frozen=True, array_like=True):
    """An image, video or audio clip behind placeholder tokens of a prompt.

    Attributes:
        position: Position of the first placeholder token.
        length: Number of placeholder tokens.
        content_hash: Hash of its bytes; computed by the engine, never taken from a client.
    """

    position: int
    length: int
    content_hash: str


class MarkerTokens(msgspec.Struct, frozen=True):
    """A marker of the thinking, as tokens.

    Attributes:
        token_ids: Tokens that spell it, sampled where it is forced; empty: it never is.
        texts: Bytes of each spelling.
        pieces: Bytes of each token that may have a part of a spelling, or all.
    """

    token_ids: tuple[int, ...]
    texts: tuple[bytes, ...]
    pieces: dict[int, bytes]


class ThinkingBudget(msgspec.Struct, frozen=True):
    """The number of tokens that a request may think.

    Attributes:
        max_tokens: Number of tokens of the thinking, without its markers.
        end: Marker that ends the thinking; it is sampled when the budget is used up.
        start: Marker by which the completion may open the thinking; None: it cannot.
        is_open: Whether the prompt has opened the thinking.
    """

    max_tokens: int
    end: MarkerTokens
    start: MarkerTokens | None
    is_open: bool


class Companion(msgspec.Struct, frozen=True):
    """A request that has another prompt, and gets the tokens that are sampled for the first one.

    Attributes:
        token_ids: Its prompt; at least one token.
        params: Its parameters: greedy, without log probabilities or constraints.
    """

    token_ids: list[int]
    params: SamplingParams


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to the engine to generate one completion of a prompt.

    Attributes:
        request_id: Internal id; an id that a client sends is not used inside the engine.
        token_ids: Token ids of the prompt. Generated tokens are in the outputs.
        params: Sampling parameters that the caller gave; `extra_args` has every field that the
            samplers in use add, checked, with the defaults of those that the caller left out.
        max_tokens: Largest number of tokens to generate. Never None: prompt and completion fit the
            model's length.
        seed: Seed of all random numbers of this request, together with `child`; random if the
            caller gave none.
        child: Index of this completion among the `n` of its prompt, from 0.
        stop_token_ids: End-of-text token ids of the model, and those that the caller gave.
        thinking_end: Marker after which a structured-output constraint starts to apply; None: from
            the first token.
        thinking_budget: Limit of the thinking; None: there is none.
        call_openers: Markers by which a tool call begins in the thinking, one text each. Behind one
            the completion may end although a constraint waits, and a budget forces nothing. None:
            calls in the thinking do not count.
        adapter: LoRA adapter; None: the base model.
        media: Images, videos and audio clips of the prompt.
        priority: Scheduling priority, smaller first; used if the scheduling policy reads it.
        cache_salt: Salt of the prefix cache: prefixes are shared only among requests with the same
            one.
        arrival_s: Arrival of its first byte, by `time.monotonic()`: one clock for all processes of
            a machine. The frontend and the engine are always on one.
        timeout_s: Seconds from the arrival after which it fails; None: the engine's limit, if any.
        beam_search: Parameters of a beam search, whose best `params.n` hypotheses are the output;
            None: the completion is sampled.
        companion: A second request whose logits guide this one's; None: there is none.
        client: Identity of the sender, by which shared work such as compiling grammars is divided
            fairly; empty: unknown.
    """

    request_id: str
    token_ids: list[int]
    params: SamplingParams
    max_tokens: int
    seed: int
    child: int = 0
    stop_token_ids: tuple[int, ...] = ()
    thinking_end: MarkerTokens | None = None
    thinking_budget: ThinkingBudget | None = None
    call_openers: MarkerTokens | None = None
    adapter: AdapterRef | None = None
    media: tuple[MediaSpan, ...] = ()
    priority: int = 0
    cache_salt: str | None = None
    arrival_s: float = 0.0
    timeout_s: float | None = None
    beam_search: BeamSearchParams | None = None
    companion: Companion | None = None
    client: str = ""

    def deadline_s(self, max_timeout_s: float | None) -> float:
        """Return the time by which it must finish, on the clock of `arrival_s`.

        Args:
            max_timeout_s: Timeout of requests that name none, and the maximum for all, in seconds;
                None: no limit.

        Returns:
            Infinity without a limit.
        """
        limits = [s for s in (self.timeout_s, max_timeout_s) if s is not None]
        return self.arrival_s + min(limits, default=math.inf)


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log probabilities at one position.

    Attributes:
        token_ids: The chosen token, then the most likely ones, or those that the request names.
        logprobs: Log probability of each of `token_ids`.
        rank: Rank of the chosen token; 1 is the most likely.
    """

    token_ids: list[int]
    logprobs: list[float]
    rank: int


class ErrorReport(msgspec.Struct, frozen=True):
    """The error of a request that failed.

    Attributes:
        code: Stable name of the error type, as in `quire.errors`.
        message: Message that a client may read.
        cause: Traceback text of the underlying error, for the program that runs the engine; never
            sent to a client.
        retry_after_s: Seconds after which it makes sense to try again; 0: unknown, or never.
    """

    code: str
    message: str
    cause: str | None = None
    retry_after_s: float = 0.0


class BeamHypothesis(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A completion that a beam search has found.

    Attributes:
        token_ids: Its tokens.
        cumulative_logprob: Sum of the log probabilities of its tokens.
        finish_reason: Reason why it ends.
        stop_reason: The token id that ended it, if the caller named it.
        logprobs: Log probabilities at each of its tokens, if the request asks for them.
    """

    token_ids: list[int]
    cumulative_logprob: float
    finish_reason: FinishReason
    stop_reason: int | None = None
    logprobs: list[TokenLogprobs] | None = None


class EngineOutput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The results of one step for one request.

    Attributes:
        request_id: Id of the request.
        token_ids: Tokens generated in this step; earlier ones were in earlier outputs.
        logprobs: Log probabilities of these tokens, if the request asks for them.
        prompt_logprobs: Log probabilities of the next prompt tokens, if the request asks for them.
        finish_reason: Reason why the request finished; None while it runs.
        stop_reason: The token id that ended it, if one did.
        num_cached_tokens: Number of prompt tokens found in the prefix cache and not computed.
        error: The error, if `finish_reason` is "error".
        hypotheses: The completions of a beam search, the best first, with the last output.
        started_s: Time at which the engine began to compute it, on the clock of its arrival; in its
            first output, and 0 in the others.
        replica: Index of the engine among several replicas, likewise.
    """

    request_id: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    num_cached_tokens: int = 0
    error: ErrorReport | None = None
    hypotheses: list[BeamHypothesis] | None = None
    started_s: float = 0.0
    replica: int = 0


class CompletedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The usage and the timings of a request that has ended, by whatever cause.

    Each of the `n` completions of a prompt is a request. They share a prompt: its tokens count in
    the one whose `child` is 0.

    Attributes:
        request_id: Internal id.
        child: Index of the completion among the `n` of its prompt, from 0.
        client: Name of the API key that was used, or the address of the client; None: it did not
            come over HTTP.
        http_request_id: Id in the header `X-Request-Id` of the response; None: likewise.
        model: Name of the model that clients use.
        adapter: Name of the LoRA adapter; None: the base model.
        num_prompt_tokens: Number of tokens of the prompt.
        num_cached_tokens: Number of those that were in the prefix cache.
        num_completion_tokens: Number of generated tokens; of a beam search, in all its completions.
        finish_reason: Reason why it ended: "abort" also if the client disconnected.
        error_code: Stable name of the error, if one ended it.
        arrival_s: Time of arrival, on the monotonic clock.
        queue_s: Seconds from the arrival until the engine began to compute it; None: it never did.
        time_to_first_token_s: Seconds from the arrival until the first token; None: there is none.
        decode_s: Seconds from the first token to the last; None: there is none.
        total_s: Seconds from the arrival until its end.
        max_tokens: Largest number of tokens that it could generate.
        n: Number of completions of its prompt.
        replica: Index of the engine among several replicas.
    """

    request_id: str
    child: int
    client: str | None
    http_request_id: str | None
    model: str
    adapter: str | None
    num_prompt_tokens: int
    num_cached_tokens: int
    num_completion_tokens: int
    finish_reason: FinishReason
    error_code: str | None
    arrival_s: float
    queue_s: float | None
    time_to_first_token_s: float | None
    decode_s: float | None
    total_s: float
    max_tokens: int
    n: int
    replica: int = 0

    @property
    def prefill_s(self) -> float | None:
        """Seconds that its prompt was computed, until the first token."""
        if self.queue_s is None or self.time_to_first_token_s is None:
            return None
        return max(0.0, self.time_to_first_token_s - self.queue_s)

    @property
    def inference_s(self) -> float | None:
        """Seconds from the moment the engine began to compute it to its last token."""
        if self.prefill_s is None or self.decode_s is None:
            return None
        return self.prefill_s + self.decode_s

    @property
    def time_per_output_token_s(self) -> float | None:
        """Mean seconds between two tokens; None: there are not two."""
        if self.decode_s is None or self.num_completion_tokens < 2:
            return None
        return self.decode_s / (self.num_completion_tokens - 1)


class StepStats(msgspec.Struct, frozen=True, array_like=True):
    """One step of an engine.

    Attributes:
        num_requests: Number of requests in its batch.
        num_tokens: Number of tokens whose KV it computed.
        duration_s: Seconds that the engine spent on it: planning, waiting for the workers, and
            applying the results of the step that was complete.
        replica: Index of the engine among several replicas.
    """

    num_requests: int
    num_tokens: int
    duration_s: float
    replica: int = 0


class ReplicaStats(msgspec.Struct, frozen=True, array_like=True):
    """Gauges and counters of one of several replicas, since it was started.

    Attributes:
        is_up: Whether it takes requests.
        num_running: Number of running requests.
        num_waiting: Number of waiting requests.
        is_silent: Whether it has owed an answer for so long that it may hang. Its other values, and
            its part in the sums, are those of its last message.
        num_blocks: Number of KV blocks.
        num_used_blocks: Number of KV blocks in use by requests.
        num_preemptions: Number of preemptions.
        num_prefix_queries: Number of prompt tokens that were looked up in the prefix cache.
        num_prefix_hits: Number of prompt tokens that were found there.
    """

    is_up: bool
    num_running: int = 0
    num_waiting: int = 0
    is_silent: bool = False
    num_blocks: int = 0
    num_used_blocks: int = 0
    num_preemptions: int = 0
    num_prefix_queries: int = 0
    num_prefix_hits: int = 0


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counters and gauges of the engine after a step, for logs and metrics.

    Attributes:
        num_running: Number of running requests.
        num_waiting: Number of waiting requests.
        num_scheduled_tokens: Number of tokens that the step computed.
        num_blocks: Number of KV blocks.
        num_used_blocks: Number of KV blocks that requests use.
        num_cached_blocks: Number of KV blocks in no request's block table, ready for a hit.
        num_preemptions: Number of preemptions.
        num_evictions: Number of cached blocks that were reused for other tokens.
        num_prefix_queries: Number of prompt tokens that were looked up in the prefix cache.
        num_prefix_hits: Number of prompt tokens that were found there.
        prefix_hit_rate: Fraction of the tokens that were found, over the last requests.
        num_store_hits: Number of tokens loaded from an external KV store.
        num_grammars_waiting: Number of requests whose grammar is being compiled, or waits for it.
        num_grammars_compiled: Number of requests whose grammar was ready, or failed.
        grammar_wait_s: Time that those waited for their grammars, in total.
        replicas: Load of each replica, if the engine has several.
    """

    num_running: int = 0
    num_waiting: int = 0
    num_scheduled_tokens: int = 0
    num_blocks: int = 0
    num_used_blocks: int = 0
    num_cached_blocks: int = 0
    num_preemptions: int = 0
    num_evictions: int = 0
    num_prefix_queries: int = 0
    num_prefix_hits: int = 0
    prefix_hit_rate: float = 0.0
    num_store_hits: int = 0
    num_grammars_waiting: int = 0
    num_grammars_compiled: int = 0
    grammar_wait_s: float = 0.0
    replicas: list[ReplicaStats] = []


class IntervalStats(msgspec.Struct, frozen=True, kw_only=True):
    """The load of a server over an interval.

    Attributes:
        duration_s: Length of the interval, in seconds.
        num_steps: Number of steps that were completed.
        num_computed_tokens: Number of tokens whose KV was computed, in prompts and completions.
        num_generated_tokens: Number of generated tokens.
        num_preemptions: Number of preemptions.
        engine: Gauges of the engine at the end of the interval, and its counters since its start.
    """

    duration_s: float
    num_steps: int
    num_computed_tokens: int
    num_generated_tokens: int
    num_preemptions: int
    engine: EngineStats


class BlocksStored(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The prefix cache holds blocks from now on: consecutive ones of one sequence of tokens.

    Attributes:
        group: Index of the KV group; a prefix is found if each group has what it needs of it.
        hashes: Hash of each block, which covers all tokens until its end, adapter and cache salt.
        parent: Hash of the block before; for the first block of a sequence the hash of adapter and
            cache salt.
        position: Position of the first token in the sequence.
        token_ids: Tokens of the blocks.
        block_size: Number of tokens per block.
        adapter: Name of the LoRA adapter; None: the base model.
        cache_salt: Salt of the prefix cache, if the requests had one.
    """

    group: int
    hashes: list[bytes]
    parent: bytes
    position: int
    token_ids: list[int]
    block_size: int
    adapter: str | None = None
    cache_salt: str | None = None


class BlocksRemoved(msgspec.Struct, frozen=True, tag=True):
    """The prefix cache holds blocks of a KV group no longer."""

    group: int
    hashes: list[bytes]


class CacheCleared(msgspec.Struct, frozen=True, tag=True):
    """The prefix cache holds nothing."""


KVEvent = BlocksStored | BlocksRemoved | CacheCleared


class KVEventBatch(msgspec.Struct, frozen=True):
    """The changes of one engine's prefix cache in a step, or all that it holds.

    Attributes:
        replica: Index of the engine among several replicas; 0 if there is one.
        incarnation: Random name of the engine, another one after each start; its cache is empty at
            first.
        number: Number of the batch, from 1 on, without gaps. A snapshot has that of the last batch
            before it.
        events: Changes in order; of a snapshot, blocks to be stored in an empty set.
        is_snapshot: Whether it replaces all that was known of this replica.
    """

    replica: int
    incarnation: str
    number: int
    events: list[KVEvent]
    is_snapshot: bool = False


def num_tokens_of(output: EngineOutput) -> int:
    """Return the number of generated tokens in an output."""
    return len(output.token_ids) + sum(len(each.token_ids) for each in output.hypotheses or ())


class SharedLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The work of an engine for all of its front ends, as each of them receives it.

    Attributes:
        taken_s: Time at which the engine had taken the requests of its front ends, by
            `time.monotonic()`: one clock for all processes of a machine.
        num_open: Number of requests that have not ended.
        num_waiting: Number of those that wait for others to end.
        work_tokens: Tokens of the work before a new request, of prompts and completions.
        tokens_per_s: Rate at which the engine serves such work; None: it was not measured.
        completion_tokens: Number of tokens that a completion has on average, lately.
        token_s: Seconds from a token of a running completion to its next; 0: unknown.
        hopeless: Ids of the front end's requests that are about to begin, and could not end in
            their time; each is there once.
        num_steps: Number of steps since the start.
        num_computed_tokens: Number of tokens whose KV was computed since the start.
        num_generated_tokens: Number of tokens that were generated since the start.
    """

    taken_s: float = 0.0
    num_open: int = 0
    num_waiting: int = 0
    work_tokens: float = 0.0
    tokens_per_s: float | None = None
    completion_tokens: float = 0.0
    token_s: float = 0.0
    hopeless: list[str] = []
    num_steps: int = 0
    num_computed_tokens: int = 0
    num_generated_tokens: int = 0


class EngineOutputs(msgspec.Struct, frozen=True, omit_defaults=True):
    """The results of one step for all requests, and the engine's statistics.

    Attributes:
        outputs: Outputs of requests.
        stats: Statistics after the step.
        kv_events: Changes of the prefix cache, if they are reported.
        steps: The steps that computed something; of several replicas, those of all.
        load: Work for all front ends; None: the engine has one.
    """

    outputs: list[EngineOutput]
    stats: EngineStats
    kv_events: list[KVEventBatch] = []
    steps: list[StepStats] = []
    load: SharedLoad | None = None


class BlockCopy(msgspec.Struct, frozen=True, array_like=True):
    """A KV block to copy to another one, before anything is computed."""

    source: int
    target: int


class SlotAssignment(msgspec.Struct, frozen=True, kw_only=True):
    """The whole state of a slot, sent when a request gets it, also again after a preemption."""

    slot: int
    token_ids: list[int]  # the prompt, and the tokens generated so far
    num_computed_tokens: int  # tokens whose KV is in the blocks already
    block_ids: list[list[int]]  # per KV group
    num_prompt_tokens: int
    fields: dict[str, Any]  # sampler fields, by name
    seed: int
    child: int
    num_logprobs: int | None = None  # None: no logprobs
    num_prompt_logprobs: int | None = None  # None: none for the prompt
    logprob_token_ids: tuple[int, ...] = ()  # reported instead of the most likely tokens
    min_tokens: int = 0  # before so many, `stop_token_ids` are not sampled
    stop_token_ids: tuple[int, ...] = ()
    adapter: AdapterRef | None = None
    block_copies: list[BlockCopy] = []
    companion_slot: int | None = None  # whose logits guide this one, and which gets its tokens
    state: dict[str, float] = {}  # of sampler steps, after the last token; empty: before the first


class NewBlocks(msgspec.Struct, frozen=True, array_like=True):
    """Block ids to append to one slot's table."""

    slot: int
    group: int
    block_ids: list[int]


class TokenPatch(msgspec.Struct, frozen=True, array_like=True):
    """Token ids that the worker does not have: forced, rejected, or sampled on another stage."""

    slot: int
    position: int
    token_ids: list[int]


class ScheduledRequest(msgspec.Struct, frozen=True, array_like=True):
    """The scheduled tokens of one slot in a step."""

    slot: int
    num_tokens: int
    num_samples: int  # rows of logits to sample from: 0 for a chunk that is not the last
    draft_token_ids: list[int] = []


class PlannedTransfers(msgspec.Struct, frozen=True, array_like=True):
    """The part of a plan that is for the KV store."""

    plan_id: int
    message: bytes = b""  # from the scheduler side of the store to its worker side
    loads: list[int] = []  # ids of those that start with this step
    saves: list[int] = []


class StepPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The input of a worker for one step. Rows are in the order of `requests`.

    Attributes:
        kv_transfers: Message from the scheduler side of a KV store to its worker side.
        kv_loads: Ids of the loads that start with this step.
        kv_saves: Ids of the saves that start with it.
        kv_resent: The same parts of earlier plans, whose steps were interrupted. A worker starts
            those that it has not received, and repeats its reports since `kv_applied`.
        kv_applied: Id of the last plan whose result has reached the engine.
        stop_kv_store: Whether to stop the store for good: it releases every block, and open
            transfers fail.
        is_dummy: Whether the step computes nothing, and keeps data- and expert-parallel ranks in
            step.
    """

    plan_id: int
    requests: list[ScheduledRequest]
    assignments: list[SlotAssignment] = []
    new_blocks: list[NewBlocks] = []
    token_patches: list[TokenPatch] = []
    kv_transfers: bytes = b""
    kv_loads: list[int] = []
    kv_saves: list[int] = []
    kv_resent: list[PlannedTransfers] = []
    kv_applied: int = 0
    stop_kv_store: bool = False
    is_dummy: bool = False


class RowBitmask(msgspec.Struct, frozen=True, array_like=True):
    """The tokens that a slot may sample: bit v % 32 of word v // 32 is set if v is allowed."""

    slot: int
    sample: int  # index among the slot's samples
    words: bytes  # int32 little-endian, ceil(V / 32) of them


class SlotResult(msgspec.Struct, frozen=True, array_like=True):
    """The results of one slot in a step."""

    slot: int
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    error: ErrorReport | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    state: dict[str, float] | None = None  # of sampler steps after these tokens, if they have any


class TransferReport(msgspec.Struct, frozen=True):
    """The transfers of a KV store that ended since the last step, by their ids."""

    done: list[int] = []
    failed: list[int] = []


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a step: an entry for each request that sampled, failed or has prompt logprobs.

    The worker verifies draft tokens: a slot's `token_ids` are the accepted ones, at least one and
    at most `num_samples`.

    Attributes:
        plan_id: Id of the step plan.
        results: Results of slots. A pipeline stage that is not the last samples no tokens.
        transfers: Transfers of the KV store that have ended, if there is one.
        digest: Digest of plan id, slots, token ids and states of sampler steps, equal on all
            workers that sample the same tokens; 0 if a worker is the only one that samples them.
    """

    plan_id: int
    results: list[SlotResult]
    transfers: TransferReport | None = None
    digest: int = 0


class Started(msgspec.Struct, frozen=True):
    """The properties of an engine that are known only once it accepts requests.

    Attributes:
        max_model_len: Largest number of tokens of a request, prompt and completion together.
    """

    max_model_len: int


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of a worker that are known only once the weights are in memory.

    Attributes:
        kv_bytes: Number of bytes of memory for the KV cache that each rank has, in order.
        is_asynchronous: Whether a launched step runs while the host continues.
    """

    kv_bytes: list[int]
    is_asynchronous: bool = False


class LoadAdapter(msgspec.Struct, frozen=True, tag=True):
    """Load an adapter into the workers, so that its first request does not wait. Returns nothing.

    Fails with an AdapterError if the adapter cannot be used with the model.
    """

    adapter: AdapterRef


class ResetPrefixCache(msgspec.Struct, frozen=True, tag=True):
    """Clear the prefix cache. Running requests continue, but later ones do not share their blocks.

    Returns nothing.
    """


class ReadKVSnapshot(msgspec.Struct, frozen=True, tag=True):
    """Return the contents of the prefix cache: a `KVEventBatch` of each replica.

    The list is empty if changes are not reported.
    """


class ReadBlockMap(msgspec.Struct, frozen=True, tag=True):
    """Return which requests hold the KV blocks: a `BlockMap` of each engine.

    Readers that ask often get the same map again, so all of them together cost the engine at most
    1 % of its time.

    Attributes:
        max_cells: Largest number of cells of a map.
    """

    max_cells: int


class BlockState(IntEnum):
    """Holders of a KV block that are no single running request."""

    NULL = 0  # the block that padding is written to
    FREE = 1
    HELD = 2  # a transfer, or a step in flight of a request that has ended
    SHARED = 3  # several running requests


FIRST_OWNER = 4


class BlockMap(msgspec.Struct, frozen=True, array_like=True):
    """The holders of the KV blocks of one engine.

    Attributes:
        replica: Index of the engine among several replicas.
        num_blocks: Number of KV blocks in its pool.
        blocks_per_cell: Number of blocks per cell; the cell shows the first of them.
        codes: Code of each cell, 16 bits in the byte order of the machine: twice its holder, plus 1
            if the prefix cache has the block. A holder is a `BlockState`, or `FIRST_OWNER` plus the
            slot of the running request.
    """

    replica: int
    num_blocks: int
    blocks_per_cell: int
    codes: bytes


class RankPlace(msgspec.Struct, frozen=True, array_like=True):
    """Place of a rank: its machine, and the address on which other machines reach it.

    Attributes:
        node: Name of its machine, for people.
        node_id: Identity of its node: ranks with the same one can share memory.
        address: IP address of the interface on which it listens for ranks of other nodes.
        device: Index of its GPU among those that its process can use; without meaning on a CPU.
    """

    node: str
    node_id: str
    address: str
    device: int


Control = LoadAdapter | ResetPrefixCache | ReadKVSnapshot | ReadBlockMap
WorkerControl = LoadAdapter  # the commands that are forwarded to the workers
