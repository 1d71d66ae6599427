"""Mistral's own layout: other names, and query and key rows in the order of rotary pairs.

Rotary embeddings turn rows (0, 1), (2, 3), ... of a head there. In the layout of Hugging Face,
which models expect, they turn rows (0, D/2), (1, D/2 + 1), ..., so these rows are reordered.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor

from quire.errors import CheckpointCorruptError
from quire.interfaces.checkpoint_tensors import CheckpointTensor, Tensors
from quire.interfaces.weight_rules import WeightMatch, WeightRule, WeightRules

LAYER = "model.layers.{layer}"
QUERIES, KEYS = "layers.{layer}.attention.wq", "layers.{layer}.attention.wk"
NAMES = {
    "tok_embeddings": "model.embed_tokens",
    "norm": "model.norm",
    "output": "lm_head",
    "layers.{layer}.attention_norm": f"{LAYER}.input_layernorm",
    "layers.{layer}.ffn_norm": f"{LAYER}.post_attention_layernorm",
    QUERIES: f"{LAYER}.self_attn.q_proj",
    KEYS: f"{LAYER}.self_attn.k_proj",
    "layers.{layer}.attention.wv": f"{LAYER}.self_attn.v_proj",
    "layers.{layer}.attention.wo": f"{LAYER}.self_attn.o_proj",
    "layers.{layer}.feed_forward.w1": f"{LAYER}.mlp.gate_proj",
    "layers.{layer}.feed_forward.w2": f"{LAYER}.mlp.down_proj",
    "layers.{layer}.feed_forward.w3": f"{LAYER}.mlp.up_proj",
    "layers.{layer}.feed_forward.gate": f"{LAYER}.block_sparse_moe.gate",
    **{
        f"layers.{{layer}}.feed_forward.experts.{{expert}}.w{i}": (
            f"{LAYER}.block_sparse_moe.experts.{{expert}}.w{i}"
        )
        for i in (1, 2, 3)
    },
}
RULES = WeightRules(WeightRule(theirs, (ours,)) for theirs, ours in NAMES.items())


def is_consolidated(tensors: Tensors) -> bool:
    """Return whether tensors have the names of Mistral's own layout."""
    return "tok_embeddings.weight" in tensors


def from_consolidated(tensors: Tensors, config: Mapping[str, Any]) -> dict[str, CheckpointTensor]:
    """Return the tensors of a consolidated checkpoint as in the layout of Hugging Face.

    Tensors without a known name keep theirs, so that errors list them.

    Args:
        tensors: Tensors of the files.
        config: Config of the model, in the layout of Hugging Face.

    Raises:
        CheckpointCorruptError: The rows of a query or key projection are not whole heads, or two
            tensors get one name.
    """
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    converted: dict[str, CheckpointTensor] = {}
    for name, tensor in tensors.items():
        match = RULES.match(name)
        new = _renamed(tensor, match, head_dim) if match is not None else tensor
        if new.name in converted:
            raise CheckpointCorruptError(
                f"tensors {converted[new.name].stored[0].name} and {name} are both {new.name}; "
                "remove one from the checkpoint"
            )
        converted[new.name] = new
    return converted


def halves_from_pairs(
    tensor: Tensor,  # [heads * head_dim, ...]
    head_dim: int,
) -> Tensor:
    """Return each head's even rows before its odd rows."""
    pairs = tensor.view(-1, head_dim // 2, 2, *tensor.shape[1:])  # [heads, D / 2, 2, ...]
    return pairs.transpose(1, 2).flatten(0, 2)


def _renamed(tensor: CheckpointTensor, match: WeightMatch, head_dim: int) -> CheckpointTensor:
    (name,) = match.part_names()
    if match.rule.checkpoint not in (QUERIES, KEYS):
        return CheckpointTensor(name, tensor.shape, tensor.stored, tensor.compute)
    if not tensor.shape or tensor.shape[0] % head_dim:
        raise CheckpointCorruptError(
            f"tensor {tensor.name} has shape {list(tensor.shape)}, whose rows are no whole heads "
            f"of head_dim {head_dim}"
        )
    reorder = partial(halves_from_pairs, head_dim=head_dim)
    return CheckpointTensor(name, tensor.shape, tensor.stored, reorder)
