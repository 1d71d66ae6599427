"""The best of several completions, in `LLM`, `AsyncEngine` and over HTTP alike."""

import asyncio

import pytest
from asgi_parts import post

from quire import LLM, AsyncEngine, SamplingParams
from quire.config import ServerSettings
from quire.errors import InvalidRequestError
from quire.server.app import create_app
from quire.testing.checkpoints import write_checkpoint

PROMPT = [5, 9, 200, 31, 7, 9]
COMMON = {"max_tokens": 6, "seed": 3, "ignore_eos": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(write_checkpoint(tmp_path_factory.mktemp("m"), "Qwen3ForCausalLM", seed=3).folder)


@pytest.fixture(scope="module")
def every(folder):
    """All completions, the best first."""
    with LLM(folder, max_model_len=64) as llm:
        (result,) = llm.generate(PROMPT, SamplingParams(n=5, logprobs=0, **COMMON))
    sums = {output.index: sum_of(output) for output in result.outputs}
    for output in result.outputs:
        assert output.cumulative_logprob == pytest.approx(sums[output.index])
    return sorted(result.outputs, key=lambda output: -output.cumulative_logprob)


def sum_of(output):
    rows = zip(output.token_ids, output.logprobs, strict=True)
    return sum(row[token_id].logprob for token_id, row in rows)


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("logprobs", [None, 2])
def test_the_best_are_those_with_the_largest_log_probability(folder, every, n, logprobs):
    with LLM(folder, max_model_len=64) as llm:
        params = SamplingParams(n=n, best_of=5, logprobs=logprobs, **COMMON)
        (result,) = llm.generate(PROMPT, params)
    assert len({tuple(output.token_ids) for output in every}) == 5
    found = [output.token_ids for output in result.outputs]
    if n == 5:
        assert sorted(found) == sorted(output.token_ids for output in every), "as without best_of"
        return
    assert found == [output.token_ids for output in every[:n]]
    assert [output.index for output in result.outputs] == list(range(n))
    for output in result.outputs:
        assert (output.logprobs is None) == (logprobs is None)
        assert output.cumulative_logprob == pytest.approx(every[output.index].cumulative_logprob)


@pytest.fixture(scope="module")
def engine(folder):
    engine = AsyncEngine(folder, max_model_len=64)
    yield engine
    asyncio.run(engine.shutdown())


def test_the_best_over_http(engine, every):
    app = create_app(engine.frontend, ServerSettings(), list)
    ask = {"prompt": [PROMPT, PROMPT], "n": 2, "best_of": 5, **COMMON}
    response = post(app, "/v1/completions", **ask).json()
    texts = [choice["text"] for choice in response["choices"]]
    assert texts == [output.text for output in every[:2]] * 2
    assert [choice["index"] for choice in response["choices"]] == [0, 1, 2, 3]
    assert all(choice["logprobs"] is None for choice in response["choices"])
    assert response["usage"]["completion_tokens"] == 2 * 5 * 6, "all that were generated"
    with_logprobs = post(app, "/v1/completions", logprobs=1, **ask).json()["choices"][0]
    assert len(with_logprobs["logprobs"]["tokens"]) == 6
    wire = post(app, "/v1/completions", stream=True, **ask)
    assert (wire.status, wire.error["param"]) == (400, "best_of")
    wire = post(app, "/v1/completions", **ask | {"best_of": 128, "prompt": [PROMPT] * 9})
    assert (wire.status, wire.error["param"]) == (400, "prompt"), "1152 would be generated"


def test_deltas_of_the_best_are_refused(engine):
    async def read():
        async for _ in engine.generate(PROMPT, SamplingParams(best_of=2, **COMMON)):
            pass

    with pytest.raises(InvalidRequestError, match="cannot be streamed") as caught:
        asyncio.run(read())
    assert caught.value.param == "best_of"


def test_the_best_of_an_event_loop_are_the_same(engine, every):
    params = SamplingParams(n=2, best_of=5, **COMMON)
    result = asyncio.run(engine.generate_whole(PROMPT, params))
    assert [output.token_ids for output in result.outputs] == [
        output.token_ids for output in every[:2]
    ]
