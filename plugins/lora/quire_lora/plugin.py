"""Registration of the LoRA sources of this package. Imports nothing heavy."""

from quire import Registrar, hookimpl
from quire.interfaces.lora import LoRASource


@hookimpl
def register_lora_sources(registry: Registrar[type[LoRASource]]) -> None:
    """Register the LoRA sources."""
    registry.add("peft", "quire_lora.peft_source:PeftSource")
