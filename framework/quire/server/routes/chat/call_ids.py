"""Ids of tool calls, as all APIs but Anthropic's spell them."""

from quire.frontend.random_bytes import random_bytes


def new_call_id() -> str:
    """Return a new id of a tool call."""
    return f"call_{random_bytes.hex(12)}"
