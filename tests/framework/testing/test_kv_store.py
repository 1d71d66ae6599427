"""The kit finds stores that are wrong, and the store of the docs passes it as it stands there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from quire.interfaces.kv_transfer import KVLookup, column_bytes
from quire.messages import TransferReport
from quire.testing.kv_store import ROOM, KVStoreContract
from quire.testing.kv_store_scene import StoreScene, three_groups_plan
from quire_kv_stores.host_memory import HostMemoryScheduler
from quire_kv_stores.host_memory_worker import HostMemory

PAGE = Path(__file__).parents[3] / "docs" / "plugins" / "kv_stores.md"
SNIPPET = re.compile(r"^```python\n# (\S+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class ForgetsToCheck(HostMemory):
    """Takes whatever lies in a slot."""

    def attach(self, tensors):
        super().attach(tensors)
        self.pool.is_sound = lambda index, block_hash: True


class WritesBesideTheBlock(HostMemory):
    def begin_step(self, message):
        super().begin_step(message)
        if message:
            self.tensors[0][0, 3] = 1

    def attach(self, tensors):
        super().attach(tensors)
        self.tensors = tensors


class BringsTheNextColumn(HostMemory):
    """Mixes slots up, and seals what it wrote there."""

    def attach(self, tensors):
        super().attach(tensors)
        slot, self.pool.is_sound = self.pool.slot, lambda index, block_hash: True
        self.pool.slot = lambda index: slot(index // 2)


class ReportsTwice(HostMemory):
    def report(self):
        done = super().report().done
        return TransferReport(done=done + done)


class NeverReports(HostMemory):
    def report(self):
        return TransferReport()


class OffersTooEarly(HostMemoryScheduler):
    def lookup(self, request_id, block_hashes):
        known = [block_hash in self.index for block_hash in block_hashes]
        return KVLookup([*known, False].index(False))


class OverlooksGaps(HostMemoryScheduler):
    def lookup(self, request_id, block_hashes):
        return KVLookup(sum(self.index.find(name) is not None for name in block_hashes))


class WritesAgain(HostMemoryScheduler):
    def start_save(self, transfer_id, columns):
        self.index.forget([c for c in map(self.index.find, [c.block_hash for c in columns]) if c])
        return super().start_save(transfer_id, columns)


class SavesHoles(HostMemoryScheduler):
    def start_save(self, transfer_id, columns):
        whole = [type(c)(c.block_hash, tuple(b or 1 for b in c.block_ids)) for c in columns]
        return super().start_save(transfer_id, whole)


class IsGreedy(HostMemoryScheduler):
    def __init__(self, options, plan):
        super().__init__({**options, "max_bytes": "1MiB"}, plan)


class HasRoomForIt(HostMemory):
    def __init__(self, options, plan):
        super().__init__({**options, "max_bytes": "1MiB"}, plan)


class Trusts(HostMemoryScheduler):
    """Offers again what could not be loaded."""

    def finish(self, transfer_id, *, has_failed):
        super().finish(transfer_id, has_failed=has_failed and transfer_id in self._saves)


class Remembers(HostMemoryScheduler):
    def reset(self):
        pass


class TakesEverything(HostMemoryScheduler):
    def __init__(self, options, plan):
        super().__init__({"max_bytes": options["max_bytes"]}, plan)


FAULTS = [
    (HostMemoryScheduler, ForgetsToCheck, "test_damaged_bytes_are_a_failed_load"),
    (HostMemoryScheduler, WritesBesideTheBlock, "test_what_is_saved_comes_back_byte_for_byte"),
    (HostMemoryScheduler, BringsTheNextColumn, "test_what_is_saved_comes_back_byte_for_byte"),
    (HostMemoryScheduler, ReportsTwice, "test_transfers_run_beside_each_other"),
    (HostMemoryScheduler, NeverReports, "test_what_is_saved_comes_back_byte_for_byte"),
    (OffersTooEarly, HostMemory, "test_nothing_is_offered_before_it_is_written"),
    (OverlooksGaps, HostMemory, "test_a_lookup_counts_up_to_the_first_gap"),
    (WritesAgain, HostMemory, "test_what_is_stored_already_is_not_written_again"),
    (SavesHoles, HostMemory, "test_a_column_that_is_not_whole_is_not_stored"),
    (IsGreedy, HasRoomForIt, "test_it_keeps_within_its_bytes"),
    (Trusts, HostMemory, "test_what_failed_to_load_is_not_offered_again"),
    (Remembers, HostMemory, "test_a_reset_forgets_all_content"),
]


class Kit(KVStoreContract):
    def damage(self, scene, block_hash):
        scene.worker.pool.slot(scene.scheduler.index.find(block_hash).slot)[7] ^= 1


Kit.__test__ = False


def scene_of(scheduler_class, worker_class, num_columns=ROOM):
    plan = three_groups_plan()
    options = {"max_bytes": str(num_columns * column_bytes(plan))}
    return StoreScene(scheduler_class, worker_class, options, plan)


def run(name, scheduler_class, worker_class):
    """Run one test of the kit by hand; those that limit the bytes build their own scene."""
    test = getattr(Kit(), name)
    if name == "test_it_keeps_within_its_bytes":
        test(lambda num_columns: scene_of(scheduler_class, worker_class, num_columns))
    else:
        test(scene_of(scheduler_class, worker_class))


@pytest.mark.parametrize(
    ("scheduler_class", "worker_class", "name"),
    FAULTS,
    ids=[a.__name__ if a is not HostMemoryScheduler else b.__name__ for a, b, _ in FAULTS],
)
def test_a_wrong_store_fails_the_test_that_looks_for_it(
    monkeypatch, scheduler_class, worker_class, name
):
    monkeypatch.setattr("quire.testing.kv_store_scene.MAX_WAIT_S", 0.1)
    run(name, HostMemoryScheduler, HostMemory)
    with pytest.raises(AssertionError):
        run(name, scheduler_class, worker_class)


def test_a_store_that_ignores_options_fails_the_kit(tmp_path):
    kit = Kit()
    kit.scheduler_class = HostMemoryScheduler
    kit.test_an_unknown_option_is_refused_by_name(three_groups_plan(), tmp_path)
    kit.scheduler_class = TakesEverything
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        kit.test_an_unknown_option_is_refused_by_name(three_groups_plan(), tmp_path)


def test_the_documented_store_passes_the_kit(tmp_path):
    snippets = SNIPPET.findall(PAGE.read_text(encoding="utf-8"))
    for path, code in snippets:
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(code, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
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
