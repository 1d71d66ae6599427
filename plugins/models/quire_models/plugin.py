"""Registration of the models of this package. Imports no model."""

from quire import Registrar, hookimpl
from quire.interfaces.model import Model, ModelCapabilities

MODELS = {
    "Gemma3ForCausalLM": "gemma3",
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}


@hookimpl
def register_models(registry: Registrar[type[Model]]) -> None:
    """Register the models by architecture name."""
    for architecture, module in MODELS.items():
        describe = f"quire_models.{module}_config:describe_{module}"
        registry.add(
            architecture,
            f"quire_models.{module}:{architecture}",
            capabilities=ModelCapabilities(describe=describe, supports_pipeline_parallel=True),
        )
