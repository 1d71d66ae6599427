"""Bytes of weights, KV blocks and steps, before any is allocated."""
