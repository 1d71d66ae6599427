"""The vocabulary is divided over the devices by rows, padded so that it divides evenly."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from quire.layers.context import LayerContext
from quire.layers.layer import Layer, frozen
from quire.layers.linear.linear_layers import linear_method, plain_method
from quire.layers.parallel import TensorParallelGroup


class VocabParallelEmbedding(Layer):
    """Token ids to vectors; each device knows some ids, and the sum over devices is the answer.

    Where linear layers are quantized the weight stays in the checkpoint's type, if that is narrower
    than the compute type, and vectors are widened when they are looked up; unless a head multiplies
    by that weight as it is.
    """

    weight: Tensor  # [padded V / tp, hidden_size]

    def __init__(self, vocab_size: int, hidden_size: int, context: LayerContext) -> None:
        super().__init__()
        self.context = context
        self.tp = context.tp
        self.vocab_size = vocab_size
        self.rows = vocabulary_share(vocab_size, context.tp)
        self._look_up_rows: Callable[[Tensor], Tensor] | None = None  # of another layer's weight
        self._may_be_narrow = context.quantization is not None
        shape = (len(self.rows), hidden_size)
        self.register_parameter("weight", frozen(shape, context.dtype, context.device))

    def checkpoint_shape(self, parameter: str, part: str) -> tuple[int, ...]:
        """Return `[V, hidden_size]`."""
        del parameter, part
        return (self.vocab_size, self.weight.shape[1])

    def load_weight(self, parameter: str, tensor: Tensor, part: str) -> None:
        """Copy this device's ids; padding becomes zero."""
        del parameter, part
        if self._may_be_narrow and tensor.dtype.itemsize < self.weight.itemsize:
            shape = tuple(self.weight.shape)
            self.register_parameter("weight", frozen(shape, tensor.dtype, self.context.device))
        _load_rows(self.weight, tensor, self.rows)

    def stay_in_compute_type(self) -> None:
        """Keep the weight where it is: another layer multiplies by it."""
        self._may_be_narrow = False

    def share_rows(self, look_up: Callable[[Tensor], Tensor]) -> None:
        """Let go of the weight: another layer has it, and `look_up` returns rows of it.

        Args:
            look_up: Of this device's rows, `[T] -> [T, hidden_size]` in the compute type.
        """
        self._look_up_rows = look_up
        self.register_parameter("weight", None)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return `[T, hidden_size]` for ids `[T]`."""
        if self.tp.size == 1:
            return self._vectors(input_ids)
        local = input_ids - self.rows.start
        is_elsewhere = (local < 0) | (local >= len(self.rows))
        vectors = self._vectors(local.masked_fill(is_elsewhere, 0))
        return self.tp.all_reduce(vectors.masked_fill_(is_elsewhere.unsqueeze(1), 0))

    def _vectors(self, rows: Tensor) -> Tensor:
        if self._look_up_rows is not None:
            return self._look_up_rows(rows)
        return functional.embedding(rows, self.weight).to(self.context.dtype)


class LMHead(Layer):
    """Hidden states to logits, with a matrix of its own or the embedding's.

    Args:
        vocab_size: V.
        hidden_size: Numbers per hidden state.
        context: Where and how to build.
        tied_to: The embedding whose matrix is used; None: its own.
        bias: Whether there is one.
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
        self.tp = context.tp
        self.vocab_size = vocab_size
        self.rows = vocabulary_share(vocab_size, context.tp)
        self.method = linear_method("lm_head", context)
        self._takes_over: tuple[VocabParallelEmbedding, ...] = ()  # its weight, once that is loaded
        if tied_to is None:
            self.method.create_weights(self, len(self.rows), hidden_size)
        else:
            self._tie(tied_to, context)
        vector = frozen((len(self.rows),), context.dtype, context.device) if bias else None
        self.register_parameter("bias", vector)

    def checkpoint_shape(self, parameter: str, part: str) -> tuple[int, ...]:
        """Return `[V, hidden_size]`, or `[V]` for the bias."""
        del part
        return (self.vocab_size, *self.get_parameter(parameter).shape[1:])

    def load_weight(self, parameter: str, tensor: Tensor, part: str) -> None:
        """Copy this device's ids; padding becomes zero."""
        del part
        if parameter == "weight":
            self.method.expect(self, tensor.dtype)
        _load_rows(self.get_parameter(parameter), tensor, self.rows)

    def finish_loading(self) -> None:
        """Let the weight be kept as it is used best; a tied one is shared, or else copied for that.

        The copy is worth its memory: this is the largest product of a step.
        """
        for embedding in self._takes_over:
            self.register_parameter("weight", embedding.get_parameter("weight"))
        self.method.finish_loading(self)
        for embedding in self._takes_over:
            embedding.share_rows(lambda rows: self.method.rows(self, rows))
        self._takes_over = ()

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return logits `[N, V]` of hidden states `[N, hidden_size]`, on every device."""
        if self.bias is None:
            logits = self.method.apply(self, hidden_states)
        else:
            logits = self.method.apply_with_bias(self, hidden_states, self.bias)
        if self.tp.size > 1:
            logits = self.tp.all_gather(logits, -1)[:, : self.vocab_size]
        return logits

    def _tie(self, embedding: VocabParallelEmbedding, context: LayerContext) -> None:
        self.register_parameter("weight", embedding.get_parameter("weight"))
        if context.quantization is not None and self.method.has_rows:
            self._takes_over = (embedding,)
        else:
            embedding.stay_in_compute_type()
            self.method = plain_method("lm_head", context, is_shared=True)


def vocabulary_share(vocab_size: int, tp: TensorParallelGroup) -> range:
    """Return this device's ids; those from `vocab_size` on are padding."""
    size = -(-vocab_size // tp.size)
    return range(tp.rank * size, (tp.rank + 1) * size)


def _load_rows(weight: Tensor, tensor: Tensor, rows: range) -> None:
    mine = tensor[rows.start : rows.stop]
    weight[: len(mine)].copy_(mine)
    torch.zero_(weight[len(mine) :])
