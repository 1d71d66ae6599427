"""The conformance kit of latent attention backends."""

from quire.testing.mla.mla_contract import MLABackendContract

__all__ = ["MLABackendContract"]
