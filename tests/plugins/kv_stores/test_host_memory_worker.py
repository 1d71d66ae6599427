"""Worker side: loads first, bounded bytes per step, and memory allocated at its first use."""

import msgspec
import pytest
import torch

from quire.errors import CapacityError
from quire.interfaces.kv_transfer import CrossGroupBlock
from quire.testing.kv_store.kv_store_scene import StoreScene, chain, one_group_plan
from quire_kv_stores import slot_pool
from quire_kv_stores.host_memory import HostMemoryScheduler
from quire_kv_stores.host_memory_worker import HostMemory
from quire_kv_stores.slot_pool import SlotPool

BLOCK_BYTES = 256


def make_scene(num_cross_blocks=32, blocks_per_step=4):
    options = {
        "max_bytes": str(num_cross_blocks * BLOCK_BYTES),
        "step_bytes": str(blocks_per_step * BLOCK_BYTES),
    }
    return StoreScene(HostMemoryScheduler, HostMemory, options, one_group_plan())


def test_a_step_moves_no_more_than_its_share():
    scene = make_scene(blocks_per_step=4)
    scene.start_save(chain("prompt", 10))
    moved = []
    while scene.open:
        scene.step()
        moved.append(scene.worker.saved_bytes // BLOCK_BYTES)
    assert moved == [4, 8, 10]


def test_a_transfer_is_reported_once_it_is_whole():
    scene = make_scene(blocks_per_step=4)
    scene.start_save(chain("first", 3))
    scene.start_save(chain("second", 6))
    scene.start_save(chain("third", 1))
    assert [scene.step().done for _ in range(3)] == [[1], [], [2, 3]]


def test_loads_go_before_saves_that_wait():
    scene = make_scene(blocks_per_step=4)
    prompt = chain("prompt", 4)
    scene.save(prompt)
    scene.start_save(chain("long", 12))
    scene.step()
    load = scene.start_load(prompt)
    assert scene.step().done == [load]
    assert scene.worker.saved_bytes == 8 * BLOCK_BYTES, "the save had to wait for the load"
    scene.finish_transfers()


def test_a_load_that_finds_damage_stops_there():
    scene = make_scene(blocks_per_step=2)
    prompt = chain("prompt", 8)
    scene.save(prompt)
    scene.worker.pool.slot(scene.scheduler.index.find(prompt[3]).slot)[0] ^= 255
    load = scene.start_load(prompt)
    assert [scene.step().failed for _ in range(2)] == [[], [load]]
    assert scene.worker.loaded_bytes == 3 * BLOCK_BYTES


def test_the_same_bytes_under_another_name_are_damage():
    pool = SlotPool(2, BLOCK_BYTES, is_pinned=False)
    pool.slot(0).fill_(3)
    pool.record_checksum(0, b"name")
    assert pool.is_intact(0, b"name")
    assert not pool.is_intact(0, b"other")
    assert not pool.is_intact(1, b"name")
    pool.drop_checksum(0)
    assert not pool.is_intact(0, b"name")


def test_memory_is_taken_as_it_is_used_and_never_beyond_the_limit(monkeypatch):
    monkeypatch.setattr(slot_pool, "SLAB_BYTES", 4 * BLOCK_BYTES)
    scene = make_scene(num_cross_blocks=10)
    sizes = [scene.worker.pool.num_bytes // BLOCK_BYTES]
    for index in range(8):
        scene.save(chain(f"prompt {index}", 3))
        sizes.append(scene.worker.pool.num_bytes // BLOCK_BYTES)
    assert sizes == [0, 4, 8, 10, 10, 10, 10, 10, 10]


def test_a_slab_holds_at_least_one_block():
    pool = SlotPool(2, slot_pool.SLAB_BYTES + 1, is_pinned=False)
    assert pool.slot(1).shape == (slot_pool.SLAB_BYTES + 1,)
    assert pool.num_bytes == slot_pool.SLAB_BYTES + 1


def test_a_slot_that_does_not_exist_is_an_error():
    pool = SlotPool(2, BLOCK_BYTES, is_pinned=False)
    for index in (-1, 2):
        with pytest.raises(IndexError, match=f"slot {index} is out of range: there are 2 slots"):
            pool.slot(index)


def test_a_failed_allocation_is_reported_with_its_size():
    pool = SlotPool(2**30, 2**40, is_pinned=False)
    with pytest.raises(
        CapacityError, match=r"1,099,511,627,776 bytes could not be allocated .* lower max_bytes"
    ):
        pool.slot(0)


def test_without_memory_saves_fail_and_what_is_stored_stays(caplog, monkeypatch):
    monkeypatch.setattr(slot_pool, "SLAB_BYTES", 2 * BLOCK_BYTES)
    scene = make_scene(num_cross_blocks=4)
    first = chain("first", 2)
    scene.save(first)
    monkeypatch.setattr(scene.worker.pool, "cross_group_block_bytes", 2**60)  # no machine has that
    for name in ("second", "third", "fourth"):
        scene.start_save(chain(name, 2))
        scene.finish_transfers()
    assert scene.failed == [2]
    assert scene.scheduler.index.num_slots == 2, "slots without memory are not used again"
    assert scene.lookup(chain("fourth", 2)) == 2
    assert scene.load(chain("fourth", 2))
    assert sum("could not be allocated" in r.message for r in caplog.records) == 1


@pytest.mark.parametrize("message", [b"\xff", b"\x93\x90", b"\x93\x01\x02\x03"])
def test_a_message_that_is_none_is_refused(message):
    with pytest.raises(msgspec.DecodeError):
        make_scene().worker.begin_step(message)


def test_nothing_moves_before_a_cache_is_attached_nor_after_the_end():
    scene = make_scene()
    scene.start_save(chain("prompt", 1))
    message = scene.scheduler.plan_step()
    with pytest.raises(RuntimeError, match="no KV cache is attached"):
        HostMemory({}, scene.plan).begin_step(message)
    scene.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        scene.worker.begin_step(message)


@pytest.mark.gpu
def test_blocks_survive_pinned_memory():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    scene = make_scene()
    on_gpu = [tensor.cuda() for tensor in scene.tensors]
    scene.worker.attach(on_gpu)
    scene.tensors = on_gpu
    saved = torch.randint(0, 256, on_gpu[0][1:5].shape, dtype=torch.uint8, device="cuda")
    on_gpu[0][1:5] = saved
    names = chain("prompt", 4)
    move(scene, 1, [CrossGroupBlock(n, (1 + i,)) for i, n in enumerate(names)], is_load=False)
    move(scene, 2, [CrossGroupBlock(n, (11 + i,)) for i, n in enumerate(names)], is_load=True)
    assert torch.equal(on_gpu[0][11:15], saved)


def move(scene, transfer_id, cross_blocks, *, is_load):
    scheduler, worker = scene.scheduler, scene.worker
    (scheduler.start_load if is_load else scheduler.start_save)(transfer_id, cross_blocks)
    worker.begin_step(scheduler.plan_step())
    torch.cuda.synchronize()
    assert worker.report().done == [transfer_id]
    scheduler.finish(transfer_id, has_failed=False)


def test_after_the_end_no_memory_is_held():
    scene = make_scene()
    scene.save(chain("prompt", 2))
    pool = scene.worker.pool
    assert pool.num_bytes
    scene.shutdown()
    assert pool.num_bytes == 0


def test_a_slot_is_sound_again_when_its_new_content_is_there():
    scene = make_scene()
    (name,) = chain("prompt", 1)
    scene.save([name])
    index, pool = scene.scheduler.index, scene.worker.pool
    slot = index.find(name).slot
    index.forget([index.find(name)])
    scene.start_save([name])
    scene.worker.begin_step(scene.scheduler.plan_step())
    assert not pool.is_intact(slot, name)
    scene.worker.report()
    assert pool.is_intact(slot, name)


def test_steps_without_a_report_are_reported_together():
    scene = make_scene()
    for name in ("first", "second"):
        scene.start_save(chain(name, 1))
        scene.worker.begin_step(scene.scheduler.plan_step())
    assert scene.worker.report().done == [1, 2]
    assert scene.worker.report().done == []


def test_a_step_moves_at_least_one_block():
    options = {"max_bytes": str(8 * BLOCK_BYTES), "step_bytes": "1"}
    scene = StoreScene(HostMemoryScheduler, HostMemory, options, one_group_plan())
    scene.start_save(chain("prompt", 3))
    moved = []
    while scene.open:
        scene.step()
        moved.append(scene.worker.saved_bytes // BLOCK_BYTES)
    assert moved == [1, 2, 3]


def test_memory_that_stays_short_is_said_once(caplog, monkeypatch):
    monkeypatch.setattr(slot_pool, "SLAB_BYTES", 2 * BLOCK_BYTES)
    scene = make_scene(num_cross_blocks=6)
    scene.save(chain("first", 2))
    monkeypatch.setattr(scene.worker.pool, "cross_group_block_bytes", 2**60)  # no machine has that
    scene.start_save(chain("second", 2))
    scene.finish_transfers()
    scene.start_save(chain("third", 2))
    scene.finish_transfers()
    assert scene.failed == [2, 3]
    assert sum("could not be allocated" in r.message for r in caplog.records) == 1
