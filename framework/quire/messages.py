"""What the rooms say to each other. Plain data, no behaviour, no torch; all of it is msgpack.

frontend -> engine   EngineRequest, and request ids to abort
engine -> worker     StepPlan: who computes how many tokens, and what changed since the last plan
worker -> engine     StepResult
engine -> frontend   EngineOutputs, one message a step
anybody -> engine    Control: what is done between two steps; some of it goes on to the workers

A running request owns a slot: a row in the worker's tables, the same one as long as it runs. A plan
names slots and sends differences only: a slot's whole state once, when it is given out, and after
that the block ids that were added.
"""

from typing import Any, Literal

import msgspec

from quire.sampling_params import SamplingParams

FinishReason = Literal["stop", "length", "abort", "error"]


class AdapterRef(msgspec.Struct, frozen=True):
    """A LoRA adapter, by the name that requests use and the content that was loaded.

    Attributes:
        name: What requests call it.
        path: Where its files lie.
        content_hash: Of its files, part of the prefix-cache key; set by us, never by a client.
        source: Name of the LoRA source that reads it; empty: the chosen one.
    """

    name: str
    path: str
    content_hash: str = ""
    source: str = ""


class MediaSpan(msgspec.Struct, frozen=True, array_like=True):
    """An image, video or audio clip behind placeholder tokens of a prompt.

    Attributes:
        position: Of the first placeholder token.
        length: Number of placeholder tokens.
        content_hash: Of its bytes; set by us, never by a client.
    """

    position: int
    length: int
    content_hash: str


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Ask the engine to generate after a prompt.

    Attributes:
        request_id: Made by us; a client's id is never used inside.
        token_ids: The prompt. Generated tokens are in the outputs.
        params: What the caller asked for.
        fields: Every request field of the samplers in use, checked and resolved, by name.
        max_tokens: Tokens to generate at most. Never None: prompt and completion fit the model.
        seed: With `child`, all the randomness of this request; drawn where the caller gave none.
        child: Which of the `n` completions of one prompt, from 0.
        stop_token_ids: The model's end-of-text ids and the caller's.
        thinking_end_token_id: A structured output begins behind this token; None: at the start.
        adapter: The LoRA adapter; None: the model alone.
        media: Images, videos and sounds of the prompt.
        priority: Smaller goes first, if the scheduling policy reads it.
        cache_salt: Prefixes are shared only among requests of the same salt.
        arrival_s: When the request arrived, by `time.monotonic()` of the frontend's process.
        timeout_s: Seconds from the arrival after which it fails; None: the engine's limit, if any.
    """

    request_id: str
    token_ids: list[int]
    params: SamplingParams
    fields: dict[str, Any] = {}
    max_tokens: int
    seed: int
    child: int = 0
    stop_token_ids: tuple[int, ...] = ()
    thinking_end_token_id: int | None = None
    adapter: AdapterRef | None = None
    media: tuple[MediaSpan, ...] = ()
    priority: int = 0
    cache_salt: str | None = None
    arrival_s: float = 0.0
    timeout_s: float | None = None


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log probabilities at one position.

    Attributes:
        token_ids: The chosen token first, then the likeliest ones.
        logprobs: Of each of them.
        rank: Of the chosen token; 1 is the likeliest.
    """

    token_ids: list[int]
    logprobs: list[float]
    rank: int


class ErrorReport(msgspec.Struct, frozen=True):
    """Why a request failed.

    Attributes:
        code: Stable name of the kind of error that it becomes, as in `quire.errors`.
        message: What a client may read.
        cause: What it comes from, as the text of a traceback: for the program that runs the engine,
            and never for a client.
    """

    code: str
    message: str
    cause: str | None = None


class EngineOutput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a step added to one request.

    Attributes:
        request_id: The request's.
        token_ids: Generated in this step; earlier ones came in earlier outputs.
        logprobs: Of these tokens, if the request asks for them.
        prompt_logprobs: Of the prompt tokens that came next, if the request asks for them.
        finish_reason: Why the request is over; None: it goes on.
        stop_reason: The token id that ended it, if one did.
        num_cached_tokens: Prompt tokens that were not computed, as the prefix cache had them.
        error: Why it failed, if `finish_reason` is "error".
    """

    request_id: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    num_cached_tokens: int = 0
    error: ErrorReport | None = None


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """A few numbers a step, for logs and metrics."""

    num_running: int = 0
    num_waiting: int = 0
    num_scheduled_tokens: int = 0
    num_blocks: int = 0
    num_used_blocks: int = 0
    num_cached_blocks: int = 0  # in no request's table, and ready for a prefix hit
    num_preemptions: int = 0
    num_evictions: int = 0  # cached blocks that were given away
    num_prefix_queries: int = 0  # prompt tokens that were looked up in the prefix cache
    num_prefix_hits: int = 0  # of those, found
    prefix_hit_rate: float = 0.0  # over the last requests
    num_store_hits: int = 0  # tokens that an outside KV store brought


class EngineOutputs(msgspec.Struct, frozen=True):
    """All that one step has to say."""

    outputs: list[EngineOutput]
    stats: EngineStats


class SlotAssignment(msgspec.Struct, frozen=True, kw_only=True):
    """The whole state of a slot, sent when a request receives it (also after a preemption)."""

    slot: int
    token_ids: list[int]  # all that are known: the prompt, and what was generated before
    num_computed_tokens: int  # tokens whose KV lies in the blocks already
    block_ids: list[list[int]]  # per KV group
    num_prompt_tokens: int
    fields: dict[str, Any]  # sampler fields, by name
    seed: int
    child: int
    num_logprobs: int | None = None  # None: no logprobs
    num_prompt_logprobs: int | None = None  # None: none for the prompt
    min_tokens: int = 0  # before so many, `stop_token_ids` are not drawn
    stop_token_ids: tuple[int, ...] = ()
    adapter: AdapterRef | None = None


class NewBlocks(msgspec.Struct, frozen=True, array_like=True):
    """Block ids to append to one slot's table."""

    slot: int
    group: int
    block_ids: list[int]


