"""The host of a store's worker side: every transfer ends once, whatever the store does."""

import logging
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from grid_parts import composed_engine

from quire.compose.composition import Choice
from quire.errors import PluginLoadError, SettingsError
from quire.interfaces.attention import AttentionShape
from quire.interfaces.kv_transfer import (
    CrossGroupBlock,
    KVStoreCapabilities,
    KVStoreWorker,
    block_pieces,
)
from quire.launch.kv_memory import plan_memory
from quire.messages import PlannedTransfers, StepPlan, TransferReport
from quire.plugins.loading import load_plugins
from quire.testing.checkpoints import write_checkpoint
from quire.testing.kv_store.kv_store_scene import NUM_BLOCKS, chain, one_group_plan
from quire.testing.model.threaded_ranks import run_ranks
from quire.worker.kv_store_host import KVStoreHost, build_kv_store
from quire.worker.parts import WorkerParts
from quire.worker.worker import ModelWorker
from quire_kv_stores.host_memory_worker import HostMemory

REGISTRIES = load_plugins().registries
HOST_MEMORY = Choice("KV store", REGISTRIES.kv_stores.entry("host_memory"), "asked for")
OPTIONS = {"max_bytes": "64KiB"}


class Diary(KVStoreWorker):
    """A scripted worker side of a store, in which every call may fail."""

    def __init__(self, options=None, plan=None):
        self.messages = []
        self.reports = []
        self.num_shutdowns = 0
        self.failing = ()
        self.interrupted = None

    def attach(self, tensors):
        self.tensors = tensors

    def begin_step(self, message):
        self._do("begin_step")
        self.messages.append(message)

    def report(self):
        self._do("report")
        return self.reports.pop(0) if self.reports else TransferReport()

    def shutdown(self):
        self.num_shutdowns += 1
        self._do("shutdown")

    def _do(self, call):
        if call == self.interrupted:
            raise KeyboardInterrupt
        if call in self.failing:
            raise RuntimeError(f"no {call} today")


class FailsToAttach(Diary):
    def attach(self, tensors):
        raise KeyError("no room")


class HeldContext(REGISTRIES.attention_backends.get("torch_sdpa")):
    """Counts the calls of `forget_context`."""

    num_forgotten = 0

    def forget_context(self):
        super().forget_context()
        self.num_forgotten += 1


@pytest.fixture
def backend():
    shape = AttentionShape(
        num_heads=2, num_kv_heads=1, head_dim=8, block_size=4, max_num_seqs=2,
        max_num_batched_tokens=8, max_blocks_per_request=4,
        dtype=torch.float32, kv_dtype="float32", device=torch.device("cpu"),
    )  # fmt: skip
    return HeldContext(shape)


@pytest.fixture
def worker_side():
    return Diary()


@pytest.fixture
def host(worker_side, backend):
    return KVStoreHost(worker_side, [backend], "KV store 'diary' of plugin acme")


def plan(message=b"", *, loads=(), saves=(), stop=False, plan_id=1, resent=(), applied=0):
    return StepPlan(
        plan_id=plan_id, requests=[], kv_transfers=message, kv_loads=list(loads),
        kv_saves=list(saves), stop_kv_store=stop, kv_resent=list(resent), kv_applied=applied,
    )  # fmt: skip


def planned(each):
    """Return what the engine sends again of a plan."""
    return PlannedTransfers(each.plan_id, each.kv_transfers, each.kv_loads, each.kv_saves)


