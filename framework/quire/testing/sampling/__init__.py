"""The conformance kits of samplers: steps that change logits, and steps that choose tokens."""

from quire.testing.sampling.logits_contract import LogitsProcessorContract
from quire.testing.sampling.sampler_contract import FusedSamplerContract, SamplerContract

__all__ = ["FusedSamplerContract", "LogitsProcessorContract", "SamplerContract"]
