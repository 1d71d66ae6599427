"""Config of the shared decoder, and the model description for the engine; needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quire.errors import UnsupportedModelError
from quire.interfaces.kv_cache import KVLayer
from quire.interfaces.model import ModelDescription
from quire.layers.attention.rope_parameters import RopeParameters, read_rope
from quire.layers.config_values import ConfigValues


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """Config of a Llama-like decoder: norms, rotary embedding, GQA and gated MLP.

    Attributes:
        qkv_bias: Whether the query, key and value projections have biases.
        output_bias: Whether the output projection of attention has a bias.
        mlp_bias: Whether the three projections of the MLP have biases.
        has_qk_norm: Whether each query and key head is normalised before the rotary embedding.
        tie_word_embeddings: Whether the LM head shares the weight of the embedding.
        activation: Activation of the MLP's gate: `silu` or `gelu_tanh`.
        norm_weight_offset: Offset added to the weights of all norms.
        has_sandwich_norms: Whether the outputs of attention and MLP are normalised too, before
            they are added to the residual.
        embedding_scale: Factor on the embeddings of tokens.
        query_scale: Factor on the attention scores; None for `head_dim**-0.5`.
        final_logit_soft_cap: Soft cap of the logits, by tanh; None for no cap.
        windows: Sliding window of each layer, in tokens, the query included; None for full
            attention. Empty if all layers have full attention.
        local_rope: Rotary embedding of layers with a sliding window; None if it is `rope`.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    rms_norm_eps: float
    rope: RopeParameters
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    has_qk_norm: bool = False
    tie_word_embeddings: bool = False
    activation: str = "silu"
    norm_weight_offset: float = 0.0
    has_sandwich_norms: bool = False
    embedding_scale: float = 1.0
    query_scale: float | None = None
    final_logit_soft_cap: float | None = None
    windows: tuple[int | None, ...] = ()
    local_rope: RopeParameters | None = None

    def attention_name(self, layer: int) -> str:
        """Return the module path of a layer's attention."""
        return f"model.layers.{layer}.self_attn.attention"

    def window(self, layer: int) -> int | None:
        """Return the sliding window of a layer, the query included; None for full attention."""
        return self.windows[layer] if self.windows else None

    @property
    def attention_scale(self) -> float:
        """Factor on the attention scores."""
        return self.head_dim**-0.5 if self.query_scale is None else self.query_scale

    @property
    def ropes(self) -> tuple[RopeParameters, ...]:
        """Rotary embeddings that the layers use."""
        return (self.rope,) if self.local_rope is None else (self.rope, self.local_rope)

    def rope_index(self, layer: int) -> int:
        """Return the index in `ropes` of a layer's rotary embedding."""
        return int(self.local_rope is not None and self.window(layer) is not None)

    @property
    def num_params(self) -> int:
        """Number of parameters in all tensors of the checkpoint."""
        hidden, width = self.hidden_size, self.intermediate_size
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        qkv = (queries + 2 * keys) * (hidden + self.qkv_bias)
        output = hidden * (queries + self.output_bias)
        mlp = 3 * hidden * width + self.mlp_bias * (2 * width + hidden)
        norms = (4 if self.has_sandwich_norms else 2) * hidden
        norms += 2 * self.head_dim * self.has_qk_norm
        vocabulary = self.vocab_size * hidden * (1 if self.tie_word_embeddings else 2)
        return vocabulary + self.num_layers * (qkv + output + mlp + norms) + hidden


def read_llama_like(values: ConfigValues, *, head_dim: int | None = None) -> dict[str, Any]:
    """Return the common fields of Llama-like models: sizes, SwiGLU, one rotary embedding.

    Arguments and errors are those of `read_sizes`.
    """
    require_activation(values, "hidden_act", "silu")
    return {**read_sizes(values, head_dim=head_dim), "rope": read_rope(values)}


