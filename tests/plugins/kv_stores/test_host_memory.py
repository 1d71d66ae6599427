"""Scheduler side: it logs skipped blocks, counts bytes and checks transfer ids."""

import logging

import pytest

from quire.testing.kv_store.kv_store_scene import StoreScene, chain, one_group_plan
from quire_kv_stores.host_memory import HostMemoryScheduler
from quire_kv_stores.host_memory_worker import HostMemory

BLOCK_BYTES = 256  # bytes, in this plan


@pytest.fixture
def scene():
    return make_scene()


def make_scene(num_cross_blocks=16, **options):
    given = {"max_bytes": str(num_cross_blocks * BLOCK_BYTES), **options}
    return StoreScene(HostMemoryScheduler, HostMemory, given, one_group_plan())


def saves(caplog):
    return [r.message for r in caplog.records if ": save " in r.message]


def test_of_thirty_two_tokens_with_twenty_four_known_eight_are_written(scene, caplog):
    prompt = chain("prompt", 8)  # 4 tokens a block
    scene.save(prompt[:6])
    before = scene.worker.saved_bytes
    with caplog.at_level(logging.INFO):
        assert scene.save(prompt) == 2
    assert saves(caplog) == ["host_memory: save 2: 32 tokens, 24 already stored, 8 written"]
    assert scene.worker.saved_bytes - before == 2 * BLOCK_BYTES
    assert scene.scheduler.counts.saved_bytes == 8 * BLOCK_BYTES
    assert scene.scheduler.counts.num_known == 6


def test_a_save_of_stored_blocks_moves_nothing_and_logs_it(scene, caplog):
    prompt = chain("prompt", 3)
    scene.save(prompt)
    with caplog.at_level(logging.INFO):
        assert scene.start_save(prompt) == 0
    assert saves(caplog) == ["host_memory: save 2: 12 tokens, 12 already stored, 0 written"]
    assert scene.scheduler.plan_step() == b""


def test_the_blocks_of_a_completion_are_logged_at_debug_level(scene, caplog):
    with caplog.at_level(logging.INFO):
        scene.save(chain("prompt", 1))
    assert saves(caplog) == []
    with caplog.at_level(logging.DEBUG):
        scene.save(chain("another", 1))
    assert saves(caplog) == ["host_memory: save 2: 4 tokens, 0 already stored, 4 written"]


def test_what_is_being_stored_is_not_stored_twice(scene):
    prompt = chain("prompt", 3)
    assert scene.start_save(prompt) == 3
    assert scene.start_save(prompt) == 0
    scene.finish_transfers()
    assert scene.worker.saved_bytes == 3 * BLOCK_BYTES


def test_the_same_content_twice_in_one_offer_is_stored_once(scene):
    (block_hash,) = chain("prompt", 1)
    assert scene.save([block_hash, block_hash]) == 1
    assert scene.load([block_hash])


def test_skipped_blocks_are_counted_and_logged(caplog):
    scene = make_scene(num_cross_blocks=2)
    with caplog.at_level(logging.DEBUG):
        assert scene.start_save(chain("first", 3)) == 2
        assert scene.start_save(chain("second", 2)) == 0
        scene.finish_transfers()
    assert saves(caplog) == [
        "host_memory: save 2: 8 tokens, 0 already stored, 0 written, 8 skipped for lack of space",
        "host_memory: save 1: 12 tokens, 0 already stored, 8 written, 4 skipped for lack of space",
    ]
    assert scene.scheduler.counts.num_skipped == 3


def test_incomplete_blocks_are_logged(scene, caplog):
    with caplog.at_level(logging.DEBUG):
        scene.start_save(chain("prompt", 2), null_group=0)
    assert saves(caplog) == [
        "host_memory: save 1: 8 tokens, 0 already stored, 0 written, 8 incomplete"
    ]


def test_loaded_bytes_are_counted_on_both_sides(scene):
    prompt = chain("prompt", 4)
    scene.save(prompt)
    scene.load(prompt[:3])
    assert scene.worker.loaded_bytes == scene.scheduler.counts.loaded_bytes == 3 * BLOCK_BYTES


