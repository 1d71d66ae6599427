"""Estimate of a GPU's memory profile from the model's sizes, without a GPU or torch.

`quire explain` uses it; the worker measures the same profile at start-up. The workspace of
attention backends is not included, because only their code computes it.
"""

import math

from quire.compose.choices.kernel_choice import num_captures
from quire.compose.composition import Composition
from quire.compose.sizes.memory_profile import LOGIT_BYTES, MemoryProfile, captured_bytes, groups_of
from quire.config import Settings
from quire.interfaces.field_types import Column, FieldType
from quire.interfaces.kv_cache import DTYPE_BYTES, KVCacheSpec
from quire.machine.nvml import DeviceMemory

DRIVER_BYTES = 512 * 2**20  # of the driver, for a process that computes with torch
SAMPLING_COPIES = 9  # copies of the logits at the peak of sampling, with sorts
ITEM_BYTES = 32  # of one item of a request field, in a row of a sampler step
ROTATION_COPIES = {  # copies of q and k in their norm and rotary embedding
    "torch": 6,
    "triton": 2,
}
GATE_COPIES = {  # copies of the MLP's intermediate activations; gate and up are two of them
    "torch": 4,
    "triton": 3,
}
TABLE_ENTRY_BYTES = 4
POSITION_BYTES = 8
TOKEN_ARRAYS = 3  # inputs of a step with one element per token; plus one per KV group
REQUEST_BYTES = 32  # inputs of a step per request, sent by the host


def estimate_profile(
    settings: Settings,
    composition: Composition,
    weight_bytes: int,
    specs: list[KVCacheSpec],
    memory: DeviceMemory,
    *,
    is_last_stage: bool = True,
) -> MemoryProfile:
    """Estimate the memory profile that the worker will measure.

    Args:
        settings: Settings with the limits of a step.
        composition: Composition of the engine.
        weight_bytes: Bytes of the model's weights on the device.
        specs: KV-cache specs of the layers on the device that have KV.
        memory: Current memory of the device.
        is_last_stage: Whether the device samples.
    """
    num_requests = settings.scheduler.max_running
    num_tokens = settings.scheduler.max_num_batched_tokens
    num_tokens = min(num_tokens, num_requests * composition.max_model_len)
    largest, vocab_size = composition.cuda_graphs.value, composition.description.vocab_size
    token_bytes = activation_bytes(settings, composition)
    graph_bytes = 0
    if largest:
        num_logits = vocab_size if is_last_stage else 0
        logits = num_logits * DTYPE_BYTES[composition.hidden_dtype]
        num_graphs = num_captures(composition, is_last_stage=is_last_stage)
        graph_bytes = captured_bytes(num_graphs, largest, num_logits)
        graph_bytes += largest * (token_bytes + logits)
    return MemoryProfile(
        total_bytes=memory.total,
        other_bytes=memory.total - memory.free + DRIVER_BYTES,
        weight_bytes=weight_bytes,
        forward_bytes=num_tokens * token_bytes,
        sampling_bytes=num_requests * _sampling_bytes(composition) if is_last_stage else 0,
        table_bytes=_table_bytes(settings, composition, specs)
        + _input_bytes(settings, composition, specs),
        graph_bytes=graph_bytes,
        is_estimated=True,
    )


def activation_bytes(settings: Settings, composition: Composition) -> int:
    """Return the bytes of one token at the peak of a forward pass, in attention or in the MLP."""
    description, tp_size = composition.description, settings.parallel.tensor_parallel_size
    hidden = description.hidden_size
    layer = max(description.kv_layers, key=lambda layer: layer.head_dim, default=None)
    head_dim = layer.head_dim if layer else hidden // description.num_heads
    num_kv_heads = layer.num_kv_heads if layer else description.num_heads
    q, kv = description.num_heads // tp_size * head_dim, max(1, num_kv_heads // tp_size) * head_dim
    inner = int(description.config.get("intermediate_size") or 4 * hidden) // tp_size
    rotation = ROTATION_COPIES[composition.kernels.value] * (q + kv)
    attention, mlp = q + 2 * kv + rotation, GATE_COPIES[composition.kernels.value] * inner
    num_elements = 2 * hidden + max(attention, mlp) + 2 * head_dim
    return num_elements * DTYPE_BYTES[composition.hidden_dtype]


def _sampling_bytes(composition: Composition) -> int:
    """Return the bytes of one row at the peak of sampling: of its logits, or of a wide field."""
    vocab_size = composition.description.vocab_size
    row_bytes = vocab_size * LOGIT_BYTES
    widths = [column.shape[0] for column in _columns(composition)]
    return max(row_bytes * SAMPLING_COPIES, 2 * row_bytes + max(widths, default=0) * ITEM_BYTES)


def _columns(composition: Composition) -> list[Column]:
    """Return the device columns of the request fields that are more than a number."""
    return [
        column
        for field in composition.sampler_fields
        if isinstance(field.type, FieldType)
        for column in field.type.columns(composition.description.vocab_size)
    ]


def _table_bytes(settings: Settings, composition: Composition, specs: list[KVCacheSpec]) -> int:
    num_blocks = _blocks_a_request(composition, specs)
    num_cells = sum(math.prod(column.shape) for column in _columns(composition))
    width = composition.max_model_len + num_blocks + num_cells
    entries = settings.scheduler.max_num_seqs * width
    return entries * TABLE_ENTRY_BYTES


def _input_bytes(settings: Settings, composition: Composition, specs: list[KVCacheSpec]) -> int:
    """Return the bytes of the buffers in which kernels gather a step's inputs."""
    if composition.kernels.value != "triton":
        return 0
    scheduler = settings.scheduler
    num_groups = sum(count for _, count in groups_of(specs))
    tokens = max(scheduler.max_num_batched_tokens, scheduler.max_num_seqs)
    request = _blocks_a_request(composition, specs) * TABLE_ENTRY_BYTES + REQUEST_BYTES
    arrays = (TOKEN_ARRAYS + num_groups) * tokens * POSITION_BYTES
    return arrays + scheduler.max_num_seqs * request


def _blocks_a_request(composition: Composition, specs: list[KVCacheSpec]) -> int:
    return sum(
        num_groups * spec.blocks_needed(composition.max_model_len)
        for spec, num_groups in groups_of(specs)
    )
