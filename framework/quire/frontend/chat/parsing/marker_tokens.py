"""A marker of the thinking as tokens: those that spell it, and all that may have a part of it."""

from collections.abc import Sequence

from quire.frontend.text.tokenizer import Tokenizer
from quire.messages import MarkerTokens


def marker_tokens(
    spellings: Sequence[str], tokenizer: Tokenizer, forced: str | None = None
) -> MarkerTokens:
    """Return a marker as the engine finds and forces it.

    Args:
        spellings: Texts of the marker. One that is a single token of the model is the only one.
        tokenizer: Tokenizer of the model.
        forced: Text that is forced in its place, which ends with it; None: the marker.
    """
    for spelling in spellings:
        token_ids = tokenizer.encode(spelling, add_special_tokens=False)
        if len(token_ids) == 1:
            texts: tuple[bytes, ...] = (spelling.encode(),)
            pieces = {token_ids[0]: texts[0]}
            break
    else:
        spelling, texts = spellings[0], tuple(text.encode() for text in spellings)
        pieces = _pieces(texts, tokenizer)
    token_ids = tokenizer.encode(forced or spelling, add_special_tokens=False)
    return MarkerTokens(tuple(token_ids), texts, pieces)


def any_marker_tokens(texts: Sequence[str], tokenizer: Tokenizer) -> MarkerTokens:
    """Return several markers as the engine finds them, whichever comes and however it is spelled.

    Args:
        texts: Texts of the markers.
        tokenizer: Tokenizer of the model.
    """
    found = tuple(text.encode() for text in texts)
    return MarkerTokens((), found, _pieces(found, tokenizer))


def _pieces(texts: Sequence[bytes], tokenizer: Tokenizer) -> dict[int, bytes]:
    """Return the tokens that may have a part of one of several texts, or all of it."""
    beginnings = tuple(text[:end] for text in texts for end in range(1, len(text) + 1))
    rests = tuple(text[start:] for text in texts for start in range(len(text)))
    found = {}
    for token_id in range(tokenizer.vocab_size):
        piece = tokenizer.token_bytes(token_id)
        is_at_end = piece.endswith(beginnings) or piece.startswith(rests)
        if piece and (is_at_end or any(piece in text or text in piece for text in texts)):
            found[token_id] = piece
    return found
