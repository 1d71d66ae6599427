"""First characters of what may follow a text in a call."""

from collections.abc import Sequence

from quire.interfaces.tool_parsing import (
    EitherPiece,
    MembersPiece,
    Piece,
    RegexPiece,
    SchemaPiece,
)

_ANY = None  # any character may come
_END = ""  # the pieces may be empty
_JSON = frozenset(' {["-0123456789tfn')

Starts = frozenset[str] | None


def may_go_on_with(pieces: Sequence[Piece], character: str) -> bool:
    """Whether pieces, or what follows them, may begin with a character."""
    starts = _of_sequence(pieces)
    return starts is _ANY or character in starts or _END in starts


def _of_sequence(pieces: Sequence[Piece]) -> Starts:
    found = frozenset[str]()
    for piece in pieces:
        starts = _of_piece(piece)
        if starts is _ANY:
            return _ANY
        found |= starts - {_END}
        if _END not in starts:
            return found
    return found | {_END}


def _of_piece(piece: Piece) -> Starts:
    match piece:
        case str():
            return frozenset({piece[:1]})
        case RegexPiece(before=before) if before:
            return frozenset({before[0]})
        case SchemaPiece():
            return _JSON
        case EitherPiece(alternatives):
            return _of_any(alternatives)
        case MembersPiece(members, others=others):
            every = [*members, *([] if others is None else [others])]
            is_required = any(member.is_required for member in members)
            return _of_any([*(each.pieces for each in every), *([] if is_required else [()])])
    return _ANY


def _of_any(sequences: Sequence[Sequence[Piece]]) -> Starts:
    found = frozenset[str]()
    for each in sequences:
        starts = _of_sequence(each)
        if starts is _ANY:
            return _ANY
        found |= starts
    return found
