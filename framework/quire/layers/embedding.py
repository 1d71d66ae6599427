"""The vocabulary is divided over the devices by rows, padded so that it divides evenly."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from quire.layers.context import LayerContext
from quire.layers.layer import Layer, frozen
from quire.layers.linear import plain_method
from quire.layers.parallel import TensorParallelGroup


class VocabParallelEmbedding(Layer):
    """Token ids to vectors; each device knows some ids, and the sum over devices is the answer."""

    weight: Tensor  # [padded V / tp, hidden_size]

    def __init__(self, vocab_size: int, hidden_size: int, context: LayerContext) -> None:
        super().__init__()
        self.tp = context.tp
        self.vocab_size = vocab_size
        self.rows = vocabulary_share(vocab_size, context.tp)
        shape = (len(self.rows), hidden_size)
        self.register_parameter("weight", frozen(shape, context.dtype, context.device))

    def checkpoint_shape(self, parameter: str, part: str) -> tuple[int, ...]:
        """Return `[V, hidden_size]`."""
        del parameter, part
        return (self.vocab_size, self.weight.shape[1])

    def load_weight(self, parameter: str, tensor: Tensor, part: str) -> None:
        """Copy this device's ids; padding becomes zero."""
        del parameter, part
        _load_rows(self.weight, tensor, self.rows)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return `[T, hidden_size]` for ids `[T]`."""
        if self.tp.size == 1:
            return functional.embedding(input_ids, self.weight)
        local = input_ids - self.rows.start
        is_elsewhere = (local < 0) | (local >= len(self.rows))
        vectors = functional.embedding(local.masked_fill(is_elsewhere, 0), self.weight)
        return self.tp.all_reduce(vectors.masked_fill_(is_elsewhere.unsqueeze(1), 0))


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
        self.method = plain_method("lm_head", context, is_shared=tied_to is not None)
        if tied_to is None:
            self.method.create_weights(self, len(self.rows), hidden_size)
        else:
            self.register_parameter("weight", tied_to.get_parameter("weight"))
        vector = frozen((len(self.rows),), context.dtype, context.device) if bias else None
        self.register_parameter("bias", vector)

    def checkpoint_shape(self, parameter: str, part: str) -> tuple[int, ...]:
        """Return `[V, hidden_size]`, or `[V]` for the bias."""
        del part
        return (self.vocab_size, *self.get_parameter(parameter).shape[1:])

    def load_weight(self, parameter: str, tensor: Tensor, part: str) -> None:
        """Copy this device's ids; padding becomes zero."""
        del part
        _load_rows(self.get_parameter(parameter), tensor, self.rows)

    def finish_loading(self) -> None:
        """Let the weight be kept as it is used best; a tied one is copied for that.

        The copy is worth its memory: this is the largest product of a step.
        """
        self.method.finish_loading(self)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return logits `[N, V]` of hidden states `[N, hidden_size]`, on every device."""
        if self.bias is None:
            logits = self.method.apply(self, hidden_states)
        else:
            logits = self.method.apply_with_bias(self, hidden_states, self.bias)
        if self.tp.size > 1:
            logits = self.tp.all_gather(logits, -1)[:, : self.vocab_size]
        return logits


def vocabulary_share(vocab_size: int, tp: TensorParallelGroup) -> range:
    """Return this device's ids; those from `vocab_size` on are padding."""
    size = -(-vocab_size // tp.size)
    return range(tp.rank * size, (tp.rank + 1) * size)


def _load_rows(weight: Tensor, tensor: Tensor, rows: range) -> None:
    mine = tensor[rows.start : rows.stop]
    weight[: len(mine)].copy_(mine)
    torch.zero_(weight[len(mine) :])
