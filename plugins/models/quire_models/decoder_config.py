"""What the shared decoder is built from, and what the engine plans with; read without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quire.errors import UnsupportedModelError
from quire.interfaces.kv_cache import KVLayer
from quire.interfaces.model import ModelDescription
from quire.layers.config_values import ConfigValues
from quire.layers.rope_parameters import RopeParameters, read_rope


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """A Llama-like decoder: pre-norm, rotary embedding, grouped-query attention, SwiGLU.

    Attributes:
        qkv_bias: The query, key and value projections have biases.
        output_bias: The attention's output projection has one.
        mlp_bias: The MLP's three projections have them.
        has_qk_norm: Each query and key head is normalised before the rotation.
        tie_word_embeddings: The LM head uses the embedding's matrix.
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

    def attention_name(self, layer: int) -> str:
        """Return the module path of a layer's attention."""
        return f"model.layers.{layer}.self_attn.attention"

    @property
    def num_params(self) -> int:
        """Numbers in all tensors of the checkpoint."""
        hidden, width = self.hidden_size, self.intermediate_size
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        qkv = (queries + 2 * keys) * (hidden + self.qkv_bias)
        output = hidden * (queries + self.output_bias)
        mlp = 3 * hidden * width + self.mlp_bias * (2 * width + hidden)
        norms = 2 * hidden + 2 * self.head_dim * self.has_qk_norm
        vocabulary = self.vocab_size * hidden * (1 if self.tie_word_embeddings else 2)
        return vocabulary + self.num_layers * (qkv + output + mlp + norms) + hidden


def read_sizes(values: ConfigValues, *, head_dim: int | None = None) -> dict[str, Any]:
    """Read what all architectures of this package have in common, as fields of `DecoderConfig`.

    Args:
        values: The config.json.
        head_dim: The architecture's default; None: the hidden size over the heads.

    Raises:
        UnsupportedModelError: A value is missing, wrong, or asks for what is not built here.
    """
    activation = values.text("hidden_act", "silu")
    if activation != "silu":
        raise UnsupportedModelError(
            f"{values.architecture}: hidden_act {activation!r} is not supported; it must be 'silu'"
        )
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
        "rope": read_rope(values),
        "tie_word_embeddings": values.flag("tie_word_embeddings", False),
    }


def refuse_sliding_window(values: ConfigValues) -> None:
    """Check that every layer sees the whole context.

    Raises:
        UnsupportedModelError: The config switches sliding windows on.
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
    """Say what the engine plans with."""
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
    )


def _kv_layer(decoder: DecoderConfig, layer: int) -> KVLayer:
    return KVLayer(
        name=decoder.attention_name(layer),
        spec="full_attention",
        num_kv_heads=decoder.num_kv_heads,
        head_dim=decoder.head_dim,
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
