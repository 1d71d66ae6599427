"""Conformance kit of KV stores."""

from quire.testing.kv_store.kv_store_contract import KVStoreContract

__all__ = ["KVStoreContract"]
