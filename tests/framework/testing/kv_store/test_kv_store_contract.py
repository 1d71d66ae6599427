"""KV-store conformance kit: every check rejects a broken store; the store of the docs passes."""

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from kit_checks import Check, checks, rejecting
from processes import path_with

from quire.errors import SettingsError
from quire.interfaces.kv_transfer import KVLookup, block_pieces, cross_group_block_bytes
from quire.messages import TransferReport
from quire.testing.kv_store import kv_store_contract as kv_store
from quire.testing.kv_store import kv_store_scene
from quire.testing.kv_store.kv_store_contract import AMPLE_BLOCKS, KVStoreContract
from quire.testing.kv_store.kv_store_scene import (
    NUM_BLOCKS,
    POISON,
    StoreScene,
    chain,
    content,
    one_group_plan,
    three_groups_plan,
)
from quire_kv_stores.host_memory import HostMemoryScheduler
from quire_kv_stores.host_memory_worker import HostMemory
from quire_kv_stores.orders import StepOrders, decode, encode

PAGE = Path(__file__).parents[4] / "docs" / "plugins" / "kv_stores.md"
SNIPPET = re.compile(r"^```python\n# (\S+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class ForgetsToCheck(HostMemory):
    """Loads the content of a slot without a check."""

    def attach(self, tensors):
        super().attach(tensors)
        self.pool.is_intact = lambda index, block_hash: True


class KeepsTheCache(HostMemory):
    def attach(self, tensors):
        super().attach(tensors)
        self.tensors = tensors


class SavesFirst(ForgetsToCheck):
    def begin_step(self, message):
        orders = decode(message)
        super().begin_step(encode(StepOrders(saves=orders.saves)))
        super().begin_step(encode(StepOrders(orders.loads, [], orders.lost)))


class WritesBesideTheBlock(KeepsTheCache):
    def begin_step(self, message):
        super().begin_step(message)
        if message:
            free = (self.tensors[0] == POISON).all(1).nonzero().flatten()
            self.tensors[0][free[-1], 3] = 1


class WritesTheNullBlock(KeepsTheCache):
    def begin_step(self, message):
        super().begin_step(message)
        if any(0 in move.block_ids for order in decode(message).loads for move in order.moves):
            self.tensors[0][0, 3] = 1


class WritesWhatItSaves(KeepsTheCache):
    late = TransferReport()

    def begin_step(self, message):
        super().begin_step(message)
        for order in decode(message).saves:
            self.tensors[0][order.moves[0].block_ids[0]] += 1

    def report(self):
        report, self.late = self.late, super().report()
        return report


class WritesAfterTheEnd(KeepsTheCache):
    def shutdown(self):
        if self.pool is None:
            self.tensors[0][3] += 1
        super().shutdown()


class LoadsTheNextBlock(HostMemory):
    """Mixes up slots, without a check of their content."""

    def attach(self, tensors):
        super().attach(tensors)
        slot, self.pool.is_intact = self.pool.slot, lambda index, block_hash: True
        self.pool.slot = lambda index: slot(index // 2)


class ReportsTwice(HostMemory):
    def report(self):
        done = super().report().done
        return TransferReport(done=done + done)


class NeverReports(HostMemory):
    def report(self):
        return TransferReport()


class Reports(HostMemory):
    """Reports a transfer as failed if its subclass says so."""

    blamed = frozenset()

    def begin_step(self, message):
        super().begin_step(message)
        orders = decode(message)
        all_of_them = [(o, True) for o in orders.loads] + [(o, False) for o in orders.saves]
        self.blamed |= {o.transfer_id for o, is_load in all_of_them if self.fails(o, is_load)}

    def report(self):
        report = super().report()
        failed = [i for i in report.done if i in self.blamed]
        done = [i for i in report.done if i not in self.blamed]
        return TransferReport(done=done, failed=report.failed + failed)


class FailsLoads(Reports):
    def fails(self, order, is_load):
        return is_load


class FailsShortLoads(Reports):
    def fails(self, order, is_load):
        return is_load and len(order.moves) < 3


class FailsLongLoads(Reports):
    def fails(self, order, is_load):
        return is_load and len(order.moves) > 6


class FailsPartialLoads(Reports):
    def fails(self, order, is_load):
        return is_load and any(0 in move.block_ids for move in order.moves)


class FailsTheSecondLoad(Reports):
    num_loads = 0

    def fails(self, order, is_load):
        self.num_loads += is_load
        return is_load and self.num_loads > 1


class FailsTheThirdSave(Reports):
    num_saves = 0

    def fails(self, order, is_load):
        self.num_saves += not is_load
        return not is_load and self.num_saves == 3


class NeverLoadsAgain(Reports):
    """Fails each load of a block whose load failed once."""

    bad = frozenset()

    def fails(self, order, is_load):
        names = {move.block_hash for move in order.moves}
        if any(not self.pool.is_intact(m.slot, m.block_hash) for m in order.moves) and is_load:
            self.bad |= names
        return is_load and bool(names & self.bad)


class SavesTwo(HostMemoryScheduler):
    def start_save(self, transfer_id, cross_blocks):
        return super().start_save(transfer_id, cross_blocks[:2])


class FindsTwo(HostMemoryScheduler):
    def lookup(self, request_id, block_hashes):
        return KVLookup(min(2, super().lookup(request_id, block_hashes).num_blocks))


class FindsNothing(HostMemoryScheduler):
    def lookup(self, request_id, block_hashes):
        return KVLookup()


class FindsAll(HostMemoryScheduler):
    def lookup(self, request_id, block_hashes):
        return KVLookup(len(block_hashes))


class FindsMoreThanAll(HostMemoryScheduler):
    def lookup(self, request_id, block_hashes):
        return KVLookup(len(block_hashes) + 1)


class IsNeverSure(HostMemoryScheduler):
    def lookup(self, request_id, block_hashes):
        return KVLookup(is_pending=True)


class CountsLoosely(HostMemoryScheduler):
    def start_save(self, transfer_id, cross_blocks):
        return super().start_save(transfer_id, cross_blocks) + len(cross_blocks)


class ReturnsABytearray(HostMemoryScheduler):
    def plan_step(self):
        return bytearray(super().plan_step())


class SendsAMessageFirst(HostMemoryScheduler):
    has_spoken = False

    def plan_step(self):
        is_first, self.has_spoken = not self.has_spoken, True
        return encode(StepOrders(lost=[99])) if is_first else super().plan_step()


class RepeatsItself(HostMemoryScheduler):
    """Repeats its last message in an empty step."""

    last = b""

    def plan_step(self):
        self.last = super().plan_step() or self.last
        return self.last


class OffersTooEarly(HostMemoryScheduler):
    def lookup(self, request_id, block_hashes):
        known = [block_hash in self.index for block_hash in block_hashes]
        return KVLookup([*known, False].index(False))


class OverlooksGaps(HostMemoryScheduler):
    def lookup(self, request_id, block_hashes):
        return KVLookup(sum(self.index.find(name) is not None for name in block_hashes))


class FindsTheLongestRun(HostMemoryScheduler):
    def lookup(self, request_id, block_hashes):
        starts = range(len(block_hashes) + 1)
        runs = [super(FindsTheLongestRun, self).lookup("", block_hashes[s:]) for s in starts]
        return max(runs, key=lambda found: found.num_blocks)


class SkipsWhatIsMissingFirst(HostMemoryScheduler):
    def lookup(self, request_id, block_hashes):
        if block_hashes and not self.index.find(block_hashes[0]):
            block_hashes = block_hashes[1:]
        return super().lookup(request_id, block_hashes)


class DropsWhatLiesBehindAGap(HostMemoryScheduler):
    def lookup(self, request_id, block_hashes):
        found = super().lookup(request_id, block_hashes)
        behind = map(self.index.find, block_hashes[found.num_blocks + 1 :])
        self.index.forget([cross_block for cross_block in behind if cross_block])
        return found


class WritesAgain(HostMemoryScheduler):
    def start_save(self, transfer_id, cross_blocks):
        self.forget(cross_blocks)
        return super().start_save(transfer_id, cross_blocks)

    def forget(self, cross_blocks):
        self.index.forget(
            [c for c in map(self.index.find, [c.block_hash for c in cross_blocks]) if c]
        )


class WritesAgainWhatIsWhole(WritesAgain):
    def forget(self, cross_blocks):
        if all(map(self.index.find, [cross_block.block_hash for cross_block in cross_blocks])):
            super().forget(cross_blocks)


class DropsWhatIsKnown(WritesAgain):
    def start_save(self, transfer_id, cross_blocks):
        num_written = HostMemoryScheduler.start_save(self, transfer_id, cross_blocks)
        if not num_written:
            self.forget(cross_blocks)
        return num_written


class SavesHoles(HostMemoryScheduler):
    def start_save(self, transfer_id, cross_blocks):
        whole = [type(c)(c.block_hash, tuple(b or 1 for b in c.block_ids)) for c in cross_blocks]
        return super().start_save(transfer_id, whole)


class OffersHoles(HostMemoryScheduler):
    def start_save(self, transfer_id, cross_blocks):
        holes = [c for c in cross_blocks if not all(c.block_ids) and c.block_hash not in self.index]
        self.index.end_writing([self.index.claim(cross_block.block_hash) for cross_block in holes])
        return super().start_save(transfer_id, cross_blocks)


class RemembersHoles(HostMemoryScheduler):
    """Never stores a block that was incomplete once."""

    holes = frozenset()

    def start_save(self, transfer_id, cross_blocks):
        self.holes |= {c.block_hash for c in cross_blocks if not all(c.block_ids)}
        whole = [
            cross_block for cross_block in cross_blocks if cross_block.block_hash not in self.holes
        ]
        return super().start_save(transfer_id, whole)


class ForgetsWithTheRequest(HostMemoryScheduler):
    def forget_request(self, request_id):
        self.index.forget_all()


class IsGreedy(HostMemoryScheduler):
    def __init__(self, options, plan):
        super().__init__({**options, "max_bytes": "1MiB"}, plan)


class IsSecretlyGreedy(IsGreedy):
    num_accepted = 0

    def start_save(self, transfer_id, cross_blocks):
        if self.num_accepted == 4:
            return 0
        num_accepted = min(1, super().start_save(transfer_id, cross_blocks))
        self.num_accepted += num_accepted
        return num_accepted


class HasRoomForIt(HostMemory):
    def __init__(self, options, plan):
        super().__init__({**options, "max_bytes": "1MiB"}, plan)


class OffersWhatWasThere(HostMemoryScheduler):
    """Offers every block that was ever stored."""

    def lookup(self, request_id, block_hashes):
        found = super().lookup(request_id, block_hashes).num_blocks
        while found < len(block_hashes) and block_hashes[found] in self.names:
            found += 1
        return KVLookup(found)

    def start_save(self, transfer_id, cross_blocks):
        num_written = super().start_save(transfer_id, cross_blocks)
        self.names |= {cross_block.block_hash for cross_block in cross_blocks[:num_written]}
        return num_written

    def __init__(self, options, plan):
        super().__init__(options, plan)
        self.names = set()


class LoadsWhatTookItsPlace(HostMemoryScheduler):
    """Keeps slots from the lookup to the load."""

    def lookup(self, request_id, block_hashes):
        found = super().lookup(request_id, block_hashes)
        self.seen = [self.index.find(name) for name in block_hashes[: found.num_blocks]]
        return found

    def start_load(self, transfer_id, cross_blocks):
        find = {cross_block.block_hash: cross_block for cross_block in self.seen}
        self.index.find, original = find.get, self.index.find
        super().start_load(transfer_id, cross_blocks)
        self.index.find = original


class Trusts(HostMemoryScheduler):
    """Offers blocks again whose load failed."""

    def finish(self, transfer_id, *, has_failed):
        super().finish(transfer_id, has_failed=has_failed and transfer_id in self._saves)


class ForgetsAllOnFailure(HostMemoryScheduler):
    def finish(self, transfer_id, *, has_failed):
        super().finish(transfer_id, has_failed=has_failed)
        if has_failed:
            self.index.forget_all()


class IgnoresFailedSaves(HostMemoryScheduler):
    def finish(self, transfer_id, *, has_failed):
        super().finish(transfer_id, has_failed=has_failed and transfer_id in self._loads)


class NeverSavesAgain(HostMemoryScheduler):
    """Never stores a block again whose load failed once."""

    bad = frozenset()

    def finish(self, transfer_id, *, has_failed):
        load = self._loads.get(transfer_id)
        if has_failed and load:
            self.bad |= {stored.block_hash for stored in load}
        super().finish(transfer_id, has_failed=has_failed)

    def start_save(self, transfer_id, cross_blocks):
        good = [
            cross_block for cross_block in cross_blocks if cross_block.block_hash not in self.bad
        ]
        return super().start_save(transfer_id, good)


class Remembers(HostMemoryScheduler):
    def reset(self):
        pass


class RemembersWhatIsRead(HostMemoryScheduler):
    """Forgets stored blocks at a reset, but not those in open transfers."""

    is_hidden = False

    def reset(self):
        self.is_hidden = True

    def lookup(self, request_id, block_hashes):
        return KVLookup() if self.is_hidden else super().lookup(request_id, block_hashes)

    def finish(self, transfer_id, *, has_failed):
        super().finish(transfer_id, has_failed=has_failed)
        self.is_hidden = False


class RemembersWhatIsSaved(HostMemoryScheduler):
    def reset(self):
        moving = {
            cross_block.block_hash
            for save in self._saves.values()
            for cross_block in save.cross_blocks
        }
        cross_blocks = self.index._cross_blocks.values()
        self.index.forget(
            [cross_block for cross_block in cross_blocks if cross_block.block_hash not in moving]
        )


class RemembersNames(HostMemoryScheduler):
    """Offers nothing after a reset, and does not store the old blocks again."""

    gone = frozenset()

    def reset(self):
        self.gone = {*self.index._cross_blocks}
        super().reset()

    def start_save(self, transfer_id, cross_blocks):
        new = [
            cross_block for cross_block in cross_blocks if cross_block.block_hash not in self.gone
        ]
        return super().start_save(transfer_id, new)


class LoadsNothingAfterAReset(HostMemoryScheduler):
    is_over = False

    def reset(self):
        super().reset()
        self.is_over = True

    def start_load(self, transfer_id, cross_blocks):
        if self.is_over:
            self.index.forget(
                [self.index.find(cross_block.block_hash) for cross_block in cross_blocks]
            )
        super().start_load(transfer_id, cross_blocks)


class TakesEverything(HostMemoryScheduler):
    def __init__(self, options, plan):
        super().__init__({"max_bytes": options["max_bytes"]}, plan)


class NeedsThePlan(HostMemoryScheduler):
    @classmethod
    def check_options(cls, options, plan=None):
        super().check_options(options)
        if plan.num_blocks < 2:
            raise SettingsError("no")


class RefusesWhatItTakes(HostMemoryScheduler):
    @classmethod
    def check_options(cls, options, plan=None):
        if plan is not None:
            raise SettingsError("no")


class BesideTorch(HostMemoryScheduler):
    pass


BesideTorch.__module__ = "module_with_torch"


class FromNowhere(HostMemoryScheduler):
    pass


FromNowhere.__module__ = "module_that_is_not_there"


class NoFault(HostMemory):
    """Right store, for which the kit's `damage` does nothing."""


SAVED = "test_what_is_saved_comes_back_byte_for_byte"
EMPTY = "test_nothing_is_found_in_an_empty_store"
MESSAGES = "test_without_news_the_message_is_empty"
GAPS = "test_a_lookup_counts_up_to_the_first_gap"
AGAIN = "test_what_is_stored_already_is_not_written_again"
EARLY = "test_nothing_is_offered_before_it_is_written"
HOLES = "test_an_incomplete_block_is_not_stored"
UNNEEDED = "test_a_block_that_is_not_needed_is_not_loaded"
BESIDE = "test_transfers_run_beside_each_other"
WITHIN = "test_it_stays_within_max_bytes"
MORE = "test_more_than_fits_at_once_is_no_error"
EVICTED = "test_blocks_evicted_after_a_lookup_are_loaded_or_the_load_fails"
FAILED_LOAD = "test_what_failed_to_load_is_not_offered_again"
FAILED_SAVE = "test_what_failed_to_be_saved_is_not_offered"
DAMAGED = "test_damaged_bytes_are_a_failed_load"
RESET = "test_a_reset_forgets_all_content"
WALK = "test_nothing_goes_wrong_on_a_random_walk"
OPTION = "test_an_unknown_option_is_refused_by_name"
SHUTDOWN = "test_shutdown_may_be_called_twice"
NO_TORCH = "test_the_scheduler_side_imports_no_torch"

# Broken side, test of the kit that rejects it, and function and number of the check.
FAULTS = [
    (SavesTwo, SAVED, 1),
    (FindsTwo, SAVED, 2),
    (FailsLoads, SAVED, 3),
    (FailsShortLoads, SAVED, 4),
    (FindsAll, EMPTY, 1),
    (SendsAMessageFirst, MESSAGES, 1),
    (RepeatsItself, MESSAGES, 2),
    (OverlooksGaps, GAPS, 1),
    (FindsTheLongestRun, GAPS, 2),
    (SkipsWhatIsMissingFirst, GAPS, 3),
    (DropsWhatLiesBehindAGap, GAPS, 4),
    (WritesAgain, AGAIN, 1),
    (WritesAgainWhatIsWhole, AGAIN, 2),
    (DropsWhatIsKnown, AGAIN, 3),
    (FailsLongLoads, AGAIN, 4),
    (OffersTooEarly, EARLY, 1),
    (FindsNothing, EARLY, 2),
    (SavesHoles, HOLES, 1),
    (OffersHoles, HOLES, 2),
    (RemembersHoles, HOLES, 3),
    (FailsPartialLoads, UNNEEDED, 1),
    (FailsTheSecondLoad, BESIDE, 1),
    (ForgetsWithTheRequest, BESIDE, 2),
    ((IsGreedy, HasRoomForIt), WITHIN, 1),
    (FailsTheThirdSave, WITHIN, 2),
    ((IsGreedy, HasRoomForIt), MORE, 1),
    ((IsSecretlyGreedy, HasRoomForIt), MORE, 2),
    (Trusts, FAILED_LOAD, 1),
    (ForgetsAllOnFailure, FAILED_LOAD, 2),
    (IgnoresFailedSaves, FAILED_SAVE, 1),
    (NoFault, DAMAGED, 1),
    (Trusts, DAMAGED, 2),
    (NeverSavesAgain, DAMAGED, 3),
    (NeverLoadsAgain, DAMAGED, 4),
    (Remembers, RESET, 1),
    (RemembersWhatIsRead, RESET, 2),
    (RemembersWhatIsSaved, RESET, 3),
    (RemembersNames, RESET, 4),
    (LoadsNothingAfterAReset, RESET, 5),
    ((IsGreedy, HasRoomForIt), WALK, 1),
    (FailsTheThirdSave, WALK, 2),
    (TakesEverything, OPTION, 1),
    (WritesAfterTheEnd, SHUTDOWN, 1),
    (BesideTorch, NO_TORCH, 1),
    (OffersWhatWasThere, WITHIN, "KVStoreContract._num_found", 1),
    (FindsMoreThanAll, SAVED, "StoreScene.lookup", 1),
    (IsNeverSure, SAVED, "StoreScene.lookup", 2),
    (CountsLoosely, SAVED, "StoreScene.start_save", 1),
    (ReturnsABytearray, SAVED, "StoreScene.step", 1),
    (ReportsTwice, BESIDE, "StoreScene.step", 2),
    (WritesBesideTheBlock, SAVED, "StoreScene.step", 3),
    (WritesBesideTheBlock, SAVED, "StoreScene.check_blocks", 1),
    (WritesTheNullBlock, UNNEEDED, "StoreScene.check_blocks", 1),
    (WritesWhatItSaves, SAVED, "StoreScene.check_blocks", 2),
    (NeverReports, SAVED, "StoreScene.finish_transfers", 1),
    (LoadsTheNextBlock, SAVED, "StoreScene.end", 1),
    (ForgetsToCheck, DAMAGED, "StoreScene.end", 1),
    ((LoadsWhatTookItsPlace, SavesFirst), EVICTED, "StoreScene.end", 1),
    (LoadsTheNextBlock, SAVED, "StoreScene._check_cross_block", 1),
]


def check_of(name, *where):
    """Return the check of a row of FAULTS; by default one of its test `name`."""
    return Check(*where) if len(where) == 2 else Check(f"KVStoreContract.{name}", *where)


class Kit(KVStoreContract):
    def damage(self, scene, block_hash):
        if not isinstance(scene.worker, NoFault):
            scene.worker.pool.slot(scene.scheduler.index.find(block_hash).slot)[7] ^= 1


Kit.__test__ = False


def sides(broken):
    """Return the two sides of a store, one or both of them broken."""
    if isinstance(broken, tuple):
        return broken
    is_scheduler = issubclass(broken, HostMemoryScheduler)
    return (broken, HostMemory) if is_scheduler else (HostMemoryScheduler, broken)


def run(name, broken, folder):
    """Run one test of the kit."""
    scheduler_class, worker_class = sides(broken)
    plan, kit = three_groups_plan(), Kit()
    kit.scheduler_class, kit.worker_class = scheduler_class, worker_class

    def build(num_cross_blocks):
        options = {"max_bytes": str(num_cross_blocks * cross_group_block_bytes(plan))}
        return StoreScene(scheduler_class, worker_class, options, plan)

    given = {"build": build, "plan": plan, "tmp_path": folder, "seed": 0}
    names = getattr(KVStoreContract, name).__code__
    wanted = names.co_varnames[1 : names.co_argcount]
    if "scene" in wanted:
        given["scene"] = build(AMPLE_BLOCKS)
    getattr(kit, name)(**{each: given[each] for each in wanted})


def test_an_import_error_of_the_scheduler_side_is_in_the_message(tmp_path):
    with pytest.raises(AssertionError, match="No module named 'module_that_is_not_there'"):
        run(NO_TORCH, FromNowhere, tmp_path)


class AnswersLater(HostMemoryScheduler):
    """Returns the result of each lookup at the second call."""

    num_calls = 0

    def lookup(self, request_id, block_hashes):
        self.num_calls += 1
        if self.num_calls % 2:
            return KVLookup(is_pending=True)
        return super().lookup(request_id, block_hashes)


class ReportsLater(HostMemory):
    """Reports each transfer one step late."""

    late = TransferReport()

    def report(self):
        report, self.late = self.late, super().report()
        return report


class SchedulerEndsOnce(HostMemoryScheduler):
    is_over = False

    def shutdown(self):
        if self.is_over:
            raise RuntimeError("it is over already")
        self.is_over = True


class WorkerEndsOnce(HostMemory):
    def shutdown(self):
        self._copies.wait()
        super().shutdown()


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(kv_store_scene, "MAX_WAIT_S", 0.1)


@pytest.fixture
def module_with_torch(tmp_path, monkeypatch):
    """Provide a module that imports a torch stub."""
    (tmp_path / "torch.py").touch()
    (tmp_path / "module_with_torch.py").write_text("import torch")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", [n for n in vars(KVStoreContract) if n.startswith("test_")])
def test_a_right_store_passes(name, tmp_path):
    if name != NO_TORCH:  # which the shipped store's own tests run
        run(name, HostMemory, tmp_path)


@pytest.mark.parametrize("name", [SAVED, GAPS, BESIDE, EVICTED, RESET])
def test_a_right_store_may_take_its_time(name, tmp_path):
    run(name, (AnswersLater, ReportsLater), tmp_path)


@pytest.mark.parametrize("broken", [SchedulerEndsOnce, WorkerEndsOnce])
def test_a_side_that_cannot_shut_down_twice_is_rejected(broken, tmp_path):
    with pytest.raises((RuntimeError, AttributeError)):
        run(SHUTDOWN, broken, tmp_path)


@pytest.mark.parametrize("build", [one_group_plan, three_groups_plan])
def test_the_content_of_a_scene_follows_from_the_hash(build):
    plan = build()
    scene = StoreScene(HostMemoryScheduler, HostMemory, {}, plan)
    one, other, *_ = chain("prompt", 3)
    assert len(set(chain("prompt", 3) + chain("another", 3))) == 6
    held = [content(name, cross_group_block_bytes(plan)).tolist() for name in (one, other)]
    assert held[0] != held[1]
    scene.start_save([one])
    (cross_block,) = scene.open[1].cross_blocks
    stored = [
        scene.tensors[piece.tensor][cross_block.block_ids[piece.group]].tolist()
        for piece in block_pieces(plan)
    ]
    assert [byte for piece in stored for byte in piece] == held[0]
    assert scene.num_free_blocks == NUM_BLOCKS - 1 - len(plan.groups)
    scene.finish_transfers()
    assert scene.num_free_blocks == NUM_BLOCKS - 1


@pytest.mark.parametrize(("broken", "name", "where"), [(b, n, w) for b, n, *w in FAULTS])
def test_a_broken_store_is_rejected_by_the_check_that_is_meant_for_it(
    broken, name, where, module_with_torch
):
    found = rejecting(partial(run, name, broken, module_with_torch), kv_store, kv_store_scene)
    assert check_of(name, *where) in found


@pytest.mark.parametrize("broken", [NeedsThePlan, RefusesWhatItTakes])
def test_right_options_that_are_refused_before_the_start_are_reported(broken, tmp_path):
    with pytest.raises((AttributeError, SettingsError)):
        run(OPTION, broken, tmp_path)


def test_every_check_of_the_kit_rejects_a_broken_store():
    proved = {check_of(name, *where) for _, name, *where in FAULTS}
    assert checks(kv_store, kv_store_scene) == proved


def test_a_rejection_says_what_is_wrong(tmp_path):
    with pytest.raises(AssertionError, match="must write the 2 new blocks only, but wrote 8"):
        run(AGAIN, WritesAgain, tmp_path)


def test_the_documented_store_passes_the_kit(tmp_path):
    snippets = SNIPPET.findall(PAGE.read_text(encoding="utf-8"))
    for path, code in snippets:
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(code, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": path_with(tmp_path), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert int(re.search(r"(\d+) passed", ran.stdout)[1]) > 35
    code = "import sys, acme_store.plugin; print('torch' in sys.modules)"
    light = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert light.stdout.strip() == "False", light.stderr
