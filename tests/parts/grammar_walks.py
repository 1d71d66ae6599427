"""Random completions of a grammar of tool calls, with its markers as tokens."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from quire.interfaces.structured_output import Matcher, Vocabulary
from quire.interfaces.tool_parsing import (
    CallGrammar,
    EitherPiece,
    MembersPiece,
    Piece,
    TextPiece,
)
from quire.testing.structured_output import read_mask

END = 300
FIRST_MARKER = 310
SIZE = 421
MAX_STEPS = 2_000
_EXPONENTS = b"eE"  # of numbers that no float can hold
_WORDS = (b'"', b'",', b'"}', b"}", b"]", b"true", b"12", b"-1.5", b" ", b"null", b"ab", b"\\n")
_CLOSERS = {ord(each) for each in '"}])>\n'}


@dataclass(frozen=True)
class Walks:
    """A vocabulary in which a grammar's markers are tokens.

    Attributes:
        vocabulary: The vocabulary.
        texts: Text of each token.
    """

    vocabulary: Vocabulary
    texts: dict[int, bytes]

    @classmethod
    def of(cls, calls: CallGrammar, markers: tuple[str, ...], *, are_special: bool) -> "Walks":
        """Return the vocabulary for a grammar and the markers of a format."""
        tokens = {bytes([byte]): [byte] for byte in range(256)}
        tokens |= {word: [256 + i] for i, word in enumerate(_WORDS) if len(word) > 1}
        ends = dict.fromkeys(text for shape in calls.shapes for text in _ends(shape.pieces))
        ids = {text: FIRST_MARKER + i for i, text in enumerate(dict.fromkeys([*markers, *ends]))}
        special = {text: ids[text] for text in markers if are_special}
        tokens |= {text.encode(): [i] for text, i in ids.items() if text not in special}
        texts = {i: text for text, each in tokens.items() for i in each}
        texts |= {i: text.encode() for text, i in special.items()}
        return cls(Vocabulary(tokens, (END,), SIZE, special), texts)

    def sample(self, matcher: Matcher, rng: random.Random, num_free: int) -> str:
        """Return a completion; after `num_free` tokens its texts are ended soon."""
        completion = b""
        for step in range(MAX_STEPS):
            allowed = read_mask(matcher, SIZE)
            assert allowed, f"no token is allowed after {completion[-200:]!r}"
            markers = sorted(each for each in allowed if each >= FIRST_MARKER)
            closers = sorted(allowed & _CLOSERS)
            if END in allowed and (len(allowed) == 1 or step > num_free or rng.random() < 0.3):
                assert matcher.accept(END)
                return completion.decode()
            is_ending = step > num_free and closers and rng.random() < 0.5
            likely = closers if is_ending else markers
            others = sorted(allowed - {END, *(_EXPONENTS if completion[-1:].isdigit() else ())})
            token_id = rng.choice(likely if likely and rng.random() < 0.5 else others)
            assert matcher.accept(token_id)
            completion += self.texts[token_id]
        raise AssertionError(f"no end after {completion[:300]!r}")


def _ends(pieces: tuple[Piece, ...]) -> Iterator[str]:
    for piece in pieces:
        match piece:
            case TextPiece():
                yield piece.end
            case EitherPiece(alternatives):
                for each in alternatives:
                    yield from _ends(each)
            case MembersPiece(members, others=others):
                for member in [*members, *([] if others is None else [others])]:
                    yield from _ends(member.pieces)
