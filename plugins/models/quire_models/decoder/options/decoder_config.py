"""Options of the whole decoder, and the model description for the engine; needs no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Any, Literal

from quire.errors import UnsupportedModelError
from quire.interfaces.model import ModelDescription
from quire.interfaces.weight_rules import WeightRule
from quire.layers.attention.rope_parameters import RopeParameters
from quire.layers.config_values import ConfigValues
from quire_models.decoder.options.attention_config import AttentionConfig, NormConfig
from quire_models.decoder.options.layer_inputs_config import LayerInputsConfig
from quire_models.decoder.options.mla_config import MLAConfig
from quire_models.decoder.options.mlp_config import MLPConfig
from quire_models.decoder.options.moe_config import DualMLPConfig, MoEConfig

Placement = Literal[
    "pre",
    "post",
    "sandwich",
    "scaled_sandwich",
    "post_sum",
    "parallel",
    "parallel_two_norms",
]
FREQUENCIES = r".*\.rotary_emb\.inv_freq"  # in checkpoints, and computed here
Rope = tuple[RopeParameters, int]  # with the number of a head's elements that it is for


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerConfig:
    """Options of one decoder layer."""

    attention: AttentionConfig | MLAConfig
    mlp: MLPConfig | MoEConfig | DualMLPConfig

    def num_params(self, hidden_size: int) -> int:
        """Return the number of parameters without those of norms."""
        return self.attention.num_params(hidden_size) + self.mlp.num_params(hidden_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionTable:
    """Learned position embeddings.

    Attributes:
        num_positions: Number of positions.
        num_unused: Number of the checkpoint's first rows that no position has.
    """

    num_positions: int
    num_unused: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """Options of a decoder.

    Attributes:
        vocab_size: V.
        hidden_size: Elements per hidden state.
        max_positions: Longest context.
        layers: Options of each layer.
        norm: Options of all norms but those of queries and keys.
        placement: Where norms are: of the input of attention and MLP (`pre`), of their outputs
            (`post`), of both (`sandwich`, or `scaled_sandwich` with a factor of each layer), of the
            sum after each of them (`post_sum`); or attention and MLP run side by side after one
            norm (`parallel`) or one each (`parallel_two_norms`).
        has_final_norm: Whether a norm follows the last layer.
        positions: Learned position embeddings; None: none.
        layer_inputs: Inputs that each layer has for itself, with the placement `scaled_sandwich`;
            None: none.
        has_embedding_norm: Whether embeddings are normalised.
        embedding_size: Elements of an embedding, projected to and from the hidden size; None: it is
            the hidden size.
        embedding_scale: Factor on the embeddings of tokens.
        residual_scale: Factor on the outputs of attention and MLP.
        tie_word_embeddings: Whether the LM head shares the weight of the embedding.
        head_bias: Whether the LM head has a bias.
        logit_scale: Factor on the logits.
        final_logit_soft_cap: Soft cap of the logits, by tanh; None for no cap.
        weight_prefixes: Prefixes of the checkpoint's names, each with that of the rules' names.
        weight_rules: Rules from the checkpoint's names to those of the decoder.
        ignored_weights: Regular expressions for names of checkpoint weights that are not loaded.
    """

    vocab_size: int
    hidden_size: int
    max_positions: int
    layers: tuple[LayerConfig, ...]
    norm: NormConfig
    placement: Placement = "pre"
    has_final_norm: bool = True
    positions: PositionTable | None = None
    layer_inputs: LayerInputsConfig | None = None
    has_embedding_norm: bool = False
    embedding_size: int | None = None
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    tie_word_embeddings: bool = False
    head_bias: bool = False
    logit_scale: float = 1.0
    final_logit_soft_cap: float | None = None
    weight_prefixes: tuple[tuple[str, str], ...] = ()
    weight_rules: tuple[WeightRule, ...] = ()
    ignored_weights: tuple[str, ...] = (FREQUENCIES,)

    def __post_init__(self) -> None:
        if self.layer_inputs is not None and self.placement != "scaled_sandwich":
            raise UnsupportedModelError(
                "inputs of each layer are supported with the placement scaled_sandwich only, not "
                f"with {self.placement}"
            )
        for index, layer in enumerate(self.layers):
            _check_shared(index, layer.attention, self.layers[:index])

    @property
    def source_layers(self) -> frozenset[int]:
        """Indexes of the layers whose keys and values others use."""
        used = (layer.attention.key_values_of for layer in self.layers)
        return frozenset(index for index in used if index is not None)

    @property
    def ropes(self) -> tuple[Rope, ...]:
        """Different rotary embeddings of the layers."""
        attentions = (layer.attention for layer in self.layers)
        found = ((each.rope, each.rope_dim) for each in attentions if each.rope is not None)
        return tuple(dict.fromkeys(found))

    def rope_index(self, layer: int) -> int | None:
        """Return the index in `ropes` of a layer's rotary embedding; None if it has none."""
        attention = self.layers[layer].attention
        if attention.rope is None:
            return None
        return self.ropes.index((attention.rope, attention.rope_dim))

    @property
    def num_params(self) -> int:
        """Number of parameters in all tensors of the checkpoint."""
        hidden = self.hidden_size
        norms = self.norm.num_params(hidden)
        num_norms = {"sandwich": 4, "scaled_sandwich": 4, "parallel": 1}.get(self.placement, 2)
        per_layer = num_norms * norms + (self.placement == "scaled_sandwich")
        layers = sum(layer.num_params(hidden) + per_layer for layer in self.layers)
        if self.layer_inputs is not None:
            layers += self.layer_inputs.num_params(hidden, len(self.layers))
        return self._num_embedding_params() + layers + self.has_final_norm * norms

    def _num_embedding_params(self) -> int:
        size = self.embedding_size or self.hidden_size
        tables = self.vocab_size * size * (1 if self.tie_word_embeddings else 2)
        if self.positions is not None:
            rows = self.positions.num_positions + self.positions.num_unused
            tables += rows * self.hidden_size
        if size != self.hidden_size:
            tables += 2 * size * self.hidden_size
        norm = self.has_embedding_norm * self.norm.num_params(size)
        return tables + norm + self.head_bias * self.vocab_size


