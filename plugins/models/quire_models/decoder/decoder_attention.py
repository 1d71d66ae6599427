"""Self-attention of a decoder layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from quire.interfaces.model import ForwardBatch
from quire.layers import (
    Attention,
    Layer,
    LayerContext,
    QKVParallelLinear,
    RowParallelLinear,
    rotate,
)
from quire.layers.attention.rotary import Rotation
from quire.layers.qk_norm import HeadNorms
from quire_models.decoder.decoder_norms import make_qk_norm, make_value_norm
from quire_models.decoder.layer_step import LayerStep
from quire_models.decoder.options.attention_config import AttentionConfig, QueryScaling
from quire_models.decoder.options.decoder_config import attention_name

QKV, QK, Q = ("q_proj", "k_proj", "v_proj"), ("q_proj", "k_proj"), ("q_proj",)
PACKED = {QKV: "qkv_proj", QK: "qk_proj", Q: "q_proj"}  # names of the merged layers


class DecoderAttention(Layer):
    """Grouped-query self-attention.

    A layer that uses the keys and values of another one has no cache. It attends through that
    layer's `Attention`, which writes them again, to the same slots: so every backend can do it, and
    the few key heads cost little.

    Args:
        layer: Index of the layer.
        config: Options of the layer's attention.
        hidden_size: Elements per hidden state.
        max_model_len: Number of positions.
        context: Settings to build the layer with.
        source: Attention of the layer whose keys and values are used; None: the layer has its own.
        is_source: Whether other layers use the keys and values of this one.
    """

    def __init__(
        self,
        layer: int,
        config: AttentionConfig,
        hidden_size: int,
        max_model_len: int,
        context: LayerContext,
        *,
        source: DecoderAttention | None = None,
        is_source: bool = False,
    ) -> None:
        super().__init__()
        self.layer, self.is_source = layer, is_source
        name = f"model.layers.{layer}.self_attn"
        heads = (config.num_heads, config.num_kv_heads, config.head_dim)
        self.config = config
        own = QK if config.has_key_values else QKV
        parts = own if source is None else Q
        linear = QKVParallelLinear(
            f"{name}.{PACKED[parts]}",
            hidden_size,
            *heads,
            parts=parts,
            bias=config.qkv_bias,
            qk_order=config.head_order,
            context=context,
        )
        setattr(self, PACKED[parts], linear)
        self._project = (linear,)  # not a child of another name
        self.value_norm = make_value_norm(config, context) if source is None else None
        if source is None:
            self.qk_norm = make_qk_norm(config, context)
        else:
            self.q_norm = make_qk_norm(config, context, keys_of=source.qk_norm)
            vars(self)["qk_norm"] = self.q_norm  # not a child of another name
        if source is None:
            self.attention = Attention(
                attention_name(layer),
                *heads,
                scale=config.scale,
                context=context,
                sliding_window=config.window,
                attention_chunk=config.chunk,
                logit_soft_cap=config.logit_soft_cap,
                has_sinks=config.has_sinks,
                alibi_slopes=config.alibi_slopes,
            )
        else:
            vars(self)["attention"] = source.attention  # not a child of another layer
        self.o_proj = RowParallelLinear(
            f"{name}.o_proj",
            config.num_heads * config.head_dim,
            hidden_size,
            bias=config.output_bias,
            context=context,
        )
        self.query_factors = (
            None
            if config.query_scaling is None
            else QueryFactors(config.query_scaling, max_model_len, context)
        )

    def forward(
        self,
        x: Tensor,  # [T, hidden]
        step: LayerStep,
    ) -> Tensor:  # [T, hidden]
        """Attend."""
        batch = step.batch
        projected: Tensor = self._project[0](x, batch.adapters)
        qkv = self._with_key_values(projected, step.key_values)  # [T, (H + 2K) * D]
        norm = self.qk_norm
        if self.config.clip is not None:
            qkv, norm = self._clipped(qkv, self.config.clip)
        if self.query_factors is not None:  # a rotation does not change lengths
            self._heads(qkv)[:, : self.attention.num_heads].mul_(self.query_factors(step.positions))
        out: Tensor = self.o_proj(self._attend(qkv, step.rotation, norm, batch), batch.adapters)
        return out

    def _with_key_values(self, projected: Tensor, key_values: dict[int, Tensor]) -> Tensor:
        """Return queries, keys and values, `[T, (H + 2K) * D]`; keep them for other layers."""
        if self.config.key_values_of is not None:
            return torch.cat((projected, key_values[self.config.key_values_of]), -1)
        qkv, num_heads = projected, self.attention.num_heads
        if self.config.has_key_values:
            qkv = torch.cat((qkv, self._heads(qkv)[:, num_heads:].flatten(1)), -1)
        if self.value_norm is not None:
            self.value_norm(self._heads(qkv)[:, -self.attention.num_kv_heads :])
        if self.is_source:  # a copy, as the backend may write over them
            key_values[self.layer] = qkv[:, num_heads * self.attention.head_dim :].clone()
        return qkv

    def _clipped(self, qkv: Tensor, bound: float) -> tuple[Tensor, None]:
        """Clip queries, keys and values, after the norm; no norm is left to apply."""
        if self.qk_norm is not None:
            num_normed = self.attention.num_heads + self.attention.num_kv_heads
            qk = self._heads(qkv)[:, :num_normed]
            qk.copy_(self.qk_norm(qk))
        return qkv.clamp_(-bound, bound), None

    def _attend(
        self,
        qkv: Tensor,
        rotation: Rotation | None,
        norm: HeadNorms | None,
        batch: ForwardBatch,
    ) -> Tensor:
        """Return the attention of all heads, `[T, H * D]`."""
        if rotation is not None and (norm is None or not self._is_norm_last):
            return self.attention.forward_rotary(qkv, rotation, norm, batch)
        heads, num_heads = self._heads(qkv), self.attention.num_heads
        num_rotated = num_heads + self.attention.num_kv_heads
        qk = heads[:, :num_rotated]
        qk = qk if rotation is None else rotate(qk, rotation)
        qk = qk if norm is None else norm(qk)
        return self.attention.forward(
            qk[:, :num_heads], qk[:, num_heads:], heads[:, num_rotated:], batch
        )

    @property
    def _is_norm_last(self) -> bool:
        return self.config.qk_norm is not None and self.config.qk_norm.is_after_rope

    def _heads(self, qkv: Tensor) -> Tensor:
        """Return a view of the projections by heads, `[T, H + 2K, D]`."""
        head_dim = self.attention.head_dim
        return qkv.view(len(qkv), qkv.shape[-1] // head_dim, head_dim)


class QueryFactors(Layer):
    """Table of the factors on queries by position."""

    table: Tensor  # [max_positions, 1]

    def __init__(self, scaling: QueryScaling, max_positions: int, context: LayerContext) -> None:
        super().__init__()
        positions = torch.arange(max_positions) + scaling.shift
        factors = 1 + scaling.beta * torch.log1p((positions // scaling.length).float())
        table = factors.unsqueeze(1).to(device=context.device, dtype=context.dtype)
        self.register_buffer("table", table, persistent=False)

    def forward(self, positions: Tensor) -> Tensor:
        """Return the factors of positions `[T]`, `[T, 1, 1]`."""
        return functional.embedding(positions, self.table).unsqueeze(1)


def rotation_of(rotations: Sequence[Rotation], index: int | None) -> Rotation | None:
    """Return a layer's rotation; None if it has none."""
    return None if index is None else rotations[index]
