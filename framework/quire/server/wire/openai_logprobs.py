r"""Log probabilities in OpenAI's two response formats.

/v1/completions has no field for a token's bytes, so a token that is a part of a character is
written as `bytes:\xe2\x80` there: as text, two of them would be the same U+FFFD, and one would be
lost.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quire.frontend.text.tokenizer import Tokenizer
from quire.outputs import Logprob
from quire.server.wire.protocol import ChatLogprobs, CompletionLogprobs, TokenLogprob, TopLogprob

Positions = Sequence[Mapping[int, Logprob]]  # the first entry of each is the chosen token


@dataclass(frozen=True, slots=True)
class TokenSpelling:
    """How tokens are shown.

    Attributes:
        tokenizer: Tokenizer of the model.
        shows_ids: True to show a token as `token_id:17` in place of its text.
    """

    tokenizer: Tokenizer
    shows_ids: bool = False

    def name(self, token_id: int) -> str:
        """Return a token as completions show it."""
        return _id_name(token_id) if self.shows_ids else token_name(self._bytes(token_id))

    def text(self, token_id: int) -> tuple[str, list[int]]:
        """Return a token as chats show it, and its bytes, which may be a part of a character."""
        octets = self._bytes(token_id)
        text = _id_name(token_id) if self.shows_ids else octets.decode("utf-8", "replace")
        return text, list(octets)

    def _bytes(self, token_id: int) -> bytes:
        return self.tokenizer.token_bytes(token_id)


def chat_logprobs(positions: Positions, num_top: int, spelling: TokenSpelling) -> ChatLogprobs:
    """Return log probabilities in the format of /v1/chat/completions."""
    return ChatLogprobs([position_of(found, num_top, spelling) for found in positions])


def completion_logprobs(
    positions: Positions, num_top: int, offset: int, spelling: TokenSpelling
) -> tuple[CompletionLogprobs, int]:
    """Return log probabilities in the format of /v1/completions.

    Args:
        positions: Next tokens of one choice.
        num_top: Number of candidates to show per position, beside the sampled one.
        offset: Number of characters of the choice's tokens so far.
        spelling: How tokens are shown.

    Returns:
        The log probabilities, and the offset after them.
    """
    shown = CompletionLogprobs([], [], [], [])
    for found in positions:
        position = position_of(found, num_top, spelling)
        append_position(shown, position, offset, spelling)
        offset += num_characters(bytes(position.bytes or ()))
    return shown, offset


def append_position(
    shown: CompletionLogprobs, position: TokenLogprob, offset: int, spelling: TokenSpelling
) -> None:
    """Append a position to the lists, `offset` characters after the start of the text."""
    name = _name(position, spelling)
    shown.tokens.append(name)
    shown.token_logprobs.append(position.logprob)
    shown.top_logprobs.append(_top_of(position, name, spelling))
    shown.text_offset.append(offset)


def _top_of(position: TokenLogprob, name: str, spelling: TokenSpelling) -> dict[str, float]:
    """Return the candidates and the chosen token, the most likely first.

    Of two candidates of one text the more likely one is shown, or the chosen token.
    """
    candidates = reversed(position.top_logprobs)
    top = {_name(candidate, spelling): candidate.logprob for candidate in candidates}
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


def position_of(
    found: Mapping[int, Logprob], num_top: int, spelling: TokenSpelling
) -> TokenLogprob:
    """Convert one position, whose first entry is the chosen token, with its top candidates."""
    chosen, logprob = next(iter(found.items()))
    most_likely = sorted(found.items(), key=lambda item: -item[1].logprob)[:num_top]
    text, octets = spelling.text(chosen)
    top = [
        TopLogprob(*_named(token_id, candidate, spelling)) for token_id, candidate in most_likely
    ]
    return TokenLogprob(text, logprob.logprob, octets, top)


def token_name(octets: bytes) -> str:
    """Return the token's text, or its bytes if they are not text."""
    try:
        return octets.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in octets)


def _name(token: TokenLogprob | TopLogprob, spelling: TokenSpelling) -> str:
    return token.token if spelling.shows_ids else token_name(bytes(token.bytes or ()))


def _id_name(token_id: int) -> str:
    return f"token_id:{token_id}"


def _named(
    token_id: int, candidate: Logprob, spelling: TokenSpelling
) -> tuple[str, float, list[int] | None]:
    text, octets = spelling.text(token_id)
    return text, candidate.logprob, octets
