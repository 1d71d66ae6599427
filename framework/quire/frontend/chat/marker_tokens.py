"""A marker of the thinking as tokens: those that spell it, and all that may have a part of it."""

from quire.frontend.text.tokenizer import Tokenizer
from quire.messages import MarkerTokens


def marker_tokens(marker: str, tokenizer: Tokenizer, forced: str | None = None) -> MarkerTokens:
    """Return a marker as the engine finds and forces it.

    Args:
        marker: Text of the marker.
        tokenizer: Tokenizer of the model.
        forced: Text that is forced in its place, which ends with it; None: the marker.
    """
    text = marker.encode()
    whole = tokenizer.encode(marker, add_special_tokens=False)
    token_ids = tokenizer.encode(forced or marker, add_special_tokens=False)
    if len(whole) == 1:
        return MarkerTokens(tuple(token_ids), text, {whole[0]: text})
    return MarkerTokens(tuple(token_ids), text, _pieces(text, tokenizer))


def _pieces(text: bytes, tokenizer: Tokenizer) -> dict[int, bytes]:
    """Return the tokens that may have a part of a text, or all of it."""
    beginnings = tuple(text[:end] for end in range(1, len(text) + 1))
    rests = tuple(text[start:] for start in range(len(text)))
    found = {}
    for token_id in range(tokenizer.vocab_size):
        piece = tokenizer.token_bytes(token_id)
        if piece and (
            piece.endswith(beginnings) or piece.startswith(rests) or piece in text or text in piece
        ):
            found[token_id] = piece
    return found
