"""The layout of GGUF files: llama.cpp's names, and for Llama another order of rows.

For Llama, rows of queries and keys are in the order of rotary pairs, as in Mistral's own layout;
the files of other architectures have the order of Hugging Face.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from quire.compose.gguf.model_config import EMBEDDING, ROPE_FACTORS
from quire.errors import CheckpointCorruptError
from quire.interfaces.checkpoint_tensors import CheckpointTensor, Tensors
from quire.interfaces.weight_rules import WeightRule, WeightRules
from quire.worker.loading.formats.consolidated import halves_from_pairs

LAYER = "model.layers.{layer}"
QUERIES, KEYS = "blk.{layer}.attn_q", "blk.{layer}.attn_k"
NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "blk.{layer}.attn_norm": f"{LAYER}.input_layernorm",
    "blk.{layer}.ffn_norm": f"{LAYER}.post_attention_layernorm",
    QUERIES: f"{LAYER}.self_attn.q_proj",
    KEYS: f"{LAYER}.self_attn.k_proj",
    "blk.{layer}.attn_v": f"{LAYER}.self_attn.v_proj",
    "blk.{layer}.attn_output": f"{LAYER}.self_attn.o_proj",
    "blk.{layer}.attn_q_norm": f"{LAYER}.self_attn.q_norm",
    "blk.{layer}.attn_k_norm": f"{LAYER}.self_attn.k_norm",
    "blk.{layer}.ffn_gate": f"{LAYER}.mlp.gate_proj",
    "blk.{layer}.ffn_up": f"{LAYER}.mlp.up_proj",
    "blk.{layer}.ffn_down": f"{LAYER}.mlp.down_proj",
}
RULES = WeightRules(WeightRule(theirs, (ours,)) for theirs, ours in NAMES.items())
PAIRED = frozenset({"llama"})  # model types whose queries and keys are in rotary pairs


def is_gguf_layout(tensors: Tensors) -> bool:
    """Return whether tensors have llama.cpp's names."""
    return EMBEDDING in tensors


def from_gguf(tensors: Tensors, config: Mapping[str, Any]) -> dict[str, CheckpointTensor]:
    """Return the tensors of GGUF files as in the layout of Hugging Face.

    Matrices in blocks are rows of bytes, whose order changes as that of numbers does. The factors
    of the rotary embedding are left out: they are in the config. Tensors without a known name keep
    theirs, so that errors list them.

    Args:
        tensors: Tensors of the files.
        config: Config of the model, in the layout of Hugging Face.

    Raises:
        CheckpointCorruptError: The rows of a query or key projection are not whole heads.
    """
    head_dim = config["head_dim"] if config.get("model_type") in PAIRED else None
    renamed = (
        _renamed(tensor, head_dim) for name, tensor in tensors.items() if name != ROPE_FACTORS
    )
    return {tensor.name: tensor for tensor in renamed}


def _renamed(tensor: CheckpointTensor, head_dim: int | None) -> CheckpointTensor:
    """Return a tensor under the model's name.

    Args:
        tensor: Tensor of a file.
        head_dim: Size of the heads, if their rows are in rotary pairs.
    """
    match = RULES.match(tensor.name)
    if match is None:
        return tensor
    (name,) = match.part_names()
    if head_dim is None or match.rule.checkpoint not in (QUERIES, KEYS):
        return CheckpointTensor(name, tensor.shape, tensor.stored)
    if tensor.shape[0] % head_dim:
        raise CheckpointCorruptError(
            f"tensor {tensor.name} has shape {list(tensor.shape)}, whose rows are no whole heads "
            f"of {head_dim}"
        )
    reorder = partial(halves_from_pairs, head_dim=head_dim)
    return CheckpointTensor(name, tensor.shape, tensor.stored, reorder)
