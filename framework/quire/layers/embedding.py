"""Token embedding and LM head, sharded by vocabulary rows; learned positions, on every device."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from quire.interfaces.quantization import LinearMethod
from quire.interfaces.quantized_weight import QuantizedWeight
from quire.layers.context import LayerContext
from quire.layers.layer import Layer, frozen
from quire.layers.linear.linear_layers import linear_method, plain_method
from quire.layers.vocabulary import VocabularyShard


class VocabParallelEmbedding(Layer):
    """Token ids to vectors. Each device looks up the ids of its shard, and the results are summed.

    If linear layers are quantized and the checkpoint's dtype is narrower than the compute dtype,
    the weight stays in the checkpoint's dtype and vectors are converted after lookup. A quantized
    weight stays quantized if its method has rows. The exception is a weight that an LM head uses
    without quantization.
    """

    weight: Tensor  # [padded V / tp, hidden_size]

    def __init__(self, vocab_size: int, hidden_size: int, context: LayerContext) -> None:
        super().__init__()
        self.context = context
        self.tp = context.tp
        self.vocab_size = vocab_size
        self.rows = VocabularyShard(vocab_size, context.tp).rows
        self._holder: tuple[LMHead, ...] = ()  # of the weight; a tuple, so that it is no child
        self._method: LinearMethod | None = None  # of a quantized weight
        self._may_be_narrow = context.quantization is not None
        shape = (len(self.rows), hidden_size)
        self.register_parameter("weight", frozen(shape, context.dtype, context.device))

    def checkpoint_shape(self, parameter: str, part: str) -> tuple[int, ...]:
        """Return `[V, hidden_size]`."""
        del parameter, part
        return (self.vocab_size, self.weight.shape[1])

    def load_weight(self, parameter: str, tensor: Tensor, part: str) -> None:
        """Copy the rows of this device's ids; padding rows become zero."""
        if self._holder:
            return self._holder[0].load_weight(parameter, tensor, part)
        if self._may_be_narrow and tensor.dtype.itemsize < self.weight.itemsize:
            shape = tuple(self.weight.shape)
            self.register_parameter("weight", frozen(shape, tensor.dtype, self.context.device))
        _load_rows(self.weight, tensor, self.rows)
        return None

    def load_quantized(self, parameter: str, weight: QuantizedWeight, part: str) -> None:
        """Load the rows of this device's ids; padding rows become zero."""
        if self._holder:
            return self._holder[0].load_quantized(parameter, weight, part)
        method = linear_method("embed_tokens", self.context)
        if not self._may_be_narrow or not method.has_rows:
            return super().load_quantized(parameter, weight, part)
        self._method = method
        method.create_weights(self, *self.weight.shape)
        return method.load_quantized(self, _own_rows(weight, self.rows), 0)

    def stay_in_compute_type(self) -> None:
        """Keep the weight in the compute dtype, because another layer multiplies by it."""
        self._may_be_narrow = False

    def share_rows(self, head: LMHead) -> None:
        """Load the weight into a head, and look up its rows there."""
        self._holder = (head,)

    def finish_loading(self) -> None:
        """Drop the weight if a head has it, or repack a quantized one."""
        if self._holder:
            self.register_parameter("weight", None)
        elif self._method is not None:
            self._method.finish_loading(self)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return `[T, hidden_size]` for ids `[T]`."""
        if self.tp.size == 1:
            return self._vectors(input_ids)
        local = input_ids - self.rows.start
        is_elsewhere = (local < 0) | (local >= len(self.rows))
        vectors = self._vectors(local.masked_fill(is_elsewhere, 0))
        return self.tp.all_reduce(vectors.masked_fill_(is_elsewhere.unsqueeze(1), 0))

    def _vectors(self, rows: Tensor) -> Tensor:
        if self._holder:
            return self._holder[0].look_up(rows)
        if self._method is not None:
            return self._method.rows(self, rows)
        return functional.embedding(rows, self.weight).to(self.context.dtype)


class PositionEmbedding(Layer):
    """Learned vectors of positions (GPT-2), the same on every device.

    Args:
        num_positions: Number of positions that the model has vectors of.
        hidden_size: Elements per vector.
        context: Settings to build the layer with.
        num_skipped_rows: Rows of the checkpoint before that of position 0 (OPT: 2).
    """

    weight: Tensor  # [num_positions, hidden_size]

    def __init__(
        self,
        num_positions: int,
        hidden_size: int,
        context: LayerContext,
        *,
        num_skipped_rows: int = 0,
    ) -> None:
        super().__init__()
        self.num_skipped_rows = num_skipped_rows
        weight = frozen((num_positions, hidden_size), context.dtype, context.device)
        self.register_parameter("weight", weight)

    def checkpoint_shape(self, parameter: str, part: str) -> tuple[int, ...]:
        """Return `[num_skipped_rows + num_positions, hidden_size]`."""
        del parameter, part
        num_positions, hidden_size = self.weight.shape
        return (self.num_skipped_rows + num_positions, hidden_size)

    def load_weight(self, parameter: str, tensor: Tensor, part: str) -> None:
        """Copy the rows from position 0 on."""
        super().load_weight(parameter, tensor[self.num_skipped_rows :], part)

    def forward(self, positions: Tensor) -> Tensor:
        """Return `[T, hidden_size]` for positions `[T]`."""
        return functional.embedding(positions, self.weight)


class LMHead(Layer):
    """Hidden states to logits of this device's shard of the vocabulary.

    The weight is its own or the embedding's.

    Args:
        vocab_size: V.
        hidden_size: Elements per hidden state.
        context: Settings to build the layer with.
        tied_to: Embedding with the weight to use; None: the head has a weight of its own.
        bias: Whether the head has a bias.
    """

    weight: Tensor  # [padded V / tp, hidden_size]
    bias: Tensor | None

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        context: LayerContext,
        *,
        tied_to: VocabParallelEmbedding | None = None,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.vocabulary = VocabularyShard(vocab_size, context.tp)
        self.rows = self.vocabulary.rows
        self.method = linear_method("lm_head", context)
        if tied_to is None:
            self.method.create_weights(self, len(self.rows), hidden_size)
        else:
            self._tie(tied_to, context)
        vector = frozen((len(self.rows),), context.dtype, context.device) if bias else None
        self.register_parameter("bias", vector)

    def checkpoint_shape(self, parameter: str, part: str) -> tuple[int, ...]:
        """Return `[V, hidden_size]`, or `[V]` for the bias."""
        del part
        return (self.vocabulary.vocab_size, *self.get_parameter(parameter).shape[1:])

    def load_weight(self, parameter: str, tensor: Tensor, part: str) -> None:
        """Load the rows of this device's ids; padding rows become zero."""
        del part
        if parameter != "weight":
            return _load_rows(self.get_parameter(parameter), tensor, self.rows)
        mine = tensor[self.rows.start : self.rows.stop]
        self.method.load(self, mine, 0)
        missing = len(self.rows) - len(mine)
        if missing:
            self.method.load(self, mine.new_zeros(missing, mine.shape[1]), len(mine))
        return None

    def load_quantized(self, parameter: str, weight: QuantizedWeight, part: str) -> None:
        """Pass the rows of this device's ids to the method; padding rows become zero."""
        if parameter != "weight":
            return super().load_quantized(parameter, weight, part)
        return self.method.load_quantized(self, _own_rows(weight, self.rows), 0)

    def finish_loading(self) -> None:
        """Repack the weight. A tied one is shared with the embedding, or else copied.

        The copy is worth its memory: this is the largest product of a step.
        """
        self.method.finish_loading(self)

    def look_up(self, rows: Tensor) -> Tensor:
        """Return rows of this device's shard in the compute dtype, `[T] -> [T, hidden_size]`."""
        return self.method.rows(self, rows)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return logits of this device's tokens for hidden states `[N, hidden_size]`.

        They are `[N, V]` on a single device. In a tensor-parallel group the columns are those of
        `vocabulary.token_ids`, without padding.
        """
        if self.bias is None:
            logits = self.method.apply(self, hidden_states)
        else:
            logits = self.method.apply_with_bias(self, hidden_states, self.bias)
        return logits[:, : len(self.vocabulary.token_ids)]

    def _tie(self, embedding: VocabParallelEmbedding, context: LayerContext) -> None:
        self.register_parameter("weight", embedding.get_parameter("weight"))
        if context.quantization is not None and self.method.has_rows:
            embedding.share_rows(self)
        else:
            embedding.stay_in_compute_type()
            self.method = plain_method("lm_head", context, is_shared=True)


def _own_rows(weight: QuantizedWeight, rows: range) -> QuantizedWeight:
    mine = torch.arange(rows.start, max(rows.start, min(rows.stop, weight.shape[0])))
    return weight.rows(mine).padded(len(rows))


def _load_rows(weight: Tensor, tensor: Tensor, rows: range) -> None:
    mine = tensor[rows.start : rows.stop]
    weight[: len(mine)].copy_(mine)
    torch.zero_(weight[len(mine) :])