def errors(caplog):
    return [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_messages_and_reports_pass_through(host, worker_side):
    worker_side.reports = [TransferReport(), TransferReport(done=[3], failed=[4])]
    host.begin_step(plan(b"hello", saves=[3, 4]))
    assert host.report(1) is None
    host.begin_step(plan())
    assert host.report(1) == TransferReport(done=[3], failed=[4])
    assert worker_side.messages == [b"hello", b""]


def test_backends_forget_what_they_keep_when_a_load_ends_and_not_for_a_save(
    host, worker_side, backend
):
    host.begin_step(plan(loads=[1, 2], saves=[3]))
    message = []
    for report in (
        TransferReport(),
        TransferReport(done=[3]),
        TransferReport(done=[1]),
        TransferReport(failed=[2]),
    ):
        worker_side.reports = [report]
        host.report(1)
        message.append(backend.num_forgotten)
    assert message == [0, 0, 1, 2], "a load that failed may have written, too"


def test_a_load_that_ends_beside_a_save_is_seen(host, worker_side, backend):
    host.begin_step(plan(loads=[1], saves=[2]))
    worker_side.reports = [TransferReport(done=[1, 2])]
    host.report(1)
    assert backend.num_forgotten == 1


def test_the_backends_of_all_groups_forget(worker_side, backend):
    other = HeldContext(backend.shape)
    host = KVStoreHost(worker_side, [backend, other], "store")
    host.begin_step(plan(loads=[1]))
    worker_side.reports = [TransferReport(done=[1])]
    host.report(1)
    assert (backend.num_forgotten, other.num_forgotten) == (1, 1)


@pytest.mark.parametrize("call", ["begin_step", "report"])
def test_a_worker_side_that_raises_fails_all_open_transfers_and_is_logged_once(
    host, worker_side, caplog, call
):
    host.begin_step(plan(saves=[1]))
    assert host.report(1) is None
    worker_side.failing = (call,)
    host.begin_step(plan(loads=[2]))
    assert host.report(1) == TransferReport(failed=[1, 2])
    host.begin_step(plan(b"more", saves=[3]))
    assert host.report(1) == TransferReport(failed=[3])
    assert host.report(1) is None
    (record,) = errors(caplog)
    assert "KV store 'diary' of plugin acme failed" in record.message
    assert f"no {call} today" in str(record.exc_info[1])


def test_a_worker_side_that_is_switched_off_is_shut_down_and_never_called_again(host, worker_side):
    worker_side.failing = ("begin_step", "shutdown")
    host.begin_step(plan(saves=[1]))
    worker_side.failing = ()
    host.report(1)
    host.begin_step(plan(b"more", saves=[2]))
    host.shutdown()
    assert worker_side.num_shutdowns == 1
    assert worker_side.messages == []


@pytest.mark.parametrize(
    ("report", "complaint"),
    [
        (TransferReport(done=[7]), "transfer 7 is reported but is not open"),
        (TransferReport(done=[1, 1]), "transfer 1 is reported 2 times"),
        (TransferReport(done=[1], failed=[1]), "transfer 1 is reported 2 times"),
        ({"done": [1]}, r"returned a dict"),
        (None, "returned a NoneType"),
    ],
)
def test_a_report_that_cannot_be_is_believed_in_no_part(
    host, worker_side, caplog, report, complaint
):
    worker_side.reports = [report]
    host.begin_step(plan(loads=[1, 2]))
    assert host.report(1) == TransferReport(failed=[1, 2])
    assert complaint in str(errors(caplog)[0].exc_info[1])


def test_an_end_is_reported_once(host, worker_side):
    worker_side.reports = [TransferReport(done=[1]), TransferReport(done=[1])]
    host.begin_step(plan(saves=[1, 2]))
    assert host.report(1) == TransferReport(done=[1])
    assert host.report(1) == TransferReport(failed=[2])


def test_shutdown_may_be_called_twice_and_may_fail(host, worker_side, caplog):
    worker_side.failing = ("shutdown",)
    host.shutdown()
    host.shutdown()
    assert worker_side.num_shutdowns == 1
    assert "could not be shut down" in errors(caplog)[0].message


def test_a_worker_side_that_the_engine_has_stopped_is_shut_down_and_all_open_transfers_fail(
    host, worker_side
):
    host.begin_step(plan(b"hello", loads=[1], saves=[2]))
    assert host.report(1) is None
    host.begin_step(plan(stop=True))
    assert worker_side.num_shutdowns == 1
    assert host.report(1) == TransferReport(failed=[1, 2])
    host.begin_step(plan(stop=True))
    assert host.report(1) is None
    assert (worker_side.num_shutdowns, worker_side.messages) == (1, [b"hello"])


def test_of_what_is_sent_again_only_what_was_not_received_begins(host, worker_side):
    received, lost = plan(b"1", loads=[1], plan_id=1), plan(b"2", saves=[2], plan_id=2)
    host.begin_step(received)
    host.begin_step(plan(b"3", plan_id=3, resent=[planned(received), planned(lost)]))
    assert worker_side.messages == [b"1", b"2", b"3"]
    worker_side.reports = [TransferReport(done=[1, 2])]
    assert host.report(3) == TransferReport(done=[1, 2])


def test_reports_that_may_be_lost_are_repeated_if_something_is_sent_again(host, worker_side):
    first = plan(saves=[1, 2, 3, 4], plan_id=1)
    host.begin_step(first)
    worker_side.reports = [
        TransferReport(done=[1]), TransferReport(failed=[2]), TransferReport(),
        TransferReport(done=[3]), TransferReport(done=[4]), TransferReport(),
    ]  # fmt: skip
    assert host.report(1) == TransferReport(done=[1])
    second = plan(plan_id=2)
    host.begin_step(second)
    assert host.report(2) == TransferReport(failed=[2])
    host.begin_step(plan(plan_id=3, resent=[planned(second)], applied=1))
    assert host.report(3) == TransferReport(failed=[2])
    host.begin_step(plan(plan_id=4, resent=[planned(second)], applied=1))
    assert host.report(4) == TransferReport(done=[3], failed=[2])
    host.begin_step(plan(plan_id=5, applied=4))
    assert host.report(5) == TransferReport(done=[4])
    host.begin_step(plan(plan_id=6, resent=[planned(second)], applied=5))
    assert host.report(6) is None


@pytest.mark.parametrize("call", ["begin_step", "report"])
def test_a_store_that_was_interrupted_in_a_call_is_switched_off(host, worker_side, caplog, call):
    host.begin_step(plan(saves=[1], plan_id=1))
    worker_side.interrupted = call
    step = plan(b"lost", loads=[2], plan_id=2)
    with pytest.raises(KeyboardInterrupt):
        host.begin_step(step) or host.report(2)
    host.begin_step(plan(plan_id=3, resent=[planned(step)]))
    assert host.report(3) == TransferReport(failed=[1, 2])
    num_received = int(call == "report")
    assert (worker_side.num_shutdowns, worker_side.messages[1:]) == (1, [b"lost"] * num_received)
    assert "was interrupted in the middle of a call" in errors(caplog)[0].message


def test_what_is_open_at_the_end_has_failed(host):
    host.begin_step(plan(saves=[1]))
    host.shutdown()
    assert host.report(1) == TransferReport(failed=[1])


def test_a_worker_side_is_built_from_its_reference_and_gets_the_blocks(backend):
    kv_plan = one_group_plan()
    memory = {
        name: torch.zeros(tensor.num_bytes, dtype=torch.uint8)
        for tensor in kv_plan.tensors
        for name in tensor.layer_names
    }
    host = build_kv_store(HOST_MEMORY, OPTIONS, kv_plan, memory, [backend])
    scheduler = REGISTRIES.kv_stores.get("host_memory")(OPTIONS, kv_plan)
    for piece in block_pieces(kv_plan):
        memory[f"a{piece.tensor}"].view(NUM_BLOCKS, -1)[5] = piece.tensor + 1
    block = CrossGroupBlock(chain("prompt", 1)[0], (5,))
    scheduler.start_save(1, [block])
    host.begin_step(plan(scheduler.plan_step(), saves=[1]))
    assert host.report(1) == TransferReport(done=[1])
    scheduler.finish(1, has_failed=False)
    scheduler.start_load(2, [replace(block, block_ids=(9,))])
    host.begin_step(plan(scheduler.plan_step(), loads=[2]))
    assert host.report(1) == TransferReport(done=[2])
    assert backend.num_forgotten == 1
    for tensor in (0, 1):
        rows = memory[f"a{tensor}"].view(NUM_BLOCKS, -1)
        assert set(rows[9].tolist()) == {tensor + 1}
        assert not rows[10].any()


def choice_of(reference):
    entry = replace(HOST_MEMORY.entry, capabilities=KVStoreCapabilities(worker=reference))
    return replace(HOST_MEMORY, entry=entry)


@pytest.mark.parametrize(
    ("reference", "complaint"),
    [
        ("quire_kv_stores.nowhere:Half", "could not be imported"),
        ("quire_kv_stores.host_memory:HostMemoryScheduler", "not a subclass of KVStoreWorker"),
        ("acme_store:FailsToAttach", "KeyError: 'no room'"),
    ],
)
def test_a_worker_side_that_cannot_be_built_stops_the_start(monkeypatch, reference, complaint):
    monkeypatch.setitem(sys.modules, "acme_store", SimpleNamespace(FailsToAttach=FailsToAttach))
    with pytest.raises(PluginLoadError, match=complaint):
        build_kv_store(choice_of(reference), OPTIONS, one_group_plan(), _no_memory(), [])


def test_a_wrong_option_is_a_settings_error():
    with pytest.raises(SettingsError, match="no option 'max_byte'"):
        build_kv_store(HOST_MEMORY, {"max_byte": "1"}, one_group_plan(), _no_memory(), [])


def _no_memory():
    return {f"a{i}": torch.zeros(t.num_bytes) for i, t in enumerate(one_group_plan().tensors)}


class NotesRank(HostMemory):
    """A store that notes the rank of each of its worker sides."""

    ranks: ClassVar[set[int]] = set()

    def __init__(self, options, plan):
        super().__init__(options, plan)
        self.ranks.add(plan.rank)


def test_the_store_of_each_rank_knows_its_rank(tmp_path, quire_registries):
    """By the plan of the second of several stages, whose first rank is 2."""
    write_checkpoint(tmp_path, "LlamaForCausalLM")
    options = {"tensor_parallel_size": 2, "num_kv_blocks": 20, "kv_store": "host_memory"}
    its = composed_engine(quire_registries, tmp_path, **options)
    capabilities = KVStoreCapabilities(worker=f"{__name__}:NotesRank")
    choice = its.composition.kv_store
    choice = replace(choice, entry=replace(choice.entry, capabilities=capabilities))
    composition = replace(its.composition, kv_store=choice)
    parts = WorkerParts.load(its.settings, composition, its.plugins.registries)
    (plan,) = plan_memory(its.settings, composition, its.plugins.registries, [0, 0])

    def run(group):
        worker = ModelWorker(its.settings, parts, group)
        worker.load()
        worker.allocate([replace(plan, rank=2)])
        worker.shutdown()

    run_ranks(2, run)
    assert NotesRank.ranks == {2, 3}
