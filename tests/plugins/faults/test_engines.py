"""Engines in this process with faults in the store, the workers and the steps."""

import pytest
from injected_faults import injected

from quire import SamplingParams
from quire.errors import QuireError, UnknownNameError

PROMPT = {"prompt_token_ids": list(range(5, 105))}  # several blocks, which a store is to save
GREEDY = SamplingParams(temperature=0, max_tokens=8)


def completion(llm):
    return llm.generate([PROMPT], GREEDY)[0].outputs[0].token_ids


@pytest.fixture(scope="module")
def plain():
    """The completion of an engine without faults."""
    with injected("") as llm:
        return completion(llm)


def test_without_rules_no_part_is_offered():
    with (
        pytest.raises(UnknownNameError, match="unknown KV store 'faults'"),
        injected("", kv_store="faults"),
    ):
        pass


def test_steps_that_no_rule_concerns_are_those_of_the_worker(plain):
    with injected("step.execute:raise@1000", executor="faults") as llm:
        assert completion(llm) == plain


@pytest.mark.parametrize(
    "rule",
    [
        "kv_store.lookup:raise",
        "kv_store.lookup:corrupt",
        "kv_store.start_save:raise",
        "kv_store.plan_step:raise",
        "kv_store.begin_step:raise",
        "kv_store.report:raise",
        "kv_store.report:corrupt",
        "kv_store.report:withhold",
        "kv_store.finish:raise",
    ],
)
def test_a_fault_of_the_store_changes_no_completion(rule, plain):
    with injected(rule, kv_store="faults", kv_store_timeout_s=0.2) as llm:
        assert [completion(llm) for _ in range(3)] == [plain] * 3


@pytest.mark.parametrize("rule", ["step.execute:raise@3", "step.collect:exhaust@3"])
def test_a_step_that_fails_outside_of_every_part_is_raised(rule):
    with (
        injected(rule, executor="faults") as llm,
        pytest.raises((QuireError, RuntimeError, MemoryError), match="injected fault"),
    ):
        completion(llm)


@pytest.mark.parametrize(
    "rule", ["executor.place:raise", "worker.load:raise", "worker.allocate:raise"]
)
def test_a_worker_that_does_not_start_is_an_error_of_the_start(rule):
    with pytest.raises(RuntimeError, match="injected fault"), injected(rule, executor="faults"):
        pass


def test_a_step_may_be_delayed(plain):
    with injected("step.execute:delay@2:10ms", executor="faults") as llm:
        assert completion(llm) == plain