def _check_shared(
    index: int, attention: AttentionConfig | MLAConfig, earlier: Sequence[LayerConfig]
) -> None:
    """Check that the layer whose keys and values another one uses attends alike.

    Raises:
        UnsupportedModelError: It is no earlier layer, has none of its own, or attends otherwise.
    """
    if not isinstance(attention, AttentionConfig) or attention.key_values_of is None:
        return
    source = attention.key_values_of
    if attention.has_sinks:
        raise UnsupportedModelError(
            f"layer {index} uses the keys and values of layer {source}; sinks are not supported "
            "with it"
        )
    if source >= len(earlier) or earlier[source].attention != replace(
        attention, key_values_of=None
    ):
        raise UnsupportedModelError(
            f"layer {index} uses the keys and values of layer {source}, which must be an earlier "
            "layer with keys and values of its own and the same options of attention"
        )


def attention_name(layer: int) -> str:
    """Return the module path of a layer's attention."""
    return f"model.layers.{layer}.self_attn.attention"


def describe_decoder(
    architecture: str, config: Mapping[str, Any], decoder: DecoderConfig
) -> ModelDescription:
    """Return the model description that the engine plans with."""
    values = ConfigValues(config, architecture)
    method = values.nested("quantization_config")
    attentions = [layer.attention for layer in decoder.layers]
    return ModelDescription(
        architecture=architecture,
        config=config,
        vocab_size=decoder.vocab_size,
        hidden_size=decoder.hidden_size,
        num_layers=len(decoder.layers),
        num_heads=max(attention.num_heads for attention in attentions),
        max_model_len=decoder.max_positions,
        num_params=decoder.num_params,
        checkpoint_dtype=values.text("dtype", values.text("torch_dtype", "float32")),
        kv_layers=tuple(
            each.kv_layer(attention_name(index), index)
            for index, each in enumerate(attentions)
            if each.key_values_of is None
        ),
        logit_soft_cap=_soft_cap(decoder),
        quantization=method.text("quant_method") if method.config else None,
        has_tied_head=decoder.tie_word_embeddings,
        sharded_sizes=_sharded_sizes(decoder),
        num_experts=max((moe.routing.num_experts for moe in _mixtures(decoder)), default=0),
        expert_sizes=_expert_sizes(decoder),
        num_table_params=_num_table_params(decoder),
        indivisible_reason=_indivisible_reason(decoder),
    )


def _mixtures(decoder: DecoderConfig) -> list[MoEConfig]:
    """Return the different mixtures of experts of a decoder."""
    return [mlp for mlp in _mlps(decoder) if isinstance(mlp, MoEConfig)]


def _mlps(decoder: DecoderConfig) -> list[MLPConfig | MoEConfig]:
    """Return the different MLPs and mixtures of a decoder."""
    found: dict[MLPConfig | MoEConfig, None] = {}
    for layer in decoder.layers:
        if isinstance(layer.mlp, DualMLPConfig):
            found |= {layer.mlp.mlp: None, layer.mlp.moe: None}
        else:
            found[layer.mlp] = None
    return list(found)


def _expert_sizes(decoder: DecoderConfig) -> dict[str, int]:
    """Return the sizes of experts that tensor parallelism divides."""
    widths = [moe.width for moe in _mixtures(decoder)]
    return {"moe_intermediate_size": gcd(*widths)} if widths else {}


def _sharded_sizes(decoder: DecoderConfig) -> dict[str, int]:
    """Return the sizes that tensor parallelism divides, but for those of experts."""
    shared = {moe.shared.width for moe in _mixtures(decoder) if moe.shared is not None}
    dense = {mlp.width for mlp in _mlps(decoder) if isinstance(mlp, MLPConfig)}
    sizes = {"intermediate_size": dense, "width of the shared experts": shared}
    return {name: gcd(*widths) for name, widths in sizes.items() if widths}


def _num_table_params(decoder: DecoderConfig) -> int:
    inputs = decoder.layer_inputs
    return 0 if inputs is None else inputs.num_table_params(len(decoder.layers))


def _indivisible_reason(decoder: DecoderConfig) -> str:
    """Return why there cannot be pipeline stages: they pass on hidden states only."""
    if decoder.layer_inputs is not None:
        return "its layers have inputs of their own, made from token ids"
    if decoder.source_layers:
        return "some of its layers use the keys and values of others"
    return ""


def _soft_cap(decoder: DecoderConfig) -> float | None:
    """Return the soft cap of attention scores; that of all layers is the same."""
    attention = decoder.layers[0].attention
    return attention.logit_soft_cap if isinstance(attention, AttentionConfig) else None
