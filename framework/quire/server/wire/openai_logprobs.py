r"""Log probabilities in OpenAI's two response formats.

/v1/completions has no field for a token's bytes, so a token that is a part of a character is
written as `bytes:\xe2\x80` there: as text, two of them would be the same U+FFFD, and one would be
lost.
"""

from collections.abc import Mapping, Sequence

from quire.frontend.text.tokenizer import Tokenizer
from quire.outputs import Logprob
from quire.server.wire.protocol import ChatLogprobs, CompletionLogprobs, TokenLogprob, TopLogprob

Positions = Sequence[Mapping[int, Logprob]]  # the first entry of each is the chosen token


def chat_logprobs(positions: Positions, num_top: int, tokenizer: Tokenizer) -> ChatLogprobs:
    """Return log probabilities in the format of /v1/chat/completions."""
    return ChatLogprobs([position_of(found, num_top, tokenizer) for found in positions])


def completion_logprobs(
    positions: Positions, num_top: int, offset: int, tokenizer: Tokenizer
) -> tuple[CompletionLogprobs, int]:
    """Return log probabilities in the format of /v1/completions.

    Args:
        positions: Next tokens of one choice.
        num_top: Number of candidates to show per position, beside the sampled one.
        offset: Number of characters of the choice's tokens so far.
        tokenizer: Tokenizer of the model.

    Returns:
        The log probabilities, and the offset after them.
    """
    shown = CompletionLogprobs([], [], [], [])
    for found in positions:
        position = position_of(found, num_top, tokenizer)
        append_position(shown, position, offset)
        offset += num_characters(bytes(position.bytes or ()))
    return shown, offset


def append_position(shown: CompletionLogprobs, position: TokenLogprob, offset: int) -> None:
    """Append a position to the lists, `offset` characters after the start of the text."""
    name = _name(position)
    shown.tokens.append(name)
    shown.token_logprobs.append(position.logprob)
    shown.top_logprobs.append(_top_of(position, name))
    shown.text_offset.append(offset)


def _top_of(position: TokenLogprob, name: str) -> dict[str, float]:
    """Return the candidates and the chosen token, the most likely first.

    Of two candidates of one text the more likely one is shown, or the chosen token.
    """
    top = {_name(candidate): candidate.logprob for candidate in reversed(position.top_logprobs)}
    top[name] = position.logprob
    return dict(sorted(top.items(), key=lambda item: -item[1]))


def num_characters(octets: bytes) -> int:
    """Return how many characters begin in these bytes."""
    return sum(byte & 0xC0 != 0x80 for byte in octets)


def joined(pieces: Sequence[CompletionLogprobs]) -> CompletionLogprobs:
    """Return the concatenated log probabilities of several pieces."""
    if len(pieces) == 1:
        return pieces[0]
    return CompletionLogprobs(
        [token for piece in pieces for token in piece.tokens],
        [logprob for piece in pieces for logprob in piece.token_logprobs],
        [top for piece in pieces for top in piece.top_logprobs],
        [offset for piece in pieces for offset in piece.text_offset],
    )


def position_of(found: Mapping[int, Logprob], num_top: int, tokenizer: Tokenizer) -> TokenLogprob:
    """Convert one position, whose first entry is the chosen token, with its top candidates."""
    chosen, logprob = next(iter(found.items()))
    most_likely = sorted(found.items(), key=lambda item: -item[1].logprob)[:num_top]
    text, octets = _token(chosen, tokenizer)
    top = [
        TopLogprob(*_named(token_id, candidate, tokenizer)) for token_id, candidate in most_likely
    ]
    return TokenLogprob(text, logprob.logprob, octets, top)


def token_name(octets: bytes) -> str:
    """Return the token's text, or its bytes if they are not text."""
    try:
        return octets.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in octets)


def _name(token: TokenLogprob | TopLogprob) -> str:
    return token_name(bytes(token.bytes or ()))


def _named(
    token_id: int, candidate: Logprob, tokenizer: Tokenizer
) -> tuple[str, float, list[int] | None]:
    text, octets = _token(token_id, tokenizer)
    return text, candidate.logprob, octets


def _token(token_id: int, tokenizer: Tokenizer) -> tuple[str, list[int]]:
    """Return a token as text and as bytes; the bytes may be a part of a character."""
    octets = tokenizer.token_bytes(token_id)
    return octets.decode("utf-8", "replace"), list(octets)
