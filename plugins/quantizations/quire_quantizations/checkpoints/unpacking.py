"""Integers of a few bits that are packed into larger ones, the lowest bits first."""

from __future__ import annotations

import torch
from torch import Tensor

WORD_BITS = 32
BYTE_BITS = 8
CHUNK_WORDS = 2**20  # that are unpacked at a time if integers straddle words


def unpacked(
    packed: Tensor,  # [rows, words] int32, or [rows, bytes] uint8
    bits: int,
) -> Tensor:  # [rows, integers] uint8
    """Return the integers of each row of a stream of bits; integers may straddle words."""
    stream = packed.contiguous().view(torch.uint8)
    if BYTE_BITS % bits == 0:
        return _from_bytes(stream, bits)
    rows = max(1, CHUNK_WORDS // max(1, packed.shape[1]))
    starts = range(0, max(1, len(packed)), rows)
    return torch.cat([_from_words(packed[start : start + rows], bits) for start in starts])


def unpacked_words(
    packed: Tensor,  # [rows, words] int32
    bits: int,
) -> Tensor:  # [rows, words * (32 // bits)] uint8
    """Return the integers of each row, if none straddles words and their last bits are unused."""
    if WORD_BITS % bits == 0:
        return unpacked(packed, bits)
    shifts = torch.arange(0, WORD_BITS - bits + 1, bits, dtype=torch.int32)
    found = (packed.unsqueeze(-1) >> shifts) & ((1 << bits) - 1)
    return found.to(torch.uint8).flatten(1)


def _from_bytes(stream: Tensor, bits: int) -> Tensor:
    """Return the integers of whole bytes."""
    if bits == BYTE_BITS:
        return stream
    mask = (1 << bits) - 1
    fields = [(stream >> shift) & mask for shift in range(0, BYTE_BITS, bits)]
    return torch.stack(fields, -1).flatten(1)


def _from_words(words: Tensor, bits: int) -> Tensor:
    """Return the integers of a stream of words, those across two words included."""
    count = words.shape[1] * WORD_BITS // bits
    wide = words.long() & 0xFFFFFFFF
    padded = torch.cat((wide, wide.new_zeros(len(wide), 1)), 1)
    first = torch.arange(count) * bits
    word, shift = first // WORD_BITS, first % WORD_BITS
    both = padded[:, word] | (padded[:, word + 1] << WORD_BITS)
    return ((both >> shift) & ((1 << bits) - 1)).to(torch.uint8)
