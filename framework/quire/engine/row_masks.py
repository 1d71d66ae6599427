"""Masks that the engine makes itself, beside those of grammars."""

from collections.abc import Iterable, Sequence

from quire.messages import RowBitmask


def only(token_id: int, slot: int, vocab_size: int) -> RowBitmask:
    """Return a mask that leaves one token."""
    words = bytearray(_num_bytes(vocab_size))
    words[token_id // 8] = 1 << token_id % 8
    return RowBitmask(slot, 0, bytes(words))


def without(token_ids: Iterable[int], slot: int, vocab_size: int) -> RowBitmask:
    """Return a mask that leaves all tokens but these."""
    words = bytearray(b"\xff" * _num_bytes(vocab_size))
    for token_id in token_ids:
        words[token_id // 8] &= ~(1 << token_id % 8)
    return RowBitmask(slot, 0, bytes(words))


def within(own: Sequence[RowBitmask], grammars: Sequence[RowBitmask]) -> list[RowBitmask]:
    """Return one mask for each row: the engine's own where the grammar leaves a token of it.

    Args:
        own: Masks of the engine.
        grammars: Masks of grammars, which bind.
    """
    rows = {(mask.slot, mask.sample): mask for mask in grammars}
    for mask in own:
        row = mask.slot, mask.sample
        if row not in rows or _has_common(mask.words, rows[row].words):
            rows[row] = mask
    return [*rows.values()]


def _has_common(one: bytes, other: bytes) -> bool:
    return bool(int.from_bytes(one, "little") & int.from_bytes(other, "little"))


def _num_bytes(vocab_size: int) -> int:
    return 4 * -(-vocab_size // 32)
