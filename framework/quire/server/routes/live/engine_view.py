"""What GET /v1/engine returns: the load of the engine now, without any name of a request."""

from typing import Literal

import msgspec


class BlockMapView(msgspec.Struct, frozen=True, kw_only=True):
    """The holders of the KV blocks, in cells of one or more blocks.

    Attributes:
        num_blocks: Number of KV blocks in the pool, block 0 included, which padding is written to.
        blocks_per_cell: Number of blocks that a cell stands for; it shows the first of them.
        runs: Pairs of a code and a number of cells that have it, one pair after the other. A code
            is twice the holder, plus 1 if the prefix cache has the block. Holders: 0 the null
            block, 1 none, 2 a transfer or a request that has just ended, 3 several requests, and
            from 4 on a running request, by a number that it keeps while it runs.
        age_s: Seconds since the map was received from the engine.
    """

    num_blocks: int
    blocks_per_cell: int
    runs: list[int]
    age_s: float


class ReplicaView(msgspec.Struct, frozen=True, kw_only=True):
    """The load of an engine, or of one of several replicas.

    Attributes:
        index: Index among the replicas.
        is_up: Whether it takes requests.
        is_silent: Whether it owes an answer for so long that it may hang.
        num_running: Number of running requests.
        num_waiting: Number of waiting requests.
        num_blocks: Number of KV blocks.
        num_used_blocks: Number of KV blocks in use by requests.
        num_preemptions: Number of preemptions since its start.
        num_prefix_queries: Number of prompt tokens looked up in the prefix cache since its start.
        num_prefix_hits: Number of prompt tokens found there.
        steps_per_s: Steps per second, lately; null: not measured yet.
        step_s: Mean seconds of a step, lately; null: there was none.
        block_map: Holders of its KV blocks; null: it has not reported them.
    """

    index: int
    is_up: bool
    is_silent: bool
    num_running: int
    num_waiting: int
    num_blocks: int
    num_used_blocks: int
    num_preemptions: int
    num_prefix_queries: int
    num_prefix_hits: int
    steps_per_s: float | None = None
    step_s: float | None = None
    block_map: BlockMapView | None = None


class EngineView(msgspec.Struct, frozen=True, kw_only=True):
    """The engine at one moment.

    Attributes:
        object: Always "engine".
        state: "ready", "failing", "stalled", "draining" or "dead".
        time: Time, in seconds since 1970.
        interval_s: Seconds over which rates are measured; null: not measured yet.
        num_running: Number of running requests.
        num_waiting: Number of waiting requests.
        num_cached_blocks: Number of KV blocks that no request uses, ready for a prefix hit.
        num_evictions: Number of cached blocks that were reused for other tokens.
        num_steps: Number of steps since the start.
        num_computed_tokens: Number of tokens whose KV was computed since the start.
        num_generated_tokens: Number of generated tokens since the start.
        computed_tokens_per_s: Computed tokens per second, of prompts and completions.
        generated_tokens_per_s: Generated tokens per second.
        prefix_hit_rate: Fraction of prompt tokens found in the prefix cache, over the last
            requests.
        draft_acceptance_rate: Fraction of draft tokens that were accepted; null: there are none.
        replicas: The engine, or each of its replicas.
    """

    object: Literal["engine"] = "engine"
    state: str
    time: float
    interval_s: float | None
    num_running: int
    num_waiting: int
    num_cached_blocks: int
    num_evictions: int
    num_steps: int
    num_computed_tokens: int
    num_generated_tokens: int
    computed_tokens_per_s: float | None
    generated_tokens_per_s: float | None
    prefix_hit_rate: float
    draft_acceptance_rate: float | None = None
    replicas: list[ReplicaView]
