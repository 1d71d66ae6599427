"""Incremental decoders from token ids to text; returned text never changes afterwards.

Each stream reproduces one family of decoders exactly, with a state of a few bytes, so a token costs
the same at any length. A stream continues a prompt: a character that starts in the prompt and ends
in the completion belongs to the completion, as does the space before its first word.
"""

from codecs import getincrementaldecoder
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

MAX_CHARACTER_BYTES = 4
REPLACEMENT = "\ufffd"
WINDOW = 8  # tokens of context that `WindowStream` keeps

Piece = str | bytes | None  # text, one byte of a character, or a token that is left out
PieceOf = Callable[[int], Piece]


class TextStream(Protocol):
    """An incremental decoder."""

    def feed(self, token_id: int) -> str:
        """Add one token; return the text that is certain by now and was not returned before."""

    def close(self) -> str:
        """Return the text held back."""


class ByteLevelStream:
    """The stream of byte-level BPE: tokens are bytes of UTF-8 text.

    Args:
        bytes_of: Function that returns the bytes of a token; empty for one that is left out.
        prompt_token_ids: Token ids of the prompt.
    """

    def __init__(self, bytes_of: Callable[[int], bytes], prompt_token_ids: Sequence[int]) -> None:
        self._bytes_of = bytes_of
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._decoder.decode(_last_bytes(bytes_of, prompt_token_ids))

    def feed(self, token_id: int) -> str:
        """Add one token; an incomplete character is held back."""
        return self._decoder.decode(self._bytes_of(token_id))

    def close(self) -> str:
        """Return U+FFFD if the last character is incomplete."""
        return self._decoder.decode(b"", final=True)


@dataclass(frozen=True, slots=True)
class PieceRules:
    """The rules by which pieces are joined to a text.

    Attributes:
        mark: Character that stands for a space in a token.
        has_byte_tokens: Whether tokens like `<0xE2>` are bytes.
        num_strip: Number of spaces removed from the start of a text.
        drops_first_marks: Whether the marks of a text's first token are removed.
    """

    mark: str
    has_byte_tokens: bool = False
    num_strip: int = 0
    drops_first_marks: bool = False


class PieceStream:
    """The stream of SentencePiece: tokens are text, or bytes of characters not in the vocabulary.

    A run of byte tokens is text if all of it is valid UTF-8, and otherwise one U+FFFD per byte; so
    it is held back until it ends. The rules for the start of a text apply to the prompt.

    Args:
        piece_of: Function that returns a token's text, the byte of a byte token, or None for a
            token that is left out.
        rules: Rules by which the pieces are joined.
        prompt_token_ids: Token ids of the prompt.
    """

    def __init__(
        self, piece_of: PieceOf, rules: PieceRules, prompt_token_ids: Sequence[int]
    ) -> None:
        self._piece_of = piece_of
        self._mark = rules.mark
        self._num_strip = rules.num_strip
        self._drops_marks = rules.drops_first_marks
        self._run = bytearray()
        self._num_prompt_bytes = 0  # of the run
        self._read_prompt(prompt_token_ids)

    def feed(self, token_id: int) -> str:
        """Add one token; a run of byte tokens is held back."""
        piece = self._piece_of(token_id)
        if piece is None:
            return ""
        if isinstance(piece, bytes):
            self._run += piece
            return ""
        return self._end_run() + self._strip(self._without_marks(piece))

    def close(self) -> str:
        """Return the text of the bytes held back."""
        return self._end_run()

    def _read_prompt(self, token_ids: Sequence[int]) -> None:
        """Apply the rules for the start of a text, and keep the byte run at the prompt's end."""
        for token_id in token_ids:
            if not self._drops_marks and not self._num_strip:
                break
            self.feed(token_id)
        self._run = bytearray(_last_run(self._piece_of, token_ids))
        self._num_prompt_bytes = len(self._run)

    def _end_run(self) -> str:
        if not self._run:
            return ""
        run, num_prompt = bytes(self._run), self._num_prompt_bytes
        self._run.clear()
        self._num_prompt_bytes = 0
        try:
            text = run.decode("utf-8")
            num_prompt_characters = len(run[:num_prompt].decode("utf-8", "ignore"))
        except UnicodeDecodeError:
            text, num_prompt_characters = REPLACEMENT * len(run), num_prompt
        self._strip(text[:num_prompt_characters])  # the prompt's part counts as start of the text
        return self._strip(text[num_prompt_characters:])

    def _without_marks(self, piece: str) -> str:
        space, self._drops_marks = "" if self._drops_marks else " ", False
        return piece.replace(self._mark, space)

    def _strip(self, text: str) -> str:
        while self._num_strip and text.startswith(" "):
            text = text[1:]
            self._num_strip -= 1
        if text:
            self._num_strip = 0
        return text


class WindowStream:
    """The stream of any other decoder: decode the last few tokens again and return the new text.

    Exact if a token's text depends on its near neighbours only, which holds for WordPiece and for
    the decoders of transformers' slow tokenizers.

    Args:
        decode: Function that decodes token ids.
        prompt_token_ids: Token ids of the prompt.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], prompt_token_ids: Sequence[int]
    ) -> None:
        self._decode = decode
        self._token_ids = list(prompt_token_ids[-WINDOW:])
        self._num_sent = _stable_length(decode(self._token_ids))

    def feed(self, token_id: int) -> str:
        """Add one token; a suffix that may be an incomplete character is held back."""
        self._token_ids.append(token_id)
        text = self._decode(self._token_ids)
        delta = text[self._num_sent : _stable_length(text)]
        self._num_sent += len(delta)
        if len(self._token_ids) > 3 * WINDOW:
            self._move_window(len(text) - self._num_sent)
        return delta

    def close(self) -> str:
        """Return the text held back."""
        text = self._decode(self._token_ids)
        delta = text[self._num_sent :]
        self._num_sent = len(text)
        return delta

    def _move_window(self, num_held: int) -> None:
        del self._token_ids[:-WINDOW]
        self._num_sent = max(0, len(self._decode(self._token_ids)) - num_held)


def _stable_length(text: str) -> int:
    """Return the length of the text that later tokens cannot change.

    A few U+FFFD at the end may still become one character.
    """
    num_open = len(text) - len(text.rstrip(REPLACEMENT))
    return len(text) - min(num_open, MAX_CHARACTER_BYTES - 1)


def _last_bytes(bytes_of: Callable[[int], bytes], token_ids: Sequence[int]) -> bytes:
    """Return at least the last four bytes of a prompt, the longest UTF-8 character."""
    tail = b""
    for token_id in reversed(token_ids):
        tail = bytes_of(token_id) + tail
        if len(tail) >= MAX_CHARACTER_BYTES:
            break
    return tail


def _last_run(piece_of: PieceOf, token_ids: Sequence[int]) -> bytes:
    """Return the byte run at the end of a prompt; tokens that are left out do not end it."""
    run = b""
    for token_id in reversed(token_ids):
        piece = piece_of(token_id)
        if isinstance(piece, str):
            break
        run = (piece or b"") + run
    return run
