"""Registration of the models of this package. Imports no model."""

from quire import Registrar, hookimpl
from quire.interfaces.model import Model, ModelCapabilities
from quire_models.family_table import FAMILIES


@hookimpl
def register_models(registry: Registrar[type[Model]]) -> None:
    """Register the families of the table by architecture name, and the fallback for all others."""
    for family in FAMILIES:
        registry.add(
            family.architecture,
            "quire_models.decoder.decoder_model:DecoderForCausalLM",
            capabilities=ModelCapabilities(
                describe="quire_models.family_table:describe", supports_pipeline_parallel=True
            ),
        )
    registry.add(
        "transformers",
        "quire_models.transformers_fallback.transformers_model:TransformersForCausalLM",
        capabilities=ModelCapabilities(
            describe=(
                "quire_models.transformers_fallback.fallback_description:describe_by_transformers"
            ),
            is_fallback=True,
        ),
    )
