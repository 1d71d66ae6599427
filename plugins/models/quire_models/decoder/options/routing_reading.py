"""Reading of a router's options; counts that contradict each other are refused by their keys."""

from __future__ import annotations

from typing import Any

from quire.layers.config_values import ConfigValues
from quire.layers.moe.routing import MAX_EXPERTS, Routing


def read_routing(
    values: ConfigValues,
    *,
    experts: str,
    top_k: str = "num_experts_per_tok",
    has_groups: bool = False,
    **options: Any,
) -> Routing:
    """Return the options of a router.

    Args:
        values: Values of config.json.
        experts: Key of the number of experts.
        top_k: Key of the number of experts of a token.
        has_groups: Whether `topk_group` of `n_group` groups are chosen before the experts.
        options: Further options of the router, which the family sets.

    Raises:
        UnsupportedModelError: A count is missing or wrong, or contradicts another.
    """
    num_experts = values.count(experts)
    if num_experts > MAX_EXPERTS:
        raise values.wrong(experts, num_experts, f"a whole number from 1 to {MAX_EXPERTS}")
    num_groups, top_groups = _read_groups(values, experts, **options) if has_groups else (1, 1)
    num_chosen, available = values.count(top_k), num_experts // num_groups * top_groups
    if num_chosen > available:
        choice = experts
        if num_groups > 1:
            choice = f"the experts of {top_groups} groups, topk_group, of {num_groups}, n_group"
        raise values.wrong(top_k, num_chosen, f"a whole number from 1 to {available} ({choice})")
    return Routing(
        num_experts=num_experts,
        top_k=num_chosen,
        num_groups=num_groups,
        top_groups=top_groups,
        **options,
    )


def _read_groups(
    values: ConfigValues, experts: str, *, group_score: str = "max", **_: Any
) -> tuple[int, int]:
    """Return the number of groups of experts, and of those that a token's are chosen from."""
    num_experts, num_groups = values.count(experts), values.count("n_group", 1)
    if num_experts % num_groups:
        raise values.wrong("n_group", num_groups, f"a divisor of {experts} ({num_experts})")
    if group_score == "top2" and num_groups == num_experts:
        raise values.wrong(
            "n_group", num_groups, f"at most half of {experts} ({num_experts}), two experts a group"
        )
    top_groups = values.count("topk_group", 1)
    if top_groups > num_groups:
        wanted = f"a whole number from 1 to {num_groups} (n_group)"
        raise values.wrong("topk_group", top_groups, wanted)
    return num_groups, top_groups
