"""Layer of the shared decoder: attention and MLP, with norms before them or on both sides.

Hidden states are passed as a pair: the output of the last block, and the residual that it must
still be added to, so that addition and norm are one operation. Letters as in
`quire.interfaces.attention`.

With layer kernels, a `DecoderLayer` is seven launches plus those of its attention backend:

    add + norm | qkv | attention: norm, rotation, write, attend | output
    add + norm | gate and up | activation | down

Biases add no launch, and adapters add two for each of the four products.
"""

from __future__ import annotations

from torch import Tensor

from quire.interfaces.model import ForwardBatch
from quire.layers import (
    Attention,
    GeluTanhAndMul,
    Layer,
    LayerContext,
    MergedColumnParallelLinear,
    QKNorm,
    QKVParallelLinear,
    RMSNorm,
    RowParallelLinear,
    SiluAndMul,
)
from quire.layers.attention.rotary import Rotation
from quire_models.decoder_config import DecoderConfig

ACTIVATIONS = {"silu": SiluAndMul, "gelu_tanh": GeluTanhAndMul}


class DecoderAttention(Layer):
    """Grouped-query self-attention with a rotary embedding."""

    def __init__(self, layer: int, config: DecoderConfig, context: LayerContext) -> None:
        super().__init__()
        name = f"model.layers.{layer}.self_attn"
        hidden, head_dim = config.hidden_size, config.head_dim
        heads = (config.num_heads, config.num_kv_heads, head_dim)
        self.qkv_proj = QKVParallelLinear(
            f"{name}.qkv_proj", hidden, *heads, bias=config.qkv_bias, context=context
        )
        self.qk_norm = _qk_norm(config, context) if config.has_qk_norm else None
        self.attention = Attention(
            config.attention_name(layer),
            *heads,
            scale=config.attention_scale,
            context=context,
            sliding_window=config.window(layer),
        )
        self.o_proj = RowParallelLinear(
            f"{name}.o_proj",
            config.num_heads * head_dim,
            hidden,
            bias=config.output_bias,
            context=context,
        )

    def forward(self, x: Tensor, rotation: Rotation, batch: ForwardBatch) -> Tensor:
        """Attend: `[T, hidden] -> [T, hidden]`."""
        qkv = self.qkv_proj(x, batch.adapters)  # [T, (H + 2K) * D]
        out = self.attention.forward_rotary(qkv, rotation, self.qk_norm, batch)
        projected: Tensor = self.o_proj(out, batch.adapters)
        return projected


class DecoderMLP(Layer):
    """Gated MLP: SwiGLU or GeGLU."""

    def __init__(self, layer: int, config: DecoderConfig, context: LayerContext) -> None:
        super().__init__()
        name, hidden, width = (
            f"model.layers.{layer}.mlp",
            config.hidden_size,
            config.intermediate_size,
        )
        bias = config.mlp_bias
        parts = {"gate_proj": width, "up_proj": width}
        self.gate_up_proj = MergedColumnParallelLinear(
            f"{name}.gate_up_proj", hidden, parts, bias=bias, context=context
        )
        self.activation = ACTIVATIONS[config.activation](context)
        self.down_proj = RowParallelLinear(
            f"{name}.down_proj", width, hidden, bias=bias, context=context
        )

    def forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """Transform each token separately: `[T, hidden] -> [T, hidden]`."""
        gate_up = self.gate_up_proj(x, batch.adapters)
        out: Tensor = self.down_proj(self.activation(gate_up), batch.adapters)
        return out


class DecoderLayer(Layer):
    """Attention and MLP, each after a norm."""

    def __init__(self, layer: int, config: DecoderConfig, context: LayerContext) -> None:
        super().__init__()
        self.input_layernorm = decoder_norm(config, context)
        self.self_attn = DecoderAttention(layer, config, context)
        self.post_attention_layernorm = decoder_norm(config, context)
        self.mlp = DecoderMLP(layer, config, context)

    def forward(
        self, x: Tensor, residual: Tensor | None, rotation: Rotation, batch: ForwardBatch
    ) -> tuple[Tensor, Tensor]:
        """Return the MLP's output and the residual that it must be added to."""
        x, residual = self.input_layernorm(x, residual)
        x = self.self_attn(x, rotation, batch)
        x, residual = self.post_attention_layernorm(x, residual)
        return self.mlp(x, batch), residual


class SandwichLayer(Layer):
    """Attention and MLP, each with a norm of its input and a norm of its output."""

    def __init__(self, layer: int, config: DecoderConfig, context: LayerContext) -> None:
        super().__init__()
        self.input_layernorm = decoder_norm(config, context)
        self.self_attn = DecoderAttention(layer, config, context)
        self.post_attention_layernorm = decoder_norm(config, context)
        self.pre_feedforward_layernorm = decoder_norm(config, context)
        self.mlp = DecoderMLP(layer, config, context)
        self.post_feedforward_layernorm = decoder_norm(config, context)

    def forward(
        self, x: Tensor, residual: Tensor | None, rotation: Rotation, batch: ForwardBatch
    ) -> tuple[Tensor, Tensor]:
        """Return the MLP's normed output and the residual that it must be added to."""
        x, residual = self.input_layernorm(x, residual)
        x, _ = self.post_attention_layernorm(self.self_attn(x, rotation, batch))
        x, residual = self.pre_feedforward_layernorm(x, residual)
        x, _ = self.post_feedforward_layernorm(self.mlp(x, batch))
        return x, residual


def make_layer(
    layer: int, config: DecoderConfig, context: LayerContext
) -> DecoderLayer | SandwichLayer:
    """Return a decoder layer of the class that the config needs."""
    kind = SandwichLayer if config.has_sandwich_norms else DecoderLayer
    return kind(layer, config, context)


def decoder_norm(config: DecoderConfig, context: LayerContext) -> RMSNorm:
    """Return a norm over the hidden size with the model's epsilon and offset."""
    return RMSNorm(
        config.hidden_size,
        config.rms_norm_eps,
        context,
        weight_offset=config.norm_weight_offset,
    )


def _qk_norm(config: DecoderConfig, context: LayerContext) -> QKNorm:
    return QKNorm(
        config.num_heads,
        config.num_kv_heads,
        config.head_dim,
        config.rms_norm_eps,
        context,
        weight_offset=config.norm_weight_offset,
    )
