"""Pieces of cross-group blocks, and the defaults of KV stores."""

import inspect

from quire.interfaces.kv_transfer import (
    BlockPiece,
    KVLookup,
    KVStoreScheduler,
    KVStoreWorker,
    block_pieces,
    cross_group_block_bytes,
)
from quire.testing.kv_store.kv_store_scene import one_group_plan, three_groups_plan


def test_a_piece_belongs_to_the_group_whose_layer_lies_in_the_tensor():
    assert block_pieces(three_groups_plan()) == (
        BlockPiece(group=0, tensor=0, offset=0, num_bytes=128),
        BlockPiece(group=0, tensor=1, offset=128, num_bytes=128),
        BlockPiece(group=1, tensor=0, offset=256, num_bytes=128),
        BlockPiece(group=1, tensor=1, offset=384, num_bytes=128),
        BlockPiece(group=2, tensor=0, offset=512, num_bytes=128),
    )


def test_pieces_are_contiguous_and_end_at_the_bytes_of_a_cross_group_block():
    for plan in (one_group_plan(), three_groups_plan()):
        last = block_pieces(plan)[-1]
        assert last.offset + last.num_bytes == cross_group_block_bytes(plan)
    assert cross_group_block_bytes(one_group_plan()) == 96 + 160


def test_a_lookup_that_says_nothing_found_nothing_and_is_final():
    assert KVLookup() == KVLookup(num_blocks=0, is_pending=False)


def test_a_store_need_not_implement_options_shutdown_and_requests():
    for side, names in (
        (KVStoreScheduler, ("check_options", "forget_request", "shutdown")),
        (KVStoreWorker, ("shutdown",)),
    ):
        assert not set(names) & side.__abstractmethods__
    KVStoreScheduler.check_options({"anything": "goes"})
    assert inspect.isabstract(KVStoreScheduler)
