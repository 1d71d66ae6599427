"""Registration of the models of this package. Imports no model."""

from quire import Registrar, hookimpl
from quire.interfaces.model import Model, ModelCapabilities
from quire_models.family_table import FAMILIES
from quire_models.media_models.media_table import MEDIA_MODELS


@hookimpl
def register_models(registry: Registrar[type[Model]]) -> None:
    """Register the families of the table by architecture name, and the fallback for all others."""
    for row in (*FAMILIES, *MEDIA_MODELS):
        registry.add(
            row.architecture,
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
            supports_cpu_graphs=False,
            is_fallback=True,
        ),
    )
