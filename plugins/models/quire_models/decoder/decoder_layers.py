"""Decoder layers by the placement of their norms.

Hidden states are passed as a pair: the output of the last block, and the residual that it must
still be added to, so that addition and norm are one operation. Letters as in
`quire.interfaces.attention`.

With layer kernels, a `PreNormLayer` is seven launches plus those of its attention backend:

    add + norm | qkv | attention: norm, rotation, write, attend | output
    add + norm | gate and up | activation | down

Biases add no launch, and adapters add two for each of the four products.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from torch import Tensor

from quire.layers import Layer, LayerContext, MoE
from quire.layers.layer import frozen
from quire_models.decoder.decoder_attention import DecoderAttention
from quire_models.decoder.decoder_mlp import GatedMLP, PlainMLP, make_mlp
from quire_models.decoder.decoder_moe import DualMLP, make_moe
from quire_models.decoder.decoder_norms import Norm, make_norm
from quire_models.decoder.layer_inputs import LayerInputGate
from quire_models.decoder.layer_step import LayerStep
from quire_models.decoder.mla_attention import LatentAttention
from quire_models.decoder.options.decoder_config import DecoderConfig
from quire_models.decoder.options.mla_config import MLAConfig
from quire_models.decoder.options.mlp_config import MLPConfig
from quire_models.decoder.options.moe_config import DualMLPConfig, MoEConfig


class DecoderLayer(Layer):
    """Base of the layers below: attention, MLP, and norms by the names of the class.

    Args:
        index: Index of the layer.
        config: Options of the decoder.
        max_model_len: Number of positions.
        context: Settings to build the layer with.
        source: Attention of the layer whose keys and values are used; None: it has its own.
    """

    norm_names: ClassVar[tuple[str, ...]] = ("input_layernorm", "post_attention_layernorm")
    self_attn: DecoderAttention | LatentAttention
    input_layernorm: Norm
    post_attention_layernorm: Norm
    pre_feedforward_layernorm: Norm
    post_feedforward_layernorm: Norm

    def __init__(
        self,
        index: int,
        config: DecoderConfig,
        max_model_len: int,
        context: LayerContext,
        source: DecoderAttention | None = None,
    ) -> None:
        super().__init__()
        layer, hidden = config.layers[index], config.hidden_size
        if isinstance(layer.attention, MLAConfig):
            self.self_attn = LatentAttention(index, layer.attention, hidden, context)
        else:
            self.self_attn = DecoderAttention(
                index,
                layer.attention,
                hidden,
                max_model_len,
                context,
                source=source,
                is_source=index in config.source_layers,
            )
        self.mlp = _make_mlp(f"model.layers.{index}.mlp", layer.mlp, hidden, context)
        self.residual_scale = config.residual_scale
        for name in self.norm_names:
            setattr(self, name, make_norm(hidden, config.norm, context))

    @abstractmethod
    def forward(
        self, x: Tensor, residual: Tensor | None, step: LayerStep
    ) -> tuple[Tensor, Tensor | None]:
        """Return the layer's output, and the residual that it must be added to."""

    def _scaled(self, x: Tensor) -> Tensor:
        """Multiply a block's output by the model's factor, in place."""
        return x if self.residual_scale == 1.0 else x.mul_(self.residual_scale)


class PreNormLayer(DecoderLayer):
    """Attention and MLP, each with a norm of its input."""

    def forward(
        self, x: Tensor, residual: Tensor | None, step: LayerStep
    ) -> tuple[Tensor, Tensor | None]:
        """Return the MLP's output and the residual that it must be added to."""
        x, residual = self.input_layernorm(x, residual)
        x = self._scaled(self.self_attn(x, step))
        x, residual = self.post_attention_layernorm(x, residual)
        return self._scaled(self.mlp(x, step.batch)), residual


class SandwichLayer(DecoderLayer):
    """Attention and MLP, each with a norm of its input and a norm of its output."""

    norm_names: ClassVar[tuple[str, ...]] = (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    )

    def forward(
        self, x: Tensor, residual: Tensor | None, step: LayerStep
    ) -> tuple[Tensor, Tensor | None]:
        """Return the MLP's normed output and the residual that it must be added to."""
        x, residual = self.input_layernorm(x, residual)
        x, _ = self.post_attention_layernorm(self.self_attn(x, step))
        x, residual = self.pre_feedforward_layernorm(self._scaled(x), residual)
        x, _ = self.post_feedforward_layernorm(self.mlp(x, step.batch))
        return self._scaled(x), residual


