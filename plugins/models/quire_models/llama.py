"""Llama (Touvron et al., 2023): the shared decoder without changes."""

from __future__ import annotations

from quire.interfaces.model import ModelDescription
from quire.layers import LayerContext
from quire_models.decoder import DecoderForCausalLM
from quire_models.llama_config import read_llama


class LlamaForCausalLM(DecoderForCausalLM):
    """Llama with a language-model head."""

    def __init__(self, description: ModelDescription, context: LayerContext) -> None:
        super().__init__(read_llama(description.config), description.max_model_len, context)
