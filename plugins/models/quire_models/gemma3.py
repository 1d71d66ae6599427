"""Gemma 3 (2025), its text model: layers with a window and layers without, in turns.

The shared decoder has all of it as options: norms on both sides of each block, GeGLU, scaled
embeddings, and a rotary embedding of its own for the layers with a window.
"""

from __future__ import annotations

from quire.interfaces.model import ModelDescription
from quire.layers import LayerContext
from quire_models.decoder import DecoderForCausalLM
from quire_models.gemma3_config import read_gemma3


class Gemma3ForCausalLM(DecoderForCausalLM):
    """Gemma 3's text model with a language-model head."""

    def __init__(self, description: ModelDescription, context: LayerContext) -> None:
        super().__init__(read_gemma3(description.config), description.max_model_len, context)
