"""A store in a whole engine: completions are the same with it and without."""

import itertools
import logging

import pytest

from quire import LLM, SamplingParams
from quire.messages import TransferReport
from quire_kv_stores.host_memory import HostMemoryScheduler
from quire_kv_stores.host_memory_worker import HostMemory

STORY = "Once upon a time there was a fox who lived near a river and liked to count the stars. " * 3
PROMPTS = [f"{number} {STORY}" for number in range(6)]  # 11 blocks each; the pool has 23
GREEDY = SamplingParams(max_tokens=12, temperature=0)
SIZES = {"block_size": 16, "num_kv_blocks": 24, "max_num_seqs": 4, "max_model_len": 300}

pytestmark = pytest.mark.timeout(180)  # the first engine may compile its kernels


def completions(**settings):
    """Ask everything twice, one after the other, so that the pool has forgotten the first time."""
    llm = LLM("demo", **SIZES, **settings)
    try:
        asked = PROMPTS + PROMPTS
        return [list(llm.generate([prompt], GREEDY)[0].outputs[0].token_ids) for prompt in asked]
    finally:
        llm.close()


@pytest.fixture(scope="module")
def expected():
    return completions()


def with_store(*options):
    return completions(kv_store="host_memory", kv_store_options=options)


def loads(caplog, end):
    return [r.message for r in caplog.records if ": load " in r.message and r.message.endswith(end)]


def test_blocks_evicted_from_the_pool_are_loaded_and_completions_are_the_same(expected, caplog):
    caplog.set_level(logging.DEBUG, "quire_kv_stores")
    assert with_store("max_bytes=64MiB") == expected
    assert len(loads(caplog, "done")) == len(PROMPTS)
    assert not loads(caplog, "failed")


def test_closing_an_engine_shuts_down_both_sides_of_its_store(monkeypatch):
    closed = []

    def noting(shutdown):
        def noted(self):
            closed.append(type(self))
            shutdown(self)

        return noted

    for side in (HostMemory, HostMemoryScheduler):
        monkeypatch.setattr(side, "shutdown", noting(side.shutdown))
    LLM("demo", **SIZES, kv_store="host_memory").close()
    assert set(closed) == {HostMemory, HostMemoryScheduler}


@pytest.mark.parametrize("options", [("max_bytes=96KiB",), ("step_bytes=1",)])
def test_a_store_that_is_full_or_slow_changes_no_completion(expected, options):
    assert with_store(*options) == expected


def test_damaged_blocks_are_computed_again(expected, caplog, monkeypatch):
    caplog.set_level(logging.DEBUG, "quire_kv_stores")
    begin_step = HostMemory.begin_step

    def damage_all(self, message):
        for slot in range(self.pool.num_bytes // self.cross_group_block_bytes):
            self.pool.slot(slot)[5] ^= 1
        begin_step(self, message)

    monkeypatch.setattr(HostMemory, "begin_step", damage_all)
    assert with_store("max_bytes=2MiB") == expected
    assert len(loads(caplog, "failed")) >= 1


def test_the_engine_goes_on_without_a_side_that_fails(expected, caplog, monkeypatch):
    begin_step, count = HostMemory.begin_step, itertools.count()

    def die(self, message):
        if next(count) == 40:
            raise RuntimeError("the machine room is flooded")
        begin_step(self, message)

    monkeypatch.setattr(HostMemory, "begin_step", die)
    assert with_store() == expected
    (record,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert "host_memory" in record.message
    assert "switched off" in record.message


def test_reports_that_come_late_are_waited_for(expected, monkeypatch):
    report, count = HostMemory.report, itertools.count()

    def late(self):
        return report(self) if next(count) % 7 == 0 else TransferReport()

    monkeypatch.setattr(HostMemory, "report", late)
    assert with_store() == expected
