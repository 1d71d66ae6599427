"""Decoder layers of one pipeline stage, with the embedding if first and the norm if last."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from quire.interfaces.model import ForwardBatch, StageTensors
from quire.layers import (
    Layer,
    LayerContext,
    PositionEmbedding,
    ReplicatedLinear,
    RotaryEmbedding,
    VocabParallelEmbedding,
)
from quire_models.decoder.decoder_attention import rotation_of
from quire_models.decoder.decoder_layers import LAYERS
from quire_models.decoder.decoder_norms import make_norm
from quire_models.decoder.options.decoder_config import DecoderConfig


class DecoderStage(Layer):
    """Decoder layers of one pipeline stage, with the embedding if first and the norm if last."""

    def __init__(self, config: DecoderConfig, max_model_len: int, context: LayerContext) -> None:
        super().__init__()
        num_layers = len(config.layers)
        own_layers = context.layers if context.layers is not None else range(num_layers)
        self.is_first, self.is_last = own_layers.start == 0, own_layers.stop == num_layers
        needs_embedding = self.is_first or (self.is_last and config.tie_word_embeddings)
        size = config.embedding_size or config.hidden_size
        self.embed_tokens = (
            VocabParallelEmbedding(config.vocab_size, size, context) if needs_embedding else None
        )
        self.embedding_norm = (
            make_norm(size, config.norm, context)
            if self.is_first and config.has_embedding_norm
            else None
        )
        self.project_in = _projection("in", config, context) if self.is_first else None
        self.project_out = _projection("out", config, context) if self.is_last else None
        self.embed_positions = _positions(config, context) if self.is_first else None
        self.embedding_scale = _rounded(config.embedding_scale, context.dtype)
        make_layer = LAYERS[config.placement]
        self.layers = nn.ModuleDict(
            {str(i): make_layer(i, config, max_model_len, context) for i in own_layers}
        )
        has_norm = self.is_last and config.has_final_norm
        self.norm = make_norm(config.hidden_size, config.norm, context) if has_norm else None
        self.rotaries = nn.ModuleList(
            RotaryEmbedding(head_dim, max_model_len, rope, context)
            for rope, head_dim in config.ropes
        )
        self._layers_with_rope = tuple(
            (self.layers[str(i)], config.rope_index(i)) for i in own_layers
        )

    def embed(self, input_ids: Tensor | None) -> Tensor:
        """Return the scaled embeddings of token ids, `[T, embedding]`."""
        if self.embed_tokens is None or input_ids is None:
            raise RuntimeError("this pipeline stage needs the hidden states of the previous stage")
        vectors: Tensor = self.embed_tokens(input_ids)
        if self.embedding_scale != 1.0:
            vectors = vectors.mul_(self.embedding_scale)
        return vectors

    def enter(self, vectors: Tensor, positions: Tensor) -> Tensor:
        """Return the input of the first layer for embeddings, `[T, embedding] -> [T, hidden]`."""
        x = vectors if self.embedding_norm is None else self.embedding_norm(vectors)[0]
        if self.project_in is not None:
            x = self.project_in(x)
        if self.embed_positions is not None:
            x = x + self.embed_positions(positions)
        return x

    def forward(
        self, x: Tensor, residual: Tensor | None, positions: Tensor, batch: ForwardBatch
    ) -> Tensor | StageTensors:
        """Return `[T, hidden]` after the last norm, or the input of the next stage."""
        rotations = [rotary(positions) for rotary in self.rotaries]
        for layer, rope in self._layers_with_rope:
            x, residual = layer(x, residual, rotation_of(rotations, rope), positions, batch)
        return self._leave(x, residual) if self.is_last else StageTensors(x, residual)

    def embed_out(self, hidden_states: Tensor) -> Tensor:
        """Return hidden states in the size of embeddings, `[N, hidden] -> [N, embedding]`."""
        return hidden_states if self.project_out is None else self.project_out(hidden_states)

    def _leave(self, x: Tensor, residual: Tensor | None) -> Tensor:
        """Return the last norm, or the sum if there is none, `[T, hidden]`."""
        if self.norm is None:
            return x if residual is None else residual.add_(x)
        normed: Tensor = self.norm(x, residual)[0]
        return normed


def _projection(
    which: str, config: DecoderConfig, context: LayerContext
) -> ReplicatedLinear | None:
    """Return the projection of embeddings to hidden states (`in`) or back (`out`), if needed."""
    if config.embedding_size in (None, config.hidden_size):
        return None
    sizes = (config.embedding_size, config.hidden_size)
    sizes = sizes if which == "in" else sizes[::-1]
    return ReplicatedLinear(f"model.project_{which}", *sizes, bias=False, context=context)


def _positions(config: DecoderConfig, context: LayerContext) -> PositionEmbedding | None:
    if config.positions is None:
        return None
    return PositionEmbedding(
        config.positions.num_positions,
        config.hidden_size,
        context,
        num_skipped_rows=config.positions.num_unused,
    )


def _rounded(scale: float, dtype: torch.dtype) -> float:
    """Round to the dtype of the tensor that it multiplies, as in the training."""
    return float(torch.tensor(scale, dtype=dtype))
