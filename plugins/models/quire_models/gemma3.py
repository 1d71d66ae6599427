"""Gemma 3 (2025), text model: sliding-window and full attention in alternating layers.

All differences are options of the shared decoder: norms on both sides of each block, GeGLU, scaled
embeddings, and a separate rotary embedding for layers with a sliding window.
"""

from __future__ import annotations

from quire.interfaces.model import ModelDescription
from quire.layers import LayerContext
from quire_models.decoder import DecoderForCausalLM
from quire_models.gemma3_config import read_gemma3


class Gemma3ForCausalLM(DecoderForCausalLM):
    """Gemma 3 text model with a language-model head."""

    def __init__(self, description: ModelDescription, context: LayerContext) -> None:
        super().__init__(read_gemma3(description.config), description.max_model_len, context)
