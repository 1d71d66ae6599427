"""The options of routers and experts against the modules of transformers, family by family."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from typing import Any

import pytest
import torch
from model_parts import CONTEXT
from moe_parts import HIDDEN, STEP, WIDTH, hidden_states, load, make_moe
from torch import Tensor, nn

from quire.layers import ClampedSwiGLU, Layer, LayerContext, Routing

EXPERTS, TOP_K = 8, 3
KERNELS = ("torch", "native", "triton")
CONTEXTS = [replace(CONTEXT, kernels=kernels) for kernels in KERNELS]
BY_KERNELS = pytest.mark.parametrize("context", CONTEXTS, ids=KERNELS)


class SquaredReLU(Layer):
    def __init__(self, context: LayerContext) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return x.relu().square()


@dataclass(frozen=True)
class Family:
    """A module of transformers, and the options that it is equal to.

    Attributes:
        module: Name of the family's modeling file.
        router: Class of the router.
        experts: Class of the experts.
        config: Values of the config besides the sizes.
        routing: Options besides the numbers of experts.
        layout: Layout of the first product's weight in transformers: `rows` [E, 2I, H], `columns`
            [E, H, 2I], `interleaved` columns, or `plain` [E, I, H].
        options: Options of our layer.
        parts: Parts of our layer, made with its context.
        names: Our names of the router's tensors, if they are others.
    """

    module: str
    router: str
    experts: str
    config: Mapping[str, Any] = field(default_factory=dict)
    routing: Mapping[str, Any] = field(default_factory=dict)
    layout: str = "rows"
    options: Mapping[str, Any] = field(default_factory=dict)
    parts: Mapping[str, Callable[[LayerContext], Layer]] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)


DIVIDED = {"renormalize": True}
SIGMOID = {"score": "sigmoid", "has_choice_bias": True}
GROUPS = {"num_groups": 4, "top_groups": 2}
DEEPSEEK = {
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 2.5,
    "n_routed_experts": EXPERTS,
}
V3 = {**SIGMOID, **GROUPS, "group_score": "top2", "scale": 2.5}
NORMED = {"norm_topk_prob": True}
V3_NORMED = {**V3, **DIVIDED, "sum_offset": 1e-20}

FAMILIES = {
    "qwen2_moe": Family("qwen2_moe", "Qwen2MoeTopKRouter", "Qwen2MoeExperts"),
    "qwen3_moe": Family(
        "qwen3_moe", "Qwen3MoeTopKRouter", "Qwen3MoeExperts", NORMED, DIVIDED
    ),
    "olmoe": Family("olmoe", "OlmoeTopKRouter", "OlmoeExperts"),
    "flex_olmo": Family("flex_olmo", "FlexOlmoTopKRouter", "FlexOlmoExperts", NORMED, DIVIDED),
    "mixtral": Family("mixtral", "MixtralTopKRouter", "MixtralExperts", {}, DIVIDED),
    "hunyuan": Family(
        "hunyuan_v1_moe", "HunYuanMoEV1Gate", "HunYuanMoEV1Experts", {"moe_topk": TOP_K}, DIVIDED,
        names={"wg.weight": "weight"},
    ),
    "jamba": Family("jamba", "JambaTopKRouter", "JambaExperts"),
    "granitemoe": Family(
        "granitemoe", "GraniteMoeTopKRouter", "GraniteMoeExperts", {}, {"score": "top_k_softmax"}
    ),
    "gpt_oss": Family(
        "gpt_oss", "GptOssTopKRouter", "GptOssExperts",
        {"swiglu_limit": 0.6, "swiglu_alpha": 1.702},
        {"score": "top_k_softmax", "has_bias": True}, "interleaved",
        {"bias": True}, {"activation": partial(ClampedSwiGLU, 1.702, 0.6)},
    ),
    "deepseek_v3": Family(
        "deepseek_v3", "DeepseekV3TopkRouter", "DeepseekV3Experts", {**DEEPSEEK, **NORMED},
        V3_NORMED,
    ),
    "deepseek_v3_not_divided": Family(
        "deepseek_v3", "DeepseekV3TopkRouter", "DeepseekV3Experts",
        {**DEEPSEEK, "norm_topk_prob": False}, V3,
    ),
    "glm4_moe": Family(
        "glm4_moe", "Glm4MoeTopkRouter", "Glm4MoeExperts", {**DEEPSEEK, **NORMED}, V3_NORMED
    ),
    "exaone_moe": Family(
        "exaone_moe", "ExaoneMoeTopkRouter", "ExaoneMoeExperts", {**DEEPSEEK, **NORMED}, V3_NORMED
    ),
    "nemotron_h": Family(
        "nemotron_h", "NemotronHTopkRouter", "NemotronHExperts",
        {**DEEPSEEK, **NORMED, "mlp_hidden_act": "relu2"}, V3_NORMED, "plain",
        {"has_gate": False}, {"activation": SquaredReLU},
    ),
    "minimax_m2": Family(
        "minimax_m2", "MiniMaxM2TopKRouter", "MiniMaxM2Experts", {}, {**SIGMOID, **DIVIDED}
    ),
    "lfm2_moe": Family(
        "lfm2_moe", "Lfm2MoeTopKRouter", "Lfm2MoeExperts", {**NORMED, "use_expert_bias": True},
        {**SIGMOID, **DIVIDED, "sum_offset": 1e-6},
    ),
    "deepseek_v2": Family(
        "deepseek_v2", "DeepseekV2TopkRouter", "DeepseekV2Experts",
        {**DEEPSEEK, "topk_method": "group_limited_greedy"}, {**GROUPS, "scale": 2.5},
    ),
    "deepseek_v2_greedy": Family(
        "deepseek_v2", "DeepseekV2TopkRouter", "DeepseekV2Experts",
        {**DEEPSEEK, "topk_method": "greedy"}, {"scale": 2.5},
    ),
    "mistral4": Family(
        "mistral4", "Mistral4TopkRouter", "Mistral4Experts", {**DEEPSEEK, **NORMED},
        {**GROUPS, **DIVIDED, "group_score": "top2", "scale": 2.5, "sum_offset": 1e-20},
    ),
    "ernie4_5_moe": Family(
        "ernie4_5_moe", "Ernie4_5_MoeTopKRouter", "Ernie4_5_MoeExperts", {"moe_norm_min": 0.5},
        {**DIVIDED, "has_choice_bias": True, "choice_bias_dims": 2, "min_sum": 0.5},
        names={"moe_statics.e_score_correction_bias": "e_score_correction_bias"},
    ),
    "phimoe": Family(
        "phimoe", "PhimoeTopKRouter", "PhimoeExperts", {"router_jitter_noise": 0.3},
        {"score": "sparsemixer", "sparsemixer_threshold": 0.6, "top_k": 2},
    ),
    "gemma4": Family(
        "gemma4", "Gemma4TextRouter", "Gemma4TextExperts",
        {"hidden_activation": "silu", "rms_norm_eps": 1e-3},
        {**DIVIDED, "input_norm_eps": 1e-3, "has_expert_scale": True},
        names={"proj.weight": "weight"},
    ),
}  # fmt: skip
SIZES = {
    "hidden_size": HIDDEN,
    "moe_intermediate_size": WIDTH,
    "intermediate_size": WIDTH,
    "num_experts": EXPERTS,
    "num_local_experts": EXPERTS,
    "hidden_act": "silu",
    "num_experts_per_tok": TOP_K,
    "top_k_experts": TOP_K,
    "_experts_implementation": "eager",
}


class Config:
    """Values that a module of transformers reads; a missing one is an error."""

    moe_latent_size = None
    input_jitter_noise = 0.0
    use_expert_bias = False
    norm_topk_prob = False
    routed_scaling_factor = 1.0

    def __init__(self, **values: Any) -> None:
        for name, value in values.items():
            setattr(self, name, value)


def randomized(module: nn.Module, seed: int) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in module.state_dict(keep_vars=True).items():
        spread = 0.15 if "bias" in name else 0.3
        tensor.data = torch.randn(tensor.shape, generator=generator) * spread
    return module.eval()


def made(family: Family) -> tuple[nn.Module, nn.Module]:
    """Return the router and the experts of transformers."""
    source = import_module(f"transformers.models.{family.module}.modeling_{family.module}")
    top_k = family.routing.get("top_k", TOP_K)
    config = Config(**{**SIZES, "num_experts_per_tok": top_k, **family.config})
    router = randomized(getattr(source, family.router)(config), 0)
    return router, randomized(getattr(source, family.experts)(config), 1)


def our_tensors(family: Family, router: nn.Module, experts: nn.Module) -> dict[str, Tensor]:
    tensors = {
        f"mlp.gate.{family.names.get(name, name)}": tensor
        for name, tensor in router.state_dict().items()
    }
    parts = {
        "rows": ("gate_up_proj", lambda w: w.chunk(2, 0)),
        "interleaved": ("gate_up_proj", lambda w: (w[..., ::2].mT, w[..., 1::2].mT)),
        "plain": ("up_proj", lambda w: (w,)),
    }
    parameter, split = parts[family.layout]
    names = ("up_proj",) if family.layout == "plain" else ("gate_proj", "up_proj")
    is_transposed = family.layout == "interleaved"
    stacked = experts.state_dict()
    for expert in range(EXPERTS):
        path = f"mlp.experts.{expert}"
        for name, part in zip(names, split(stacked[parameter][expert]), strict=True):
            tensors[f"{path}.{name}.weight"] = part
        down = stacked["down_proj"][expert]
        tensors[f"{path}.down_proj.weight"] = down.mT if is_transposed else down
        if is_transposed:
            bias = stacked["gate_up_proj_bias"][expert]
            tensors[f"{path}.gate_proj.bias"] = bias[::2]
            tensors[f"{path}.up_proj.bias"] = bias[1::2]
            tensors[f"{path}.down_proj.bias"] = stacked["down_proj_bias"][expert]
    return tensors


def routed_by(family: Family, router: nn.Module, x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weights and the experts that transformers chooses."""
    takes_bias = family.module in ("minimax_m2", "lfm2_moe")  # the block has it there
    return router(x, bias)[1:] if takes_bias else router(x)[1:]


