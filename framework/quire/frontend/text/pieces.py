"""Decoding of SentencePiece: tokens are text in which a mark stands for the space."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial

from quire.frontend.text.byte_spelling import single_byte
from quire.frontend.text.text_stream import NUM_REMEMBERED, REPLACEMENT, Decoding, TextStream
from quire.frontend.text.tokenizer_backend import TokenizerBackend

Piece = str | bytes | None  # text, one byte of a character, or a token that is left out
PieceOf = Callable[[int], Piece]


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


class PieceDecoding(Decoding):
    """Decoding of tokens that are text in which a mark stands for the space."""

    def __init__(self, backend: TokenizerBackend, rules: PieceRules) -> None:
        super().__init__(backend)
        self._rules = rules
        self._lookup = cache(self._piece)
        self._visible = lru_cache(NUM_REMEMBERED)(
            lambda hidden: cache(partial(self._visible_piece, hidden))
        )

    def stream(self, prompt_token_ids: Sequence[int], hidden: frozenset[int]) -> TextStream:
        """Return an incremental decoder that continues a prompt."""
        return PieceStream(self._visible(hidden), self._rules, prompt_token_ids)

    def _visible_piece(self, hidden: frozenset[int], token_id: int) -> Piece:
        return None if token_id in hidden else self._lookup(token_id)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of a token; empty for an id that does not exist."""
        piece = self._lookup(token_id)
        if isinstance(piece, str):
            return piece.replace(self._rules.mark, " ").encode()
        return piece or b""

    def _piece(self, token_id: int) -> Piece:
        token = self.backend.id_to_token(token_id)
        byte = single_byte(token) if token and self._rules.has_byte_tokens else None
        return token if byte is None else byte


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


def _last_run(piece_of: PieceOf, token_ids: Sequence[int]) -> bytes:
    """Return the byte run at the end of a prompt; tokens that are left out do not end it."""
    run = b""
    for token_id in reversed(token_ids):
        piece = piece_of(token_id)
        if isinstance(piece, str):
            break
        run = (piece or b"") + run
    return run