class ScaledSandwichLayer(SandwichLayer):
    """A sandwich whose sum is multiplied by a number of the layer (Gemma 4).

    Before that, an input of the layer may be added.
    """

    layer_scalar: Tensor  # [1]

    def __init__(
        self,
        index: int,
        config: DecoderConfig,
        max_model_len: int,
        context: LayerContext,
        source: DecoderAttention | None = None,
    ) -> None:
        super().__init__(index, config, max_model_len, context, source)
        self.register_parameter("layer_scalar", frozen((1,), context.dtype, context.device))
        self.input_gate = (
            None
            if config.layer_inputs is None
            else LayerInputGate(
                f"model.layers.{index}.input_gate",
                config.layer_inputs,
                config.hidden_size,
                context,
            )
        )

    def forward(
        self, x: Tensor, residual: Tensor | None, step: LayerStep
    ) -> tuple[Tensor, Tensor | None]:
        """Return the scaled sum; there is no residual."""
        x, residual = self.input_layernorm(x, residual)
        x, _ = self.post_attention_layernorm(self.self_attn(x, step))
        x, residual = self.pre_feedforward_layernorm(x, residual)
        is_dual = isinstance(self.mlp, DualMLP)
        x = self.mlp(x, residual, step.batch) if is_dual else self.mlp(x, step.batch)
        x, _ = self.post_feedforward_layernorm(x)
        x = residual.add_(x)
        if self.input_gate is not None:
            x = self.input_gate(x, step.layer_input, step.batch)
        return x.mul_(self.layer_scalar), None


class PostNormLayer(DecoderLayer):
    """Attention and MLP, each with a norm of its output."""

    norm_names: ClassVar[tuple[str, ...]] = (
        "post_attention_layernorm",
        "post_feedforward_layernorm",
    )

    def forward(
        self, x: Tensor, residual: Tensor | None, step: LayerStep
    ) -> tuple[Tensor, Tensor | None]:
        """Return the sum; there is no residual."""
        x = x if residual is None else residual.add_(x)
        attended = self.self_attn(x, step)
        x = x.add_(self._scaled(self.post_attention_layernorm(attended)[0]))
        computed = self.mlp(x, step.batch)
        return x.add_(self._scaled(self.post_feedforward_layernorm(computed)[0])), None


class PostSumLayer(DecoderLayer):
    """Attention and MLP, each followed by a norm of its sum with its input (OPT 350m)."""

    def forward(
        self, x: Tensor, residual: Tensor | None, step: LayerStep
    ) -> tuple[Tensor, Tensor | None]:
        """Return the last norm; there is no residual."""
        del residual
        attended = self.self_attn(x, step)
        x, _ = self.input_layernorm(self._scaled(attended), x)
        return self.post_attention_layernorm(self._scaled(self.mlp(x, step.batch)), x)[0], None


class ParallelLayer(DecoderLayer):
    """Attention and MLP side by side, after one norm."""

    norm_names: ClassVar[tuple[str, ...]] = ("input_layernorm",)

    def forward(
        self, x: Tensor, residual: Tensor | None, step: LayerStep
    ) -> tuple[Tensor, Tensor | None]:
        """Return the sum of both outputs, and the residual that it must be added to."""
        x, residual = self.input_layernorm(x, residual)
        out = self.mlp(x, step.batch).add_(self.self_attn(x, step))
        return self._scaled(out), residual


class ParallelTwoNormsLayer(DecoderLayer):
    """Attention and MLP side by side, each with a norm of the same input."""

    def forward(
        self, x: Tensor, residual: Tensor | None, step: LayerStep
    ) -> tuple[Tensor, Tensor | None]:
        """Return the sum of both outputs, and the residual that it must be added to."""
        normed, residual = self.input_layernorm(x, residual)
        out = self.self_attn(normed, step)
        normed, _ = self.post_attention_layernorm(residual)
        return self._scaled(out.add_(self.mlp(normed, step.batch))), residual


def _make_mlp(
    name: str,
    config: MLPConfig | MoEConfig | DualMLPConfig,
    hidden_size: int,
    context: LayerContext,
) -> GatedMLP | PlainMLP | MoE | DualMLP:
    if isinstance(config, DualMLPConfig):
        return DualMLP(name, config, hidden_size, context)
    if isinstance(config, MoEConfig):
        return make_moe(name, config, hidden_size, context)
    return make_mlp(name, config, hidden_size, context)


LAYERS: dict[str, type[DecoderLayer]] = {
    "pre": PreNormLayer,
    "post": PostNormLayer,
    "sandwich": SandwichLayer,
    "scaled_sandwich": ScaledSandwichLayer,
    "post_sum": PostSumLayer,
    "parallel": ParallelLayer,
    "parallel_two_norms": ParallelTwoNormsLayer,
}
