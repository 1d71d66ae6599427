"""From token ids to text, one token at a time: what comes out is never taken back.

Each stream follows one family of decoders exactly, with a state of a few bytes, so a token costs
the same at any length. A stream begins at the end of a prompt: a character that the prompt began
and the answer completes belongs to the answer, as does the blank before its first word.
"""

from codecs import getincrementaldecoder
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

MAX_CHARACTER_BYTES = 4
REPLACEMENT = "\ufffd"
WINDOW = 8  # tokens of context that a window keeps

Piece = str | bytes | None  # text, one byte of a character, or nothing at all
PieceOf = Callable[[int], Piece]


class TextStream(Protocol):
    """An incremental decoder."""

    def feed(self, token_id: int) -> str:
        """Take one token; return the text that is certain by now and was not returned before."""

    def close(self) -> str:
        """Return what was held back."""


class ByteLevelStream:
    """Byte-level BPE: tokens are bytes, and the text is their UTF-8.

    Args:
        bytes_of: The bytes of a token; empty for one that is left out.
        prompt_token_ids: What stands before the answer.
    """

    def __init__(self, bytes_of: Callable[[int], bytes], prompt_token_ids: Sequence[int]) -> None:
        self._bytes_of = bytes_of
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._decoder.decode(_last_bytes(bytes_of, prompt_token_ids))

    def feed(self, token_id: int) -> str:
        """Take one token; a character that is not complete stays inside."""
        return self._decoder.decode(self._bytes_of(token_id))

    def close(self) -> str:
        """Return U+FFFD for a character that was never completed."""
        return self._decoder.decode(b"", final=True)


@dataclass(frozen=True, slots=True)
class PieceRules:
    """How pieces of text become the text.

    Attributes:
        mark: What stands for a blank in a token.
        has_byte_tokens: Whether `<0xE2>` is a byte.
        num_strip: Blanks that are taken off the front of a text.
        drops_first_marks: Whether the first token of a text loses its marks.
    """

    mark: str
    has_byte_tokens: bool = False
    num_strip: int = 0
    drops_first_marks: bool = False


class PieceStream:
    """SentencePiece's family: tokens are text, or single bytes of characters not in the vocabulary.

    A run of byte tokens is text if all of it is UTF-8, and otherwise one U+FFFD a byte; so it is
    held back until it ends. What happens at the front of a text happens to the prompt.

    Args:
        piece_of: A token as it is, one byte for a byte token, None for one that is left out.
        rules: What becomes of the pieces.
        prompt_token_ids: What stands before the answer.
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
        """Take one token; a run of byte tokens stays inside."""
        piece = self._piece_of(token_id)
        if piece is None:
            return ""
        if isinstance(piece, bytes):
            self._run += piece
            return ""
        return self._end_run() + self._strip(self._without_marks(piece))

    def close(self) -> str:
        """Return the run of bytes that was held back."""
        return self._end_run()

    def _read_prompt(self, token_ids: Sequence[int]) -> None:
        """Learn from the prompt whether the text has begun, and the bytes that it ends with."""
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
            num_known = len(run[:num_prompt].decode("utf-8", "ignore"))
        except UnicodeDecodeError:
            text, num_known = REPLACEMENT * len(run), num_prompt
        self._strip(text[:num_known])  # the prompt's part: it only says that the text has begun
        return self._strip(text[num_known:])

    def _without_marks(self, piece: str) -> str:
        blank, self._drops_marks = "" if self._drops_marks else " ", False
        return piece.replace(self._mark, blank)

    def _strip(self, text: str) -> str:
        while self._num_strip and text.startswith(" "):
            text = text[1:]
            self._num_strip -= 1
        if text:
            self._num_strip = 0
        return text


class WindowStream:
    """Any other decoder: decode the last few tokens twice and return what is new.

    Exact as long as a token's text depends on its near neighbours only, which holds for WordPiece
    and for the decoders of transformers' slow tokenizers.

    Args:
        decode: The decoder.
        prompt_token_ids: What stands before the answer.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], prompt_token_ids: Sequence[int]
    ) -> None:
        self._decode = decode
        self._token_ids = list(prompt_token_ids[-WINDOW:])
        self._num_sent = _certain_length(decode(self._token_ids))

    def feed(self, token_id: int) -> str:
        """Take one token; an end that may be half a character stays inside."""
        self._token_ids.append(token_id)
        text = self._decode(self._token_ids)
        delta = text[self._num_sent : _certain_length(text)]
        self._num_sent += len(delta)
        if len(self._token_ids) > 3 * WINDOW:
            self._move_window(len(text) - self._num_sent)
        return delta

    def close(self) -> str:
        """Return what was held back."""
        text = self._decode(self._token_ids)
        delta = text[self._num_sent :]
        self._num_sent = len(text)
        return delta

    def _move_window(self, num_held: int) -> None:
        del self._token_ids[:-WINDOW]
        self._num_sent = max(0, len(self._decode(self._token_ids)) - num_held)


def _certain_length(text: str) -> int:
    """Return how much of a text no later token can change: an end of U+FFFD may become one."""
    num_open = len(text) - len(text.rstrip(REPLACEMENT))
    return len(text) - min(num_open, MAX_CHARACTER_BYTES - 1)


def _last_bytes(bytes_of: Callable[[int], bytes], token_ids: Sequence[int]) -> bytes:
    """Return at least the last four bytes of a prompt; no character is longer."""
    tail = b""
    for token_id in reversed(token_ids):
        tail = bytes_of(token_id) + tail
        if len(tail) >= MAX_CHARACTER_BYTES:
            break
    return tail


def _last_run(piece_of: PieceOf, token_ids: Sequence[int]) -> bytes:
    """Return the byte tokens at the end of a prompt; tokens that are left out do not end a run."""
    run = b""
    for token_id in reversed(token_ids):
        piece = piece_of(token_id)
        if isinstance(piece, str):
            break
        run = (piece or b"") + run
    return run
