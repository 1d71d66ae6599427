"""Priorities and timeouts, through a whole engine."""

import asyncio

import pytest

from quire import LLM, AsyncEngine, SamplingParams
from quire.errors import InvalidRequestError, PromptsError, RequestTimeoutError
from quire.testing.checkpoints import write_checkpoint

SHORT = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=900, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny")
    return str(write_checkpoint(path, "LlamaForCausalLM", max_position_embeddings=1024).folder)


@pytest.fixture(scope="module")
def llm(folder):
    with LLM(folder) as made:
        yield made


async def in_order(engine, priorities):
    """Generate once for each priority, behind a request that holds the engine."""
    finished = []

    async def generate(priority, params):
        async for _ in engine.generate("one two", params, priority=priority):
            pass
        finished.append(priority)

    first = asyncio.create_task(generate(100, SamplingParams(max_tokens=40, ignore_eos=True)))
    while engine.frontend.dispatch.stats.num_running == 0:
        await asyncio.sleep(0.001)
    await asyncio.gather(first, *(generate(priority, SHORT) for priority in priorities))
    return finished


def test_a_smaller_priority_goes_first(folder):
    async def main():
        engine = AsyncEngine(folder, scheduling_policy="priority", max_num_seqs=1)
        try:
            return await in_order(engine, [7, -2, 0, 2**31 - 1, -(2**31)])
        finally:
            await engine.shutdown()

    assert asyncio.run(main()) == [100, -(2**31), -2, 0, 7, 2**31 - 1]


def test_priorities_of_a_batch_are_one_for_each_prompt_or_one_for_all(folder, llm):
    with LLM(folder, scheduling_policy="priority", max_num_seqs=1) as served:
        expected = [output.outputs[0].token_ids for output in llm.generate(["a", "b"], SHORT)]
        for priority in (3, [1, -1]):
            outputs = served.generate(["a", "b"], SHORT, priority=priority)
            assert [output.outputs[0].token_ids for output in outputs] == expected
        with pytest.raises(InvalidRequestError, match="3 entries for 2 prompts") as caught:
            served.generate(["a", "b"], SHORT, priority=[1, 2, 3])
        assert caught.value.param == "priority"


def test_a_list_of_another_length_is_named_by_its_public_name(llm):
    for name, value in (
        ("sampling_params", [SHORT]),
        ("lora_request", [None]),
        ("timeout_s", [1.0]),
        ("priority", [0]),
    ):
        with pytest.raises(InvalidRequestError, match=f"{name} has 1 entries") as caught:
            llm.generate(["a", "b"], **{name: value})
        assert caught.value.param == name


def test_a_priority_without_the_priority_policy_is_refused(llm):
    with pytest.raises(PromptsError, match=r"prompt 1: .*--scheduling-policy priority"):
        llm.generate(["a", "b"], SHORT, priority=[0, 1])
    assert llm.generate("a", SHORT, priority=0)[0].finished


def test_what_takes_too_long_ends_with_numbers_and_leaves_nothing(llm):
    with pytest.raises(PromptsError, match=r"prompt 1: .* of at most 900 tokens") as caught:
        llm.generate(["a", "b"], [SHORT, LONG], timeout_s=[None, 0.02])
    assert isinstance(caught.value.errors[1], RequestTimeoutError)
    assert caught.value.outputs[0].finished
    stats = llm.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_used_blocks) == (0, 0, 0)
    assert llm.generate("a", SHORT, timeout_s=60)[0].outputs[0].finish_reason == "length"


def test_the_engines_own_limit_cannot_be_raised(folder):
    with LLM(folder, request_timeout_s=0.02) as limited:
        for timeout_s in (None, 1000):
            with pytest.raises(RequestTimeoutError, match=r"request_timeout_s is 0\.02 s"):
                limited.generate("a", LONG, timeout_s=timeout_s)


def test_one_that_waits_too_long_ends_and_the_others_go_on(folder):
    async def one(engine, params, timeout_s):
        return [d.finish_reason async for d in engine.generate("a", params, timeout_s=timeout_s)]

    async def main():
        engine = AsyncEngine(folder, max_num_seqs=1)
        try:
            runs = asyncio.create_task(one(engine, LONG, None))
            while engine.frontend.dispatch.stats.num_running == 0:
                await asyncio.sleep(0.001)
            with pytest.raises(RequestTimeoutError, match="had 0 of at most 4 tokens"):
                await one(engine, SHORT, 0.01)
            return await runs
        finally:
            await engine.shutdown()

    assert asyncio.run(main())[-1] == "length"
