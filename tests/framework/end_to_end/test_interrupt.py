"""Ctrl-C during a step ends that call; the next one gets its completions from a clean engine."""

import pytest

from quire import LLM, SamplingParams
from quire.engine.core import EngineCore

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPTS = ["What is a plugin?", "What is quire?"]


def interrupt_once(runner, verb, call, is_due=lambda: True):
    """Let one call of a verb of the runner be interrupted, of those that are due."""
    whole, calls = getattr(runner, verb), []

    def interrupted(*arguments):
        if is_due():
            calls.append(arguments)
            if len(calls) == call:
                raise KeyboardInterrupt
        return whole(*arguments)

    setattr(runner, verb, interrupted)


@pytest.fixture
def cores(monkeypatch):
    """The engine cores of this test."""
    found = []
    start = EngineCore.__init__

    def noted(core, *arguments, **options):
        found.append(core)
        start(core, *arguments, **options)

    monkeypatch.setattr(EngineCore, "__init__", noted)
    return found


@pytest.fixture(scope="module")
def expected():
    with LLM("demo") as llm:
        return [result.outputs[0].token_ids for result in llm.generate(PROMPTS, GREEDY)]


def interruptions(**grids):
    """Parametrize a verb of the runner and options; several ranks get one message for a step."""
    return pytest.mark.parametrize(
        ("options", "verb"),
        [
            pytest.param(options, verb, id=f"{verb}-{name}", marks=[pytest.mark.slow] * is_grid)
            for name, options in grids.items()
            for is_grid in [any(option.endswith("_size") for option in options)]
            for verb in (("launch", "collect") if is_grid else ("execute", "sample", "collect"))
        ],
    )


@interruptions(
    in_step={"async_scheduling": False},
    asynchronous={"async_scheduling": True},
    tp2={"tensor_parallel_size": 2},
    pp2={"pipeline_parallel_size": 2},
)
def test_after_an_interrupt_the_engine_goes_on(expected, cores, verb, options):
    with LLM("demo", **options) as llm:
        (core,) = cores
        interrupt_once(core.runner, verb, call=5)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(PROMPTS, GREEDY)
        completions = [result.outputs[0].token_ids for result in llm.generate(PROMPTS, GREEDY)]
        assert completions == expected
        assert not core.has_work()
        assert llm.stats().num_used_blocks == 0


@interruptions(one_worker={}, tp2={"tensor_parallel_size": 2})
def test_after_an_interrupt_a_busy_kv_store_goes_on(cores, verb, options):
    prompts = [f"{name} " * 60 for name in ("plugin", "engine", "worker")]
    with LLM("demo", kv_store="host_memory", num_kv_blocks=30, **options) as llm:
        (core,) = cores
        before = [result.outputs[0].token_ids for result in llm.generate(prompts, GREEDY)]
        transfers = core.scheduler.transfers
        num_hits = transfers.num_hits
        interrupt_once(core.runner, verb, 1, lambda: transfers.num_open)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(prompts, GREEDY)
        for _ in range(3):
            after = [result.outputs[0].token_ids for result in llm.generate(prompts, GREEDY)]
            assert after == before
        assert not transfers.store.is_off
        assert transfers.num_hits > num_hits
        while core.has_work():
            core.step()
        assert (transfers.num_open, llm.stats().num_used_blocks) == (0, 0)
