"""Decoder shared by Llama and its descendants, with differences as config options.

Letters as in `quire.interfaces.attention`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from quire.interfaces.model import ForwardBatch, Model, StageTensors
from quire.layers import (
    Layer,
    LayerContext,
    LMHead,
    RotaryEmbedding,
    VocabParallelEmbedding,
)
from quire_models.decoder_config import DecoderConfig
from quire_models.decoder_layer import decoder_norm, make_layer


class DecoderStage(Layer):
    """Decoder layers of one pipeline stage, with the embedding if first and the norm if last."""

    def __init__(self, config: DecoderConfig, max_model_len: int, context: LayerContext) -> None:
        super().__init__()
        own_layers = context.layers if context.layers is not None else range(config.num_layers)
        is_first, is_last = own_layers.start == 0, own_layers.stop == config.num_layers
        needs_embedding = is_first or (is_last and config.tie_word_embeddings)
        sizes = (config.vocab_size, config.hidden_size)
        self.embed_tokens = VocabParallelEmbedding(*sizes, context) if needs_embedding else None
        self.embedding_scale = _rounded(config.embedding_scale, context.dtype)
        self.layers = nn.ModuleDict({str(i): make_layer(i, config, context) for i in own_layers})
        self.norm = decoder_norm(config, context) if is_last else None
        self.rotaries = nn.ModuleList(
            RotaryEmbedding(config.head_dim, max_model_len, rope, context) for rope in config.ropes
        )
        self._layers_with_rope = tuple(
            (self.layers[str(i)], config.rope_index(i)) for i in own_layers
        )

    def embed(self, input_ids: Tensor | None) -> Tensor:
        """Return the scaled embeddings of token ids, `[T, hidden]`."""
        if self.embed_tokens is None or input_ids is None:
            raise RuntimeError("this pipeline stage needs the hidden states of the previous stage")
        vectors: Tensor = self.embed_tokens(input_ids)
        return vectors if self.embedding_scale == 1.0 else vectors.mul_(self.embedding_scale)

    def forward(
        self, x: Tensor, residual: Tensor | None, positions: Tensor, batch: ForwardBatch
    ) -> Tensor | StageTensors:
        """Return `[T, hidden]` after the last norm, or the input of the next stage."""
        rotations = [rotary(positions) for rotary in self.rotaries]
        for layer, rope in self._layers_with_rope:
            x, residual = layer(x, residual, rotations[rope], batch)
        if self.norm is None:
            return StageTensors(x, residual)
        normed: Tensor = self.norm(x, residual)[0]
        return normed


class DecoderForCausalLM(Layer, Model):
    """Decoder with a language-model head."""

    packed_modules: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "qkv_proj": ("q_proj", "k_proj", "v_proj"),
        "gate_up_proj": ("gate_proj", "up_proj"),
        "qk_norm": ("q_norm", "k_norm"),
    }
    ignored_weights: ClassVar[tuple[str, ...]] = (r".*\.rotary_emb\.inv_freq",)

    def __init__(self, config: DecoderConfig, max_model_len: int, context: LayerContext) -> None:
        super().__init__()
        self.config = config
        self.model = DecoderStage(config, max_model_len, context)
        self.lm_head = self._head(context) if self.model.norm is not None else None

    def forward(
        self,
        input_ids: Tensor | None,  # [T]
        positions: Tensor,  # [T]
        batch: ForwardBatch,
        inputs_embeds: Tensor | None = None,  # [T, hidden]
        stage_input: StageTensors | None = None,
    ) -> Tensor | StageTensors:
        """Return `[T, hidden]` after the last norm, or the input of the next stage."""
        if stage_input is not None:
            x, residual = stage_input.hidden_states, stage_input.residual
        else:
            x = self.model.embed(input_ids) if inputs_embeds is None else inputs_embeds
            residual = None
        out: Tensor | StageTensors = self.model(x, residual, positions, batch)
        return out

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """Return logits `[N, V]` of hidden states `[N, hidden]`."""
        if self.lm_head is None:
            raise RuntimeError("only the last pipeline stage computes logits")
        logits: Tensor = self.lm_head(hidden_states)
        cap = self.config.final_logit_soft_cap
        return logits if cap is None else logits.float().div_(cap).tanh_().mul_(cap)

    def map_weight_name(self, name: str) -> str | None:
        """Return the name; None for weights to skip: a tied head's copy, other pipeline stages."""
        if self.config.tie_word_embeddings and name == "lm_head.weight":
            return None
        return name if self._is_own(name) else None

    def _is_own(self, name: str) -> bool:
        """Return whether this stage has the weight, or no stage has (then it is unexpected)."""
        parts = name.split(".")
        if parts[:2] == ["model", "layers"] and len(parts) > 2 and parts[2].isdigit():
            is_known = int(parts[2]) < self.config.num_layers
            return not is_known or parts[2] in self.model.layers
        if parts[0] == "lm_head":
            return self.lm_head is not None
        if parts[:2] == ["model", "norm"]:
            return self.model.norm is not None
        if parts[:2] == ["model", "embed_tokens"]:
            return self.model.embed_tokens is not None
        return True

    def _head(self, context: LayerContext) -> LMHead:
        config = self.config
        tied_to = self.model.embed_tokens if config.tie_word_embeddings else None
        return LMHead(config.vocab_size, config.hidden_size, context, tied_to=tied_to)


def _rounded(scale: float, dtype: torch.dtype) -> float:
    """Round to the dtype of the tensor that it multiplies, as in the training."""
    return float(torch.tensor(scale, dtype=dtype))
