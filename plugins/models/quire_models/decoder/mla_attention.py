"""Multi-head latent attention of a decoder layer.

The cache has one latent and one rotated key per token. The keys' up-projection is fused into the
query, and the values' up-projection into the output:

    score = q_nope . (W_k latent) + q_rope . k_rope = (q_nope W_k) . latent + q_rope . k_rope
    out   = W_v (sum of weight * latent)

C elements of a latent, P of a rotated key, N of a query that are not rotated, V of a value.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quire.interfaces.model import ForwardBatch
from quire.layers import (
    Layer,
    LayerContext,
    MLAAttention,
    ReplicatedLinear,
    RowParallelLinear,
    rotate,
)
from quire.layers.layer import frozen
from quire.layers.linear.linear_layers import ParallelLinear
from quire.layers.linear.linear_slice import LinearSlice
from quire.layers.parallel import shard
from quire_models.decoder.decoder_norms import make_norm
from quire_models.decoder.layer_step import LayerStep
from quire_models.decoder.options.decoder_config import attention_name
from quire_models.decoder.options.mla_config import MLAConfig


class LatentAttention(Layer):
    """Multi-head latent attention with its projections.

    Args:
        layer: Index of the decoder layer.
        config: Options.
        hidden_size: Elements per hidden state.
        context: Settings to build the layer with.
    """

    def __init__(
        self, layer: int, config: MLAConfig, hidden_size: int, context: LayerContext
    ) -> None:
        super().__init__()
        name = f"model.layers.{layer}.self_attn"
        self.config = config
        rank, bias = config.query_rank, config.has_bias
        if rank is None:
            self.q_proj = _query_projection(f"{name}.q_proj", hidden_size, config, context)
        else:
            self.q_a_proj = ReplicatedLinear(
                f"{name}.q_a_proj", hidden_size, rank, bias=bias, context=context
            )
            self.q_a_layernorm = make_norm(rank, config.norm, context)
            self.q_b_proj = _query_projection(f"{name}.q_b_proj", rank, config, context)
        self.kv_a_proj_with_mqa = _row_projection(
            f"{name}.kv_a_proj_with_mqa", hidden_size, config, context
        )
        self.kv_a_layernorm = make_norm(config.latent_dim, config.norm, context)
        self.kv_b_proj = LatentProjection(config, context)
        self.attention = MLAAttention(
            attention_name(layer),
            config.num_heads,
            config.latent_dim,
            config.rope_dim,
            config.scale,
            context,
        )
        self.o_proj = RowParallelLinear(
            f"{name}.o_proj",
            config.num_heads * config.value_dim,
            hidden_size,
            bias=bias,
            context=context,
        )

    def forward(
        self,
        x: Tensor,  # [T, hidden]
        step: LayerStep,
    ) -> Tensor:  # [T, hidden]
        """Attend."""
        batch, rotation = step.batch, step.rotation
        if rotation is None:
            raise RuntimeError("latent attention needs a rotary embedding")
        num_nope, num_latent = self.config.nope_dim, self.config.latent_dim
        queries = self._queries(x, batch)  # [T, H, N + P]
        row = self.kv_a_proj_with_mqa(x, batch.adapters)  # [T, C + P]
        k_rope = row[:, num_latent:].unsqueeze(1)  # [T, 1, P]
        out = self.attention(
            self.kv_b_proj.to_latent(queries[..., :num_nope]),
            rotate(queries[..., num_nope:], rotation),
            self.kv_a_layernorm(row[:, :num_latent])[0],
            rotate(k_rope, rotation).squeeze(1),
            batch,
        )  # [T, H, C]
        projected: Tensor = self.o_proj(self.kv_b_proj.to_values(out), batch.adapters)
        return projected

    def _queries(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """Return the queries by heads, `[T, H, N + P]`."""
        if self.config.query_rank is None:
            queries: Tensor = self.q_proj(x, batch.adapters)
        else:
            latent = self.q_a_layernorm(self.q_a_proj(x, batch.adapters))[0]
            queries = self.q_b_proj(latent, batch.adapters)
        return queries.view(len(x), -1, self.config.query_dim)


class LatentProjection(Layer):
    """Up-projection of a latent to keys and values, by heads; used from both of its sides.

    It is not quantized, and adapters cannot change it.
    """

    weight: Tensor  # [H, N + V, C]

    def __init__(self, config: MLAConfig, context: LayerContext) -> None:
        super().__init__()
        self.config = config
        self.heads = shard("num_attention_heads", config.num_heads, context.tp)
        shape = (len(self.heads), config.nope_dim + config.value_dim, config.latent_dim)
        self.register_parameter("weight", frozen(shape, context.dtype, context.device))

    def checkpoint_shape(self, parameter: str, part: str) -> tuple[int, ...]:
        """Return `[all heads * (N + V), C]`."""
        del parameter, part
        rows = self.config.num_heads * (self.config.nope_dim + self.config.value_dim)
        return (rows, self.config.latent_dim)

    def load_weight(self, parameter: str, tensor: Tensor, part: str) -> None:
        """Copy this device's heads."""
        del part
        heads = tensor.reshape(self.config.num_heads, -1, self.config.latent_dim)
        self.get_parameter(parameter).copy_(heads[self.heads.start : self.heads.stop])

    def to_latent(self, q_nope: Tensor) -> Tensor:  # [T, H, N] -> [T, H, C]
        """Return queries for latents instead of keys."""
        keys = self.weight[:, : self.config.nope_dim]
        return torch.bmm(q_nope.transpose(0, 1), keys).transpose(0, 1)

    def to_values(self, latents: Tensor) -> Tensor:  # [T, H, C] -> [T, H * V]
        """Return the values of weighted sums of latents."""
        values = self.weight[:, self.config.nope_dim :]
        out = torch.bmm(latents.transpose(0, 1), values.transpose(1, 2))  # [H, T, V]
        return out.transpose(0, 1).flatten(1)


def _query_projection(
    name: str, in_features: int, config: MLAConfig, context: LayerContext
) -> ParallelLinear:
    """Return the projection to query heads, which are divided over the devices."""
    size = config.query_dim
    heads = shard("num_attention_heads", config.num_heads, context.tp)
    rows = range(heads.start * size, heads.stop * size)
    part = LinearSlice(_last(name), config.num_heads * size, rows, config.query_order)
    columns = range(in_features)
    return ParallelLinear(name, in_features, columns, (part,), bias=False, context=context)


def _row_projection(
    name: str, hidden_size: int, config: MLAConfig, context: LayerContext
) -> ParallelLinear:
    """Return the projection to a latent and a key, which every device computes."""
    size = config.head_dim
    part = LinearSlice(_last(name), size, range(size), config.row_order)
    columns = range(hidden_size)
    return ParallelLinear(
        name, hidden_size, columns, (part,), bias=config.has_bias, context=context
    )


def _last(name: str) -> str:
    return name.rpartition(".")[2]
