"""Registration of the sampler steps of this package. Imports nothing heavy."""

from quire import Registrar, hookimpl
from quire.interfaces.sampling import RequestField, SamplerCapabilities, SamplerStep
from quire.sampling_params import LIMITS

TEMPERATURE = RequestField(
    "temperature", float, 1.0, *LIMITS["temperature"], "0 takes the most likely token."
)
TOP_K = RequestField("top_k", int, 0, *LIMITS["top_k"], "The k most likely tokens; 0 or -1 is off.")
TOP_P = RequestField(
    "top_p", float, 1.0, *LIMITS["top_p"], "The most likely tokens that add up to p."
)
MIN_P = RequestField("min_p", float, 0.0, *LIMITS["min_p"], "Fraction of the largest probability.")

FUSED = ("temperature", "min_p", "top_k_top_p")


@hookimpl
def register_samplers(registry: Registrar[type[SamplerStep]]) -> None:
    """Register the sampler steps."""
    registry.add(
        "temperature",
        "quire_samplers.temperature:Temperature",
        capabilities=SamplerCapabilities(
            stage="temperature", fields=(TEMPERATURE,), is_vocab_parallel=True
        ),
    )
    registry.add(
        "min_p",
        "quire_samplers.min_p:MinP",
        capabilities=SamplerCapabilities(stage="filter", fields=(MIN_P,)),
    )
    registry.add(
        "top_k_top_p",
        "quire_samplers.top_k_top_p:TopKTopP",
        capabilities=SamplerCapabilities(stage="filter", fields=(TOP_K, TOP_P)),
    )
    registry.add(
        "categorical",
        "quire_samplers.categorical:Categorical",
        capabilities=SamplerCapabilities(stage="sample", fields=(TEMPERATURE,)),
    )
    registry.add(
        "gumbel",
        "quire_samplers.gumbel:Gumbel",
        capabilities=SamplerCapabilities(
            stage="sample",
            fields=(TEMPERATURE, TOP_K, TOP_P, MIN_P),
            needs_kernels="triton",
            fuses=FUSED,
            is_vocab_parallel=True,
        ),
    )
    registry.add(
        "cpu_gumbel",
        "quire_samplers.cpu_gumbel:CpuGumbel",
        capabilities=SamplerCapabilities(
            stage="sample",
            fields=(TEMPERATURE, TOP_K, TOP_P, MIN_P),
            needs_kernels="native",
            fuses=FUSED,
            probe="quire_samplers.cpu_gumbel_library:LIBRARY.unavailable_reason",
            is_vocab_parallel=True,
        ),
    )