class TokenPatch(msgspec.Struct, frozen=True, array_like=True):
    """Tokens that the worker cannot know: forced, rejected, or sampled on another stage."""

    slot: int
    position: int
    token_ids: list[int]


class ScheduledRequest(msgspec.Struct, frozen=True, array_like=True):
    """The share of one slot in a step."""

    slot: int
    num_tokens: int
    num_samples: int  # rows of logits to sample from: 0 for a chunk that is not the last
    draft_token_ids: list[int] = []


class StepPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a worker needs to compute one step. Rows are in the order of `requests`."""

    plan_id: int
    requests: list[ScheduledRequest]
    assignments: list[SlotAssignment] = []
    new_blocks: list[NewBlocks] = []
    token_patches: list[TokenPatch] = []
    kv_transfers: bytes = b""  # from the scheduler's half of a KV store to the worker's
    kv_loads: list[int] = []  # the transfers that begin with it, by their ids
    kv_saves: list[int] = []
    has_transfers: bool = False  # some have not ended: the store is asked, if only for that
    stop_kv_store: bool = False  # for ever: it is to let go of every block, and what is open fails
    is_dummy: bool = False  # keeps data- and expert-parallel ranks in step


class RowBitmask(msgspec.Struct, frozen=True, array_like=True):
    """Which tokens a slot may take: bit v of word v // 32 of the row says whether token v may."""

    slot: int
    sample: int  # which of the slot's samples
    words: bytes  # int32 little-endian, ceil(V / 32) of them


class SlotResult(msgspec.Struct, frozen=True, array_like=True):
    """What one slot received."""

    slot: int
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    error: ErrorReport | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None


class TransferReport(msgspec.Struct, frozen=True):
    """Which transfers of a KV store ended since the last step, by their ids."""

    done: list[int] = []
    failed: list[int] = []


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a step computed: an entry for each request that sampled, failed or has prompt logprobs.

    Drafts are verified by the worker: a slot's `token_ids` are those that hold, at least one and at
    most `num_samples`.
    """

    plan_id: int
    results: list[SlotResult]
    transfers: TransferReport | None = None


class LoadFailures(msgspec.Struct, frozen=True):
    """What was chosen and turned out, while it loaded, not to serve on this machine.

    Attributes:
        kernels: Why native kernels of layers do not; None: they do, or were not chosen.
        quantization: Why the kernels of linear layers' weights do not, likewise.
        samplers: Why the kernels of sampler steps do not, likewise.
        attention_backends: Those that do not, by name, with their reasons.
    """

    kernels: str | None = None
    quantization: str | None = None
    samplers: str | None = None
    attention_backends: dict[str, str] = {}


class Started(msgspec.Struct, frozen=True):
    """What is known of an engine once it takes requests, and was not before.

    Attributes:
        max_model_len: Tokens of the longest request that it takes.
        failures: What another part had to take the place of.
    """

    max_model_len: int
    failures: LoadFailures = LoadFailures()


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker knows once the weights are in memory."""

    device: str
    dtype: str
    weight_bytes: int
    available_kv_bytes: int
    is_asynchronous: bool = False  # a launched step computes while the host goes on
    failures: LoadFailures = LoadFailures()


class LoadAdapter(msgspec.Struct, frozen=True, tag=True):
    """Have the workers hold an adapter, so that its first request does not wait. No answer.

    The answer may be an error: an AdapterError if it cannot be used with the model.
    """

    adapter: AdapterRef


class ResetPrefixCache(msgspec.Struct, frozen=True, tag=True):
    """Forget all cached prefixes; running requests go on, unseen by later ones. No answer."""


Control = LoadAdapter | ResetPrefixCache
WorkerControl = LoadAdapter  # those that concern the workers
