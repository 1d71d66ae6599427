"""Counts of experts that contradict each other are refused by key, value and architecture."""

import json
from typing import Any

import pytest
from family_cases import CASES
from family_checkpoints import MISSING

from quire.errors import UnsupportedModelError
from quire.testing.model import TINY_SIZES
from quire_models.family_table import read_decoder_config

NUM_EXPERTS = {
    "num_local_experts": (
        "MixtralForCausalLM",
        "GraniteMoeForCausalLM",
        "GptOssForCausalLM",
        "PhimoeForCausalLM",
        "MiniMaxM2ForCausalLM",
        "Llama4ForCausalLM",
    ),
    "num_experts": (
        "OlmoeForCausalLM",
        "FlexOlmoForCausalLM",
        "Qwen2MoeForCausalLM",
        "Qwen3MoeForCausalLM",
        "HunYuanMoEV1ForCausalLM",
    ),
    "n_routed_experts": ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "Glm4MoeForCausalLM"),
    "moe_num_experts": ("Ernie4_5_MoeForCausalLM",),
}
TOP_K = {"HunYuanMoEV1ForCausalLM": "moe_topk", "Ernie4_5_MoeForCausalLM": "moe_k"}
ROWS = [(family, key) for key, families in NUM_EXPERTS.items() for family in families]
GROUPED = {"n_routed_experts": 8, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 2}


def refusal(family: str, **values: Any) -> str:
    """Return the message with which a config is refused."""
    case = next(iter(CASES[family].values()))
    options = {key: value for key, value in case.options.items() if value is not MISSING}
    with pytest.raises(UnsupportedModelError) as error:
        read_decoder_config(family, json.loads(json.dumps({**TINY_SIZES, **options, **values})))
    return str(error.value)


@pytest.mark.parametrize(("family", "key"), ROWS)
def test_more_experts_of_a_token_than_there_are_are_named(family, key):
    top_k = TOP_K.get(family, "num_experts_per_tok")
    groups = {"n_group": 1, "topk_group": 1} if key == "n_routed_experts" else {}
    assert refusal(family, **{key: 2, top_k: 3, **groups}) == (
        f"{family}: {top_k} in config.json must be a whole number from 1 to 2 ({key}), got 3"
    )


@pytest.mark.parametrize(("family", "key"), ROWS)
def test_too_many_experts_are_named(family, key):
    assert refusal(family, **{key: 16_385}) == (
        f"{family}: {key} in config.json must be a whole number from 1 to 16384, got 16385"
    )


@pytest.mark.parametrize("family", ["DeepseekV3ForCausalLM", "Glm4MoeForCausalLM"])
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"n_group": 3}, "n_group in config.json must be a divisor of n_routed_experts (8), got 3"),
        ({"topk_group": 5}, "topk_group in config.json must be a whole number from 1 to 4 "),
        ({"topk_group": 5}, " (n_group), got 5"),
        (
            {"num_experts_per_tok": 5},
            "num_experts_per_tok in config.json must be a whole number from 1 to 4 (the experts of "
            "2 groups, topk_group, of 4, n_group), got 5",
        ),
        (
            {"n_group": 8, "topk_group": 8},
            "n_group in config.json must be at most half of n_routed_experts (8), two experts a "
            "group, got 8",
        ),
    ],
)
def test_groups_that_contradict_experts_are_named(family, values, message):
    assert message in refusal(family, **{**GROUPED, **values})


def test_the_experts_beside_an_mlp_are_named():
    experts = {"enable_moe_block": True, "moe_intermediate_size": 48}
    assert (
        "Gemma4ForCausalLM: top_k_experts in config.json must be a whole number from 1 to 2 "
        in (refusal("Gemma4ForCausalLM", **experts, num_experts=2, top_k_experts=3))
    )


def test_the_layer_with_too_many_experts_of_a_token_is_refused_by_its_count():
    message = refusal("HunYuanMoEV1ForCausalLM", num_experts=2, moe_topk=[1, 2, 3, 1])
    assert message.endswith(
        "moe_topk in config.json must be a whole number from 1 to 2 (num_experts), got 3"
    )
