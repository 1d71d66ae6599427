"""Reading of experts as DeepSeek-V3 has them, which several families share.

Scores are sigmoids; a bias is added for the choice alone, within the best groups; the first layers
are dense, and some experts are shared by all tokens. Layers for multi-token prediction are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from quire.layers.config_values import ConfigValues
from quire.layers.moe.routing import Routing
from quire_models.decoder.options.attention_config import AttentionConfig
from quire_models.decoder.options.config_reading import (
    layers_with_experts,
    moe_layers,
    read_decoder,
    read_mlp,
    read_rms_norm,
)
from quire_models.decoder.options.decoder_config import DecoderConfig
from quire_models.decoder.options.fused_names import SHARED_EXPERTS
from quire_models.decoder.options.mla_config import MLAConfig
from quire_models.decoder.options.mlp_config import MLPConfig
from quire_models.decoder.options.moe_config import MoEConfig
from quire_models.decoder.options.routing_reading import read_routing

SUM_OFFSET = 1e-20


def read_sigmoid_moe(
    values: ConfigValues, attentions: Sequence[AttentionConfig | MLAConfig], eps: float = 1e-5
) -> DecoderConfig:
    """Return the options of a decoder with such experts.

    Args:
        values: Values of config.json.
        attentions: Attention of each layer.
        eps: Default epsilon of the norms.
    """
    expert = read_mlp(values, width="moe_intermediate_size")
    moe = MoEConfig(routing=_read_routing(values), expert=expert, shared=read_shared(values))
    is_moe = layers_with_experts(values, values.whole("first_k_dense_replace", 1))
    layers = moe_layers(attentions, read_mlp(values), moe, is_moe)
    norm = read_rms_norm(values, eps)
    return read_decoder(values, layers, norm, weight_rules=SHARED_EXPERTS)


def _read_routing(values: ConfigValues) -> Routing:
    """Return the options of the router."""
    is_divided = values.flag("norm_topk_prob", True)
    return read_routing(
        values,
        experts="n_routed_experts",
        has_groups=True,
        score="sigmoid",
        has_choice_bias=True,
        group_score="top2",
        renormalize=is_divided,
        sum_offset=SUM_OFFSET,
        scale=values.positive("routed_scaling_factor", 1.0),
    )


def read_shared(values: ConfigValues) -> MLPConfig | None:
    """Return the options of the experts that all tokens share, as one MLP; None: none."""
    num_shared = values.whole("n_shared_experts", 0)
    if not num_shared:
        return None
    expert = read_mlp(values, width="moe_intermediate_size")
    return replace(expert, width=expert.width * num_shared)
