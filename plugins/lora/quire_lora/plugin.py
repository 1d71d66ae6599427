"""The table of contents of this plugin. Imports nothing heavy."""

from quire import Registrar, hookimpl
from quire.interfaces.lora import LoRASource


@hookimpl
def register_lora_sources(registry: Registrar[type[LoRASource]]) -> None:
    """Offer the LoRA sources below."""
    registry.add("peft", "quire_lora.peft_source:PeftSource")