def test_a_load_of_what_was_evicted_since_fails(caplog):
    scene = make_scene(num_cross_blocks=2)
    prompt = chain("prompt", 2)
    scene.save(prompt)
    scene.start_save(chain("other", 1))
    assert not scene.load(prompt)
    assert scene.lookup(prompt) == 1


def test_a_lookup_keeps_what_it_found_for_longer():
    scene = make_scene(num_cross_blocks=2)
    old, new = chain("old", 1), chain("new", 1)
    scene.save(old)
    scene.save(new)
    assert scene.lookup(old) == 1
    scene.save(chain("third", 1))
    assert (scene.lookup(old), scene.lookup(new)) == (1, 0)


def test_a_failed_load_does_not_affect_others_of_the_same_blocks(scene):
    prompt = chain("prompt", 3)
    scene.save(prompt)
    failing, other = scene.start_load(prompt), scene.start_load(prompt)
    scene.end(failing, has_failed=True)
    assert scene.scheduler.index.num_moving == 3, "the other load still reads those slots"
    scene.end(other, has_failed=True)
    assert scene.scheduler.index.num_moving == 0
    assert scene.scheduler.index.num_free == 16


@pytest.mark.parametrize("has_failed", [False, True])
def test_the_end_of_an_unknown_transfer_is_an_error(scene, has_failed):
    with pytest.raises(ValueError, match="transfer 7 is not open"):
        scene.scheduler.finish(7, has_failed=has_failed)


def test_an_id_cannot_be_used_twice_at_a_time(scene):
    prompt = chain("prompt", 2)
    scene.start_save(prompt)
    (transfer,) = scene.open.values()
    with pytest.raises(ValueError, match="transfer 1 is open already"):
        scene.scheduler.start_save(1, transfer.cross_blocks)
    with pytest.raises(ValueError, match="transfer 1 is open already"):
        scene.scheduler.start_load(1, transfer.cross_blocks)


def test_an_empty_load_is_an_error(scene):
    with pytest.raises(ValueError, match="load 5 has no blocks"):
        scene.scheduler.start_load(5, [])


def test_what_is_being_written_is_not_offered(scene):
    prompt = chain("prompt", 2)
    scene.start_save(prompt)
    assert scene.scheduler.lookup("early", prompt).num_blocks == 0


def test_an_offer_keeps_what_it_names_for_longer():
    scene = make_scene(num_cross_blocks=2)
    old, new = chain("old", 1), chain("new", 1)
    scene.save(old)
    scene.save(new)
    assert scene.save(old) == 0
    scene.save(chain("third", 1))
    assert (scene.lookup(old), scene.lookup(new)) == (1, 0)


def test_a_load_that_is_lost_fails_in_a_step_of_its_own():
    scene = make_scene(num_cross_blocks=2)
    prompt = chain("prompt", 2)
    scene.save(prompt)
    scene.save(chain("other", 1))
    load = scene.start_load(prompt)
    assert scene.step().failed == [load]
    assert scene.lookup(prompt[:1]) == 1


@pytest.mark.parametrize("is_load", [True, False])
def test_a_transfer_ends_once(scene, is_load):
    prompt = chain("prompt", 2)
    scene.save(prompt)
    (scene.start_load if is_load else scene.start_save)(
        [*prompt, *chain("more", 0 if is_load else 1)]
    )
    scene.finish_transfers()
    with pytest.raises(ValueError, match="transfer 2 is not open"):
        scene.scheduler.finish(2, has_failed=False)


def test_the_first_save_that_fails_is_a_warning_and_the_others_are_details(scene, caplog):
    caplog.set_level(logging.DEBUG)
    for name in ("first", "second"):
        scene.start_save(chain(name, 1))
    for transfer_id in (1, 2):
        scene.end(transfer_id, has_failed=True)
    levels = [r.levelname for r in caplog.records if "failed" in r.message]
    assert levels == ["WARNING", "DEBUG"]
    assert scene.scheduler.counts.num_failed == 2
    assert scene.scheduler.counts.saved_bytes == 0
    assert scene.scheduler.index.num_slots == 14, "their slots are not trusted any more"


def test_the_log_says_how_much_has_room(caplog):
    with caplog.at_level(logging.INFO):
        make_scene(num_cross_blocks=3)
    assert "host_memory: capacity for 12 tokens (3 blocks of 256 bytes)" in caplog.messages
