"""Ctrl-C during a step ends that call; the next one gets its completions from a clean engine."""

import pytest

from quire import LLM, SamplingParams
from quire.engine.core import EngineCore

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPTS = ["What is a plugin?", "What is quire?"]


def interrupt_once(runner, verb, call):
    """Let one call of a verb of the runner be interrupted."""
    whole, calls = getattr(runner, verb), []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == call:
            raise KeyboardInterrupt
        return whole(*arguments)

    setattr(runner, verb, interrupted)


@pytest.fixture(scope="module")
def expected():
    with LLM("demo") as llm:
        return [result.outputs[0].token_ids for result in llm.generate(PROMPTS, GREEDY)]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"async_scheduling": False}, id="in step"),
        pytest.param({"async_scheduling": True}, id="async"),
        pytest.param({"tensor_parallel_size": 2}, id="tp2", marks=pytest.mark.slow),
        pytest.param({"pipeline_parallel_size": 2}, id="pp2", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("verb", ["execute", "sample", "collect"])
def test_after_an_interrupt_the_engine_goes_on(expected, monkeypatch, verb, options):
    cores = []
    start = EngineCore.__init__

    def noted(core, *arguments, **options):
        cores.append(core)
        start(core, *arguments, **options)

    monkeypatch.setattr(EngineCore, "__init__", noted)
    with LLM("demo", **options) as llm:
        (core,) = cores
        interrupt_once(core.runner, verb, call=5)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(PROMPTS, GREEDY)
        completions = [result.outputs[0].token_ids for result in llm.generate(PROMPTS, GREEDY)]
        assert completions == expected
        assert not core.has_work()
        assert llm.stats().num_used_blocks == 0
