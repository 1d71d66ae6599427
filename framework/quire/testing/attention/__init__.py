"""Conformance kit of attention backends."""

from quire.testing.attention.attention_contract import AttentionBackendContract

__all__ = ["AttentionBackendContract"]
