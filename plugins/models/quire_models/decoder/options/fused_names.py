"""Weight rules that several families share, to the decoder's names."""

from __future__ import annotations

from collections.abc import Mapping

from quire.interfaces.weight_rules import WeightRule

LAYER = "model.layers.{layer}"
QKV = tuple(f"{LAYER}.self_attn.{part}_proj" for part in "qkv")
GATE_UP = (f"{LAYER}.mlp.gate_proj", f"{LAYER}.mlp.up_proj")
FUSED_QKV = WeightRule(f"{LAYER}.self_attn.qkv_proj", QKV)
FUSED_GATE_UP = WeightRule(f"{LAYER}.mlp.gate_up_proj", GATE_UP)

BLOCK = f"{LAYER}.block_sparse_moe"
EXPERT = f"{LAYER}.mlp.experts.{{expert}}"
PARTS = ("gate", "up", "down")


def renamed(names: Mapping[str, str]) -> tuple[WeightRule, ...]:
    """Return rules for modules with other names: the checkpoint's path -> the decoder's."""
    return tuple(WeightRule(theirs, (ours,)) for theirs, ours in names.items())


def renamed_norms(names: Mapping[str, str]) -> tuple[WeightRule, ...]:
    """Return rules for norms of a layer: the checkpoint's last name -> the decoder's."""
    return renamed({f"{LAYER}.{theirs}": f"{LAYER}.{ours}" for theirs, ours in names.items()})


SHARED_EXPERTS = renamed(
    {
        f"{LAYER}.mlp.shared_experts.{part}_proj": f"{LAYER}.mlp.shared_expert.{part}_proj"
        for part in PARTS
    }
)
W123 = renamed(
    {
        f"{BLOCK}.gate": f"{LAYER}.mlp.gate",
        f"{BLOCK}.experts.{{expert}}.w1": f"{EXPERT}.gate_proj",
        f"{BLOCK}.experts.{{expert}}.w3": f"{EXPERT}.up_proj",
        f"{BLOCK}.experts.{{expert}}.w2": f"{EXPERT}.down_proj",
    }
)
