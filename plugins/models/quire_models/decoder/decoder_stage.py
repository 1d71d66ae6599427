"""Decoder layers of one pipeline stage, with the embedding if first and the norm if last."""

from __future__ import annotations

from torch import Tensor, nn

from quire.errors import UnsupportedModelError
from quire.interfaces.model import ForwardBatch, StageTensors
from quire.layers import (
    Layer,
    LayerContext,
    PositionEmbedding,
    ReplicatedLinear,
    RotaryEmbedding,
    VocabParallelEmbedding,
)
from quire_models.decoder.decoder_attention import DecoderAttention, rotation_of
from quire_models.decoder.decoder_layers import LAYERS
from quire_models.decoder.decoder_norms import make_norm
from quire_models.decoder.factors import rounded
from quire_models.decoder.layer_inputs import LayerInputs
from quire_models.decoder.layer_step import LayerStep
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
        self.layer_inputs = _layer_inputs(config, context)
        self.embedding_scale = rounded(config.embedding_scale, context.dtype)
        make_layer = LAYERS[config.placement]
        self.layers = nn.ModuleDict()
        sources: dict[int, DecoderAttention] = {}
        for i in own_layers:
            source = config.layers[i].attention.key_values_of
            own_source = None if source is None else sources[source]
            layer = make_layer(i, config, max_model_len, context, own_source)
            if isinstance(layer.self_attn, DecoderAttention):
                sources[i] = layer.self_attn
            self.layers[str(i)] = layer
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

    def inputs_of_layers(
        self, input_ids: Tensor | None, vectors: Tensor, batch: ForwardBatch
    ) -> Tensor | None:
        """Return the inputs of layers, `[T, layers, P]`, for ids and embeddings; None: no inputs.

        Raises:
            UnsupportedModelError: There are embeddings only.
        """
        if self.layer_inputs is None:
            return None
        if input_ids is None:
            raise UnsupportedModelError(
                "the layers of this model have inputs that are looked up by token id; embeddings "
                "instead of token ids are not supported"
            )
        inputs: Tensor = self.layer_inputs(input_ids, vectors, batch)
        return inputs

    def forward(
        self,
        x: Tensor,  # [T, hidden]
        residual: Tensor | None,
        positions: Tensor,
        batch: ForwardBatch,
        layer_inputs: Tensor | None = None,  # [T, layers, P]
    ) -> Tensor | StageTensors:
        """Return `[T, hidden]` after the last norm, or the input of the next stage."""
        rotations = [rotary(positions) for rotary in self.rotaries]
        key_values: dict[int, Tensor] = {}
        for index, (layer, rope) in enumerate(self._layers_with_rope):
            step = LayerStep(
                positions=positions,
                batch=batch,
                rotation=rotation_of(rotations, rope),
                layer_input=None if layer_inputs is None else layer_inputs[:, index],
                key_values=key_values,
            )
            x, residual = layer(x, residual, step)
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


def _layer_inputs(config: DecoderConfig, context: LayerContext) -> LayerInputs | None:
    if config.layer_inputs is None:
        return None
    return LayerInputs(config.layer_inputs, config.hidden_size, len(config.layers), context)
