"""Values of the configs of Gemma that follow from others, or differ between layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.compose.gguf.family import KV_HEADS, WIDTH, Derive
from quire.compose.gguf.model_values import ModelValues


def scaled_by(num_layers: int) -> Derive:
    """Return the function for the scale of Gemma's scores, which no file has.

    It is by the size of a head, and in the model of 27B, which is known by its number of layers,
    by the hidden size over the number of heads.
    """

    def derive(config: Mapping[str, Any], _: ModelValues) -> Mapping[str, Any]:
        is_largest = config["num_hidden_layers"] == num_layers
        per_head = config["hidden_size"] // config["num_attention_heads"]
        return {"query_pre_attn_scalar": per_head if is_largest else config["head_dim"]}

    return derive


def gemma4_values(config: Mapping[str, Any], values: ModelValues) -> Mapping[str, Any]:
    """Return what differs between the layers of Gemma 4.

    Its full layers have larger heads, perhaps fewer of them for keys, and perhaps no values. Layers
    without keys of their own may have a wider MLP.
    """
    types, num_shared = config["layer_types"], config["num_kv_shared_layers"]
    full = types.index("full_attention") if "full_attention" in types else len(types) - 1
    sliding = types.index("sliding_attention") if "sliding_attention" in types else 0
    widths, kv_heads = values.by_layer(WIDTH), values.by_layer(KV_HEADS)
    derived: dict[str, Any] = {
        "global_head_dim": values.count("attention.key_length"),
        "attention_k_eq_v": not values.has_tensor(f"blk.{full}.attn_v.weight"),
        "enable_moe_block": "num_experts" in config,
    }
    if kv_heads is not None:
        derived["num_key_value_heads"] = kv_heads[sliding]
        derived["num_global_key_value_heads"] = kv_heads[full]
    if widths is not None:
        num_own = len(types) - num_shared
        wider = [widths[0] * (2 if i >= num_own else 1) for i in range(len(types))]
        derived["use_double_wide_mlp"] = widths[: len(types)] == wider
        if widths[: len(types)] not in (wider, [widths[0]] * len(types)):
            raise values.wrong(WIDTH, widths, f"equal, or twice in the last {num_shared} layers")
    if config["hidden_size_per_layer_input"]:
        table = values.tensor("per_layer_token_embd.weight")
        derived["vocab_size_per_layer_input"] = table.shape[0]
    return derived
