"""Qwen2 (2024): the shared decoder with biases on query, key and value."""

from __future__ import annotations

from quire.interfaces.model import ModelDescription
from quire.layers import LayerContext
from quire_models.decoder import DecoderForCausalLM
from quire_models.qwen2_config import read_qwen2


class Qwen2ForCausalLM(DecoderForCausalLM):
    """Qwen2 with a language-model head."""

    def __init__(self, description: ModelDescription, context: LayerContext) -> None:
        super().__init__(read_qwen2(description.config), description.max_model_len, context)
