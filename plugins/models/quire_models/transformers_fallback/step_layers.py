"""Layers of quire in the places of a transformers model's linear layers, embedding and head.

transformers calls them with a batch of one row, `[1, T, ...]`, and without quire's batch. So they
share a `CurrentStep`, which the model sets before a forward pass. Letters as in
`quire.interfaces.attention`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quire.interfaces.model import ForwardBatch
from quire.layers import (
    Attention,
    Experts,
    LayerContext,
    LMHead,
    Routed,
    RowParallelLinear,
    VocabParallelEmbedding,
)
from quire.layers.linear.linear_layers import ParallelLinear
from quire.layers.linear.linear_slice import LinearSlice
from quire.layers.parallel import TensorParallelGroup, shard, shard_kv_heads


@dataclass(slots=True)
class CurrentStep:
    """The batch of the forward pass that is running."""

    batch: ForwardBatch | None = None

    @property
    def running(self) -> ForwardBatch:
        """The batch.

        Raises:
            RuntimeError: No forward pass is running.
        """
        if self.batch is None:
            raise RuntimeError("a layer of a transformers model runs outside of a forward pass")
        return self.batch


class OutputShardedLinear(ParallelLinear):
    """Linear layer whose outputs are sharded, or which every rank has whole.

    Args:
        name: Module path in the model.
        in_features: Number of inputs.
        out_features: Number of outputs of the whole model.
        rows: Outputs of this device.
        bias: Whether it has a bias.
        step: Step that is running.
        gathers: Whether the outputs of all ranks are returned on each.
        is_transposed: Whether the checkpoint's matrix is `[in, out]`.
        context: Settings to build the layer with.
    """

    def __init__(
        self,
        name: str,
        in_features: int,
        out_features: int,
        rows: range,
        *,
        bias: bool,
        step: CurrentStep,
        gathers: bool = False,
        is_transposed: bool = False,
        context: LayerContext,
    ) -> None:
        part = LinearSlice(name.rpartition(".")[2], out_features, rows)
        columns = range(in_features)
        super().__init__(name, in_features, columns, (part,), bias=bias, context=context)
        self.step = step
        self.gathers = gathers and context.tp.size > 1
        self.is_transposed = is_transposed

    def checkpoint_shape(self, parameter: str, part: str) -> tuple[int, ...]:
        """Return `[out]` for the bias, and `[out, in]` or `[in, out]` for the matrix."""
        shape = super().checkpoint_shape(parameter, part)
        return shape[::-1] if self.is_transposed else shape

    def load_weight(self, parameter: str, tensor: Tensor, part: str) -> None:
        """Copy this device's rows of the matrix, or of the bias."""
        is_turned = self.is_transposed and tensor.dim() == 2
        super().load_weight(parameter, tensor.T if is_turned else tensor, part)

    def forward(self, x: Tensor, *others: object) -> Tensor:  # [..., in] -> [..., out / tp]
        """Return this device's outputs, or all."""
        del others
        out = super().forward(x.reshape(-1, x.shape[-1]), self.step.running.adapters)
        if self.gathers:
            out = self.context.tp.all_gather(out, -1)
        return out.view(*x.shape[:-1], -1)


class InputShardedLinear(RowParallelLinear):
    """Linear layer whose inputs are sharded, so that partial outputs are summed.

    Args:
        name: Module path in the model.
        in_features: Number of inputs of the whole model.
        out_features: Number of outputs.
        bias: Whether it has a bias.
        step: Step that is running.
        cuts: Whether the layer is given all inputs, and cuts this device's from them.
        context: Settings to build the layer with.
    """

    def __init__(
        self,
        name: str,
        in_features: int,
        out_features: int,
        *,
        bias: bool,
        step: CurrentStep,
        cuts: bool,
        context: LayerContext,
    ) -> None:
        super().__init__(name, in_features, out_features, bias=bias, context=context)
        self.step = step
        self.cuts = cuts and context.tp.size > 1

    def forward(self, x: Tensor, *others: object) -> Tensor:  # [..., in / tp] -> [..., out]
        """Return all outputs, on every device."""
        del others
        rows = x.reshape(-1, x.shape[-1])
        if self.cuts:
            rows = rows[:, self.columns.start : self.columns.stop].contiguous()
        return super().forward(rows, self.step.running.adapters).view(*x.shape[:-1], -1)


