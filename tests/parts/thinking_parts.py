"""Markers of the thinking, as tests of the engine need them."""

from quire.messages import MarkerTokens


def one_token(token_id):
    """Return a marker that is one token."""
    return MarkerTokens((token_id,), (b"<m>",), {token_id: b"<m>"})
