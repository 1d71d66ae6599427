"""Conformance kit of latent-attention (MLA) backends."""

from quire.testing.mla.mla_contract import MLABackendContract

__all__ = ["MLABackendContract"]