def read_sizes(values: ConfigValues, *, head_dim: int | None = None) -> dict[str, Any]:
    """Return the fields of `DecoderConfig` that all architectures of this package have.

    Args:
        values: Values of config.json.
        head_dim: Default of the architecture; None for the hidden size over the number of heads.

    Raises:
        UnsupportedModelError: A value is missing, wrong or not supported.
    """
    hidden, heads = values.count("hidden_size"), values.count("num_attention_heads")
    kv_heads = values.count("num_key_value_heads", heads)
    if heads % kv_heads:
        raise UnsupportedModelError(
            f"{values.architecture}: num_attention_heads ({heads}) must be a multiple of "
            f"num_key_value_heads ({kv_heads})"
        )
    return {
        "vocab_size": values.count("vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": values.count("intermediate_size"),
        "num_layers": values.count("num_hidden_layers"),
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": _head_dim(values, head_dim, hidden, heads),
        "max_positions": values.count("max_position_embeddings"),
        "rms_norm_eps": values.positive("rms_norm_eps", 1e-6),
        "tie_word_embeddings": values.flag("tie_word_embeddings", False),
    }


def require_activation(values: ConfigValues, key: str, wanted: str) -> None:
    """Check the activation of the MLP's gate; the default is the wanted one.

    Raises:
        UnsupportedModelError: It is another activation.
    """
    activation = values.text(key, wanted)
    if activation != wanted:
        raise UnsupportedModelError(
            f"{values.architecture}: {key} {activation!r} is not supported; it must be {wanted!r}"
        )


def refuse_sliding_window(values: ConfigValues) -> None:
    """Check that every layer sees the whole context.

    Raises:
        UnsupportedModelError: The config enables sliding windows.
    """
    kinds = set(values.names("layer_types")) - {"full_attention"}
    if values.flag("use_sliding_window", False):
        raise UnsupportedModelError(
            f"{values.architecture}: use_sliding_window is not supported by this model class"
        )
    if kinds:
        raise UnsupportedModelError(
            f"{values.architecture}: layer_types {', '.join(sorted(kinds))} are not supported"
        )


def describe_decoder(
    architecture: str, config: Mapping[str, Any], decoder: DecoderConfig
) -> ModelDescription:
    """Return the model description that the engine plans with."""
    values = ConfigValues(config, architecture)
    quantization = values.mapping("quantization_config")
    method = ConfigValues(quantization, architecture, prefix="quantization_config.")
    return ModelDescription(
        architecture=architecture,
        config=config,
        vocab_size=decoder.vocab_size,
        hidden_size=decoder.hidden_size,
        num_layers=decoder.num_layers,
        num_heads=decoder.num_heads,
        max_model_len=decoder.max_positions,
        num_params=decoder.num_params,
        checkpoint_dtype=values.text("dtype", values.text("torch_dtype", "float32")),
        kv_layers=tuple(_kv_layer(decoder, layer) for layer in range(decoder.num_layers)),
        quantization=method.text("quant_method") if quantization else None,
        has_tied_head=decoder.tie_word_embeddings,
        sharded_sizes={"intermediate_size": decoder.intermediate_size},
    )


def _kv_layer(decoder: DecoderConfig, layer: int) -> KVLayer:
    window = decoder.window(layer)
    return KVLayer(
        name=decoder.attention_name(layer),
        spec="full_attention" if window is None else "sliding_window",
        num_kv_heads=decoder.num_kv_heads,
        head_dim=decoder.head_dim,
        params=() if window is None else (("window", window),),
        layer_index=layer,
    )


def _head_dim(values: ConfigValues, default: int | None, hidden: int, heads: int) -> int:
    if default is None and values.config.get("head_dim") is None and hidden % heads:
        raise UnsupportedModelError(
            f"{values.architecture}: hidden_size ({hidden}) is not a multiple of "
            f"num_attention_heads ({heads}), and config.json has no head_dim"
        )
    head_dim = values.count("head_dim", default or hidden // heads)
    if head_dim % 2:
        raise UnsupportedModelError(
            f"{values.architecture}: head_dim ({head_dim}) must be even for a rotary embedding"
        )
    return head_dim