@torch.no_grad()
@BY_KERNELS
@pytest.mark.parametrize("name", FAMILIES)
def test_outputs_are_those_of_transformers(name, context, tmp_path):
    family = FAMILIES[name]
    router, experts = made(family)
    tensors = our_tensors(family, router, experts)
    bias = torch.randn(EXPERTS, generator=torch.Generator().manual_seed(2)) * 0.15
    routing = Routing(**{"num_experts": EXPERTS, "top_k": TOP_K, **family.routing})
    if routing.has_choice_bias:
        tensors.setdefault("mlp.gate.e_score_correction_bias", bias)
    options = {key: made(context) for key, made in family.parts.items()} | dict(family.options)
    moe = load(make_moe(routing, context, **options), tensors, tmp_path)
    x = hidden_states(64)
    weights, chosen = routed_by(family, router, x, bias)
    expected = experts(x, chosen, weights)
    assert len(chosen.unique()) == EXPERTS, "some expert is not tested"
    # Sums in another order differ by roundings of their terms, which have the scale of the outputs.
    scale = expected.std().item()  # 0.2 to 13
    torch.testing.assert_close(moe(x, STEP), expected, rtol=1e-5, atol=5e-7 * scale)


@torch.no_grad()
@BY_KERNELS
@pytest.mark.parametrize("top_k", [1, 2])
def test_inputs_of_llama_4_are_multiplied_as_in_transformers(top_k, context, tmp_path):
    source = import_module("transformers.models.llama4.modeling_llama4")
    config = Config(**{**SIZES, "num_experts_per_tok": top_k})
    block = randomized(source.Llama4TextMoe(config), 0)
    block.shared_expert.down_proj.weight.zero_()
    tensors = {"mlp.gate.weight": block.router.weight}
    for expert in range(EXPERTS):
        gate, up = block.experts.gate_up_proj[expert].mT.chunk(2, 0)
        down = block.experts.down_proj[expert].mT
        for part, tensor in (("gate", gate), ("up", up), ("down", down)):
            tensors[f"mlp.experts.{expert}.{part}_proj.weight"] = tensor
    routing = Routing(num_experts=EXPERTS, top_k=top_k, score="top_k_sigmoid", scales_input=True)
    moe = load(make_moe(routing, context), tensors, tmp_path)
    x = hidden_states(64)
    torch.testing.assert_close(moe(x, STEP), block(x)[0], rtol=1e-5, atol=1e-6)
