"""Packed weights are adjacent; a piece of memory lives as long as a weight in it."""

import gc
import weakref

import pytest

from quire_quantizations.packed_memory import ALIGNMENT, PIECE_BYTES, PackedMemory


def test_weights_lie_beside_each_other_on_lines_of_their_own():
    memory = PackedMemory()
    weights = [memory.allocate(size) for size in (1, 64, 100, 3)]
    assert [weight.numel() for weight in weights] == [1, 64, 100, 3]
    places = [weight.data_ptr() for weight in weights]
    assert [place - places[0] for place in places] == [0, 64, 128, 256]
    assert all(place % ALIGNMENT == 0 for place in places)
    for number, weight in enumerate(weights):
        weight.fill_(number + 1)
    assert [weight.unique().tolist() for weight in weights] == [[1], [2], [3], [4]]


def test_a_weight_that_just_fits_ends_its_piece():
    memory = PackedMemory()
    first, last = memory.allocate(PIECE_BYTES - ALIGNMENT), memory.allocate(ALIGNMENT)
    assert last.data_ptr() == first.data_ptr() + first.numel()


def test_a_weight_that_is_larger_than_a_piece_has_its_own():
    memory = PackedMemory()
    small, large = memory.allocate(10), memory.allocate(PIECE_BYTES + 1)
    assert large.numel() == PIECE_BYTES + 1
    assert not large[-1]
    assert memory.allocate(0).numel() == 0
    assert small.numel() == 10


def test_a_piece_is_given_back_once_it_is_full_and_no_weight_is_in_it():
    memory = PackedMemory()
    weight = memory.allocate(PIECE_BYTES)
    piece = weakref.ref(memory._piece)
    memory.allocate(1)
    assert piece() is not None
    del weight
    gc.collect()
    assert piece() is None


def test_more_than_there_can_be_is_an_error():
    with pytest.raises(OSError, match="memory"):
        PackedMemory().allocate(2**60)
