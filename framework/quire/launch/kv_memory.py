"""Give the KV cache what the weights have left, and of a host's memory no more than is of use."""

import logging
from dataclasses import replace

from quire.compose.compose import layer_specs
from quire.compose.composition import Choice, Composition
from quire.config import Settings
from quire.engine.kv_cache.kv_plan import (
    NULL_BLOCKS,
    blocks_held,
    fixed_plan,
    longest_request,
    plan_kv_cache,
)
from quire.errors import CapacityError, RefusedError
from quire.interfaces.attention import AttentionCapabilities
from quire.interfaces.kv_cache import KVPlan
from quire.plugins.loading import Registries

NUM_KEPT_REQUESTS = 16  # with a host's memory, as others live there too: whose turn comes again

logger = logging.getLogger(__name__)


def plan_memory(
    settings: Settings, composition: Composition, registries: Registries, available_bytes: int
) -> KVPlan:
    """Plan the KV cache of a loaded model.

    Args:
        settings: What the user asked for.
        composition: What was chosen.
        registries: Where the KV-cache specs are found.
        available_bytes: What the worker has left.

    Raises:
        CapacityError: The cache, or the longest request that was asked for, does not fit.
        RefusedError: An attention backend cannot use the blocks that the plan needs.
    """
    plan = _plan_blocks(settings, composition, registries, available_bytes)
    _check_backends(composition, plan)
    return replace(plan, max_model_len=_fitting_length(settings, composition, plan))


def planned_requests(settings: Settings, composition: Composition) -> int | None:
    """Return for how many requests, each as long as can be, the cache has room if memory allows.

    Those that run; and, to keep prefixes, a few more on a host, whose memory belongs to others too,
    and all that it may take (None) on a device or where a size is given.
    """
    num_running = settings.scheduler.max_running
    if not settings.cache.enable_prefix_caching:
        return num_running
    is_told = settings.cache.kv_cache_memory_bytes is not None
    return None if is_told or composition.device != "cpu" else num_running + NUM_KEPT_REQUESTS


def log_memory(plan: KVPlan) -> None:
    """Say in the log what the cache takes."""
    logger.info(
        "KV cache: %d blocks of %d tokens in %d group(s), %.1f MB",
        plan.num_blocks - 1,
        plan.block_size,
        len(plan.groups),
        plan.num_bytes / 1e6,
    )


def _plan_blocks(
    settings: Settings, composition: Composition, registries: Registries, available_bytes: int
) -> KVPlan:
    specs = layer_specs(settings, composition, registries)
    if settings.cache.num_kv_blocks is not None:
        return fixed_plan(specs, settings.cache.num_kv_blocks)
    return plan_kv_cache(
        specs,
        settings.cache.kv_cache_memory_bytes or available_bytes,
        composition.max_model_len,
        planned_requests(settings, composition),
        settings.scheduler.max_num_batched_tokens,
    )


def _check_backends(composition: Composition, plan: KVPlan) -> None:
    """Check what could not be asked before there was a plan.

    Raises:
        RefusedError: A backend cannot do it.
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
            f"attention backend {backend.name!r} serves {', '.join(map(str, sorted(sizes)))}; "
            "choose another with attention_backend"
        )


def _check_padding(backend: Choice) -> None:
    capabilities: AttentionCapabilities = backend.entry.capabilities
    if not capabilities.padded_pages:
        raise RefusedError(
            "the layers of this model share memory, and keep more in a block in some than in "
            f"others; attention backend {backend.name!r} does not support such padded pages; "
            "choose another with attention_backend"
        )


def _fitting_length(settings: Settings, composition: Composition, plan: KVPlan) -> int:
    """Return the longest request that fits the cache and the model.

    Raises:
        CapacityError: The user asks for a longer one.
    """
    wanted = composition.max_model_len
    step = settings.scheduler.max_num_batched_tokens
    longest = longest_request(plan, wanted, step)
    if longest == wanted:
        return wanted
    if settings.model.max_model_len is not None or longest < 2:
        raise CapacityError(_what_would_fit(plan, wanted, longest, step))
    logger.warning(
        "max_model_len is %d, not the model's %d: that is what fits the KV cache of %d blocks (%s "
        "bytes). A larger one takes longer requests (kv_cache_memory_bytes, num_kv_blocks); with "
        "max_model_len an engine starts with that length or not at all",
        longest,
        wanted,
        plan.num_blocks - NULL_BLOCKS,
        f"{plan.num_bytes:,}",
    )
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
