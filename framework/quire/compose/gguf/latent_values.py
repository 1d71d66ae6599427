"""Sizes of latent attention, and the scale of its scores, from the metadata of a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.compose.gguf.model_values import ModelValues

KEY_SIZE, VALUE_SIZE = "attention.key_length", "attention.value_length"
OWN_KEY_SIZE, OWN_VALUE_SIZE = "attention.key_length_mla", "attention.value_length_mla"
MAGNITUDE = "rope.scaling.yarn_log_multiplier"


def latent_values(config: Mapping[str, Any], values: ModelValues) -> Mapping[str, Any]:
    """Return the sizes of a head, with and without rotation, and the factor of YaRN.

    Files since 2025 have sizes of the compressed keys and values, and beside them those of heads.
    """
    rope_dim = values.count("rope.dimension_count")
    size = values.count(OWN_KEY_SIZE, values.count(KEY_SIZE))
    if size <= rope_dim:
        raise values.wrong(OWN_KEY_SIZE, size, f"more than rope.dimension_count ({rope_dim})")
    found: dict[str, Any] = {
        "qk_rope_head_dim": rope_dim,
        "qk_nope_head_dim": size - rope_dim,
        "v_head_dim": values.count(OWN_VALUE_SIZE, values.count(VALUE_SIZE)),
        "q_lora_rank": config.get("q_lora_rank"),
        "num_key_value_heads": config["num_attention_heads"],
        "topk_method": "group_limited_greedy" if config["n_group"] > 1 else "greedy",
    }
    if values.get(MAGNITUDE):
        magnitude = 10 * values.number(MAGNITUDE)  # it is stored as the tenth
        scaling = {"mscale": magnitude, "mscale_all_dim": magnitude}
        found["rope_scaling"] = {**config.get("rope_scaling", {}), **scaling}
    return found
