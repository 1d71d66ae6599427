"""Qwen3 (2025): the shared decoder with a norm over each query and key head."""

from __future__ import annotations

from quire.interfaces.model import ModelDescription
from quire.layers import LayerContext
from quire_models.decoder import DecoderForCausalLM
from quire_models.qwen3_config import read_qwen3


class Qwen3ForCausalLM(DecoderForCausalLM):
    """Qwen3 with a language-model head."""

    def __init__(self, description: ModelDescription, context: LayerContext) -> None:
        super().__init__(read_qwen3(description.config), description.max_model_len, context)