class TokenEmbedding(VocabParallelEmbedding):
    """Embedding of token ids `[1, T]`, multiplied by a factor.

    Args:
        vocab_size: V.
        hidden_size: Elements per vector.
        factor: Factor on the vectors.
        context: Settings to build the layer with.
    """

    def __init__(
        self, vocab_size: int, hidden_size: int, factor: float, context: LayerContext
    ) -> None:
        super().__init__(vocab_size, hidden_size, context)
        self.factor = factor

    def forward(self, input_ids: Tensor) -> Tensor:  # [1, T] -> [1, T, hidden]
        """Return the vectors of token ids."""
        vectors = super().forward(input_ids.flatten())
        if self.factor != 1.0:
            vectors = vectors * self.factor
        return vectors.view(*input_ids.shape, -1)


class TokenHead(LMHead):
    """Head that transformers calls with a batch of one row."""

    def forward(self, hidden_states: Tensor) -> Tensor:  # [1, N, hidden] -> [1, N, V / tp]
        """Return the logits of this device's shard of the vocabulary."""
        rows = super().forward(hidden_states.reshape(-1, hidden_states.shape[-1]))
        return rows.view(*hidden_states.shape[:-1], -1)


class TokenExperts(Experts):
    """Experts that transformers calls with the experts of each token and their weights."""

    def forward(  # type: ignore[override]
        self,
        x: Tensor,  # [..., hidden], T tokens
        experts: Tensor,  # [..., k]
        weights: Tensor,  # [..., k]
    ) -> Tensor:  # [..., hidden]
        """Return the weighted sum of the outputs of each token's experts."""
        rows = x.reshape(-1, x.shape[-1])
        shape = (len(rows), experts.shape[-1])
        routed = Routed(
            experts.reshape(shape).to(torch.int64).contiguous(),
            weights.reshape(shape).float().contiguous(),
        )
        return super().forward(rows.contiguous(), routed).view(x.shape)


@dataclass(frozen=True, slots=True)
class PackedAttention:
    """Attention of one layer over a packed batch, as transformers calls it.

    Attributes:
        attention: Layer of quire.
        num_heads: Number of query heads of the whole model.
        num_kv_heads: Number of key/value heads of the whole model.
        value_dim: Elements of a value head.
        step: Step that is running.
        tp: Devices that the heads are sharded over.
    """

    attention: Attention
    num_heads: int
    num_kv_heads: int
    value_dim: int
    step: CurrentStep
    tp: TensorParallelGroup

    def __call__(
        self,
        query: Tensor,  # [1, H, T, D], of this device or of the whole model
        key: Tensor,  # [1, K, T, D], as above
        value: Tensor,  # [1, K, T, Dv], as above
    ) -> Tensor:  # [1, T, H, Dv], with the heads of `query`
        """Write keys and values to the cache, and attend."""
        heads = shard("num_attention_heads", self.num_heads, self.tp)
        kv_heads = shard_kv_heads(self.num_kv_heads, self.tp)
        has_all_heads = query.shape[1] == self.num_heads
        out: Tensor = self.attention(
            self._rows(query, heads, self.num_heads),
            self._rows(key, kv_heads, self.num_kv_heads),
            self._rows(value, kv_heads, self.num_kv_heads),
            self.step.running,
        )  # [T, H * D], of this device
        out = out.view(len(out), -1, self.attention.head_dim)[..., : self.value_dim]
        if has_all_heads and self.tp.size > 1:
            out = self.tp.all_gather(out.flatten(1).contiguous(), -1)
        return out.reshape(1, query.shape[2], -1, self.value_dim)

    def _rows(self, given: Tensor, heads: range, count: int) -> Tensor:
        """Return this device's heads, a row for each token: `[1, N, T, D] -> [T, N, D]`."""
        if given.shape[1] == count:
            given = given[:, heads.start : heads.stop]
        rows = given[0].transpose(0, 1)
        padding = self.attention.head_dim - rows.shape[-1]
        if padding:
            rows = torch.nn.functional.pad(rows, (0, padding))
        return rows.contiguous()
