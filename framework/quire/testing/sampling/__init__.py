"""The conformance kits of samplers: steps that change logits, and steps that choose tokens."""

from quire.testing.sampling.logits_contract import LogitsStepContract
from quire.testing.sampling.sampler_contract import AbsorbingDrawContract, DrawStepContract

__all__ = ["AbsorbingDrawContract", "DrawStepContract", "LogitsStepContract"]
