"""Conformance kits of sampler steps: logits processors and samplers."""

from quire.testing.sampling.logits_contract import LogitsProcessorContract
from quire.testing.sampling.sampler_contract import FusedSamplerContract, SamplerContract
from quire.testing.sampling.state_contract import StatefulLogitsProcessorContract

__all__ = [
    "FusedSamplerContract",
    "LogitsProcessorContract",
    "SamplerContract",
    "StatefulLogitsProcessorContract",
]
