"""Size and plan of the KV cache, from the memory that the weights leave free.

On a CPU, the cache takes no more than the planned requests need, because other programs share the
memory.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

from quire.compose.composition import Choice, Composition
from quire.compose.sizes.layer_specs import layer_specs, stage_specs
from quire.config import Settings
from quire.engine.kv_cache.kv_plan import (
    NULL_BLOCKS,
    StageMemory,
    blocks_held,
    fixed_stages,
    longest_request,
    plan_stages,
)
from quire.errors import CapacityError, RefusedError
from quire.interfaces.attention import AttentionCapabilities
from quire.interfaces.kv_cache import KVPlan
from quire.plugins.loading import Registries

NUM_KEPT_REQUESTS = 16  # on a CPU: finished requests whose KV is kept for prefix cache hits

logger = logging.getLogger(__name__)


def plan_memory(
    settings: Settings,
    composition: Composition,
    registries: Registries,
    kv_bytes: Sequence[int],
) -> list[KVPlan]:
    """Plan the KV cache of a loaded model on each pipeline stage.

    All stages have the same number of blocks, and the same maximum length of a request.

    Args:
        settings: Settings as given by the user.
        composition: Composition of the engine.
        registries: Registries of the installed plugins.
        kv_bytes: Bytes that each rank has left for the cache, in order.

    Raises:
        CapacityError: The cache, or a request of the `max_model_len` that is set, does not fit.
        RefusedError: An attention backend does not support the blocks of the plan.
    """
    stage_bytes = _stage_bytes(composition, kv_bytes)
    plans = _plan_blocks(settings, composition, registries, stage_bytes)
    for plan in plans:
        _check_backends(composition, plan)
    largest = max(plans, key=lambda plan: plan.num_bytes)
    length = _fitting_length(settings, composition, largest)
    tp_size = composition.grid.tp_size
    return [
        replace(plan, max_model_len=length, rank=tp_size * stage)
        for stage, plan in enumerate(plans)
    ]


def planned_requests(settings: Settings, composition: Composition) -> int | None:
    """Return the number of requests of maximum length that the cache is planned for.

    Without prefix caching that is the number of running requests. With prefix caching the cache
    takes all memory (None), but on a CPU, which other programs share, only a few requests more.

    Returns:
        Number of requests; None: the cache takes all memory that it may.
    """
    num_running = settings.scheduler.max_running
    if not settings.cache.enable_prefix_caching:
        return num_running
    is_given = settings.cache.kv_cache_memory_bytes is not None
    return None if is_given or composition.device != "cpu" else num_running + NUM_KEPT_REQUESTS


def log_memory(plans: Sequence[KVPlan]) -> None:
    """Log the size of the cache on each rank of every pipeline stage."""
    logger.info(
        "KV cache: %d blocks of %d tokens in %d group(s), %s MB%s",
        plans[0].num_blocks - 1,
        plans[0].block_size,
        len(plans[0].groups),
        " and ".join(f"{plan.num_bytes / 1e6:.1f}" for plan in plans),
        "" if len(plans) == 1 else " on each rank of the pipeline stages",
    )


def log_reduction(composition: Composition, plans: Sequence[KVPlan]) -> None:
    """Log a warning if the plan of the cache has shortened the longest request."""
    plan = max(plans, key=lambda plan: plan.num_bytes)
    if plan.max_model_len == composition.max_model_len:
        return
    logger.warning(
        "max_model_len is reduced to %d from the model's %d to fit the KV cache of %d blocks (%s "
        "bytes). For longer requests, increase kv_cache_memory_bytes or num_kv_blocks; set "
        "max_model_len to make start-up fail instead if a length does not fit",
        plan.max_model_len,
        composition.max_model_len,
        plan.num_blocks - NULL_BLOCKS,
        f"{plan.num_bytes:,}",
    )


def _stage_bytes(composition: Composition, kv_bytes: Sequence[int]) -> list[int]:
    """Return the bytes for the cache on each rank of a stage, by stage.

    Args:
        composition: Composition of the engine.
        kv_bytes: Bytes that each rank has left for the cache, as it measured them. On a CPU,
            ranks share the host's memory, and the last one to load saw what is left for all.
    """
    tp_size, pp_size = composition.grid.tp_size, composition.grid.pp_size
    if composition.device == "cpu":
        return [min(kv_bytes)] * pp_size
    return [min(kv_bytes[tp_size * stage :][:tp_size]) for stage in range(pp_size)]


def _plan_blocks(
    settings: Settings,
    composition: Composition,
    registries: Registries,
    stage_bytes: Sequence[int],
) -> list[KVPlan]:
    stages = stage_specs(composition, layer_specs(settings, composition, registries))
    if settings.cache.num_kv_blocks is not None:
        return fixed_stages(stages, settings.cache.num_kv_blocks)
    given = settings.cache.kv_cache_memory_bytes
    return plan_stages(
        [
            StageMemory(specs, available if given is None else given)
            for specs, available in zip(stages, stage_bytes, strict=True)
        ],
        composition.max_model_len,
        planned_requests(settings, composition),
        settings.scheduler.max_num_batched_tokens,
    )


def _check_backends(composition: Composition, plan: KVPlan) -> None:
    """Check that the attention backends support the block size and the padding of the plan.

    Raises:
        RefusedError: A backend does not.
    """
    padded = plan.padded_layers
    for group in plan.groups:
        for spec in group.layer_specs:
            backend = composition.attention_backend_of(spec.layer)
            _check_block_size(backend, plan.block_size)
            if spec.layer.name in padded:
                _check_padding(backend)


def _check_block_size(backend: Choice, block_size: int) -> None:
    capabilities: AttentionCapabilities = backend.entry.capabilities
    sizes = capabilities.block_sizes
    if sizes is not None and block_size not in sizes:
        raise RefusedError(
            f"the layers of this model share memory in blocks of {block_size} tokens, and "
            f"attention backend {backend.name!r} supports {', '.join(map(str, sorted(sizes)))}; "
            "choose another backend with attention_backend"
        )


def _check_padding(backend: Choice) -> None:
    capabilities: AttentionCapabilities = backend.entry.capabilities
    if not capabilities.padded_pages:
        raise RefusedError(
            "the layers of this model share memory blocks and differ in bytes per block, so that "
            f"some are padded; attention backend {backend.name!r} does not support padded pages; "
            "choose another backend with attention_backend"
        )


def _fitting_length(settings: Settings, composition: Composition, plan: KVPlan) -> int:
    """Return the maximum length of a request that fits the cache and the model.

    Raises:
        CapacityError: It is less than the `max_model_len` that is set, or less than 2.
    """
    wanted = composition.max_model_len
    step = settings.scheduler.max_num_batched_tokens
    longest = longest_request(plan, wanted, step)
    if longest == wanted:
        return wanted
    if settings.model.max_model_len is not None or longest < 2:
        raise CapacityError(_what_would_fit(plan, wanted, longest, step))
    return longest


def _what_would_fit(plan: KVPlan, wanted: int, longest: int, max_step_tokens: int) -> str:
    needed = blocks_held(plan, wanted - 1, max_step_tokens)
    num_blocks = needed + NULL_BLOCKS
    num_bytes = plan.num_bytes // plan.num_blocks * num_blocks
    shorter = f"set max_model_len to at most {longest}, or " if longest > 1 else ""
    steps = ""
    if longest_request(plan, wanted, plan.block_size) > longest:
        steps = ", or compute in smaller steps (max_num_batched_tokens)"
    return (
        f"one request of {wanted} tokens (max_model_len) needs {needed:,} blocks of "
        f"{plan.block_size} tokens, and the KV cache has {plan.num_blocks - NULL_BLOCKS:,} blocks "
        f"({plan.num_bytes:,} bytes); {shorter}give the cache {num_bytes:,} bytes "
        f"(kv_cache_memory_bytes) or {num_blocks:,} blocks (num_kv_blocks){steps}"
    )
