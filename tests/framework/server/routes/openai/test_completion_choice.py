"""Deltas of one completion become pieces, and a whole completion a full choice or an error."""

import asyncio

import pytest
from msgspec import UNSET

from quire.errors import RequestFailedError
from quire.frontend.intake.prompt import EncodedPrompt
from quire.outputs import CompletionOutput, Delta, Logprob
from quire.sampling_params import SamplingParams
from quire.server.http.logprob_budget import LogprobBudget
from quire.server.routes.generation import Generation
from quire.server.routes.openai.completion_choice import (
    CompletionChoiceBuilder,
    ResponseOptions,
)
from quire.server.wire.protocol import CompletionChoice, SamplingBody
from quire.server.wire.sender import Sender


@pytest.fixture
def builder(frontend):
    """Make the builder of the choice `index` of two prompts with n = 2."""

    def make(index=0, logprobs=None, echo=False, prompt_logprobs=False):
        params = SamplingParams(n=2)
        generation = Generation(
            frontend, LogprobBudget(), [{}, {}], params, None, SamplingBody(), Sender()
        )
        generation.encoded = [EncodedPrompt("ab", [300, 301]), EncodedPrompt("cde", [302])]
        options = ResponseOptions(logprobs, echo, prompt_logprobs)
        return CompletionChoiceBuilder(index, generation, options)

    return make


@pytest.fixture
def read(builder):
    """Read deltas as one choice."""

    def run(*deltas, **fields):
        reader = builder(**fields)
        return [reader.read(delta) for delta in deltas]

    return run


def delta(text="", end=None, stop=None, rows=None, logprobs=None):
    return Delta(
        index=0, text=text, token_ids=[], finish_reason=end, stop_reason=stop,
        prompt_logprobs=rows, logprobs=logprobs,
    )  # fmt: skip


ROW = {300: Logprob(-1.0, 1), 301: Logprob(-0.5, 1)}


@pytest.mark.parametrize(("index", "text"), [(0, "ab"), (1, "ab"), (2, "cde"), (3, "cde")])
def test_each_choice_echoes_its_own_prompt_once(read, index, text):
    pieces = read(delta("x"), delta("y"), index=index, echo=True)
    assert [(piece.index, piece.text) for piece in pieces] == [(index, f"{text}x"), (index, "y")]


def test_an_empty_delta_is_no_piece(read):
    assert read(delta(), delta(rows=[None])) == [None, None]
    for fields in ({"text": "x"}, {"end": "stop"}):
        assert read(delta(**fields))[0] is not None
    assert read(delta(rows=[None]), prompt_logprobs=True)[0].prompt_logprobs == [None]
    assert read(delta(logprobs=[ROW]), logprobs=0)[0].logprobs.token_logprobs == [-1.0]
    assert read(delta(), echo=True)[0].text == "ab"


def test_log_probabilities_of_the_prompt_come_only_where_they_were_asked_for(read):
    (echoed,) = read(delta("x", rows=[None, ROW]), echo=True, logprobs=1)
    assert echoed.prompt_logprobs is UNSET
    assert echoed.logprobs.token_logprobs == [None, -1.0]
    (both,) = read(delta("x", rows=[None, ROW]), echo=True, logprobs=1, prompt_logprobs=True)
    assert both.prompt_logprobs == [None, ROW]
    (plain,) = read(delta("x", rows=[None, ROW], logprobs=[ROW]), logprobs=1)
    assert plain.logprobs.token_logprobs == [-1.0]


def test_the_prompts_log_probabilities_come_before_the_completions(read):
    own = {301: Logprob(-3.0, 9)}
    first, second = read(
        delta("x", rows=[None, ROW], logprobs=[own]), delta("y", logprobs=[own]),
        echo=True, logprobs=0,
    )  # fmt: skip
    assert first.logprobs.token_logprobs == [None, -1.0, -3.0]
    assert first.logprobs.text_offset[2] == len("ab")
    assert second.logprobs.text_offset[0] > len("ab")


@pytest.mark.parametrize("end", ["stop", "length", None])
def test_the_last_piece_has_the_finish_reason(read, end):
    assert read(delta("x", end=end))[0].finish_reason == end


@pytest.mark.parametrize("echo", [False, True])
def test_a_full_choice_is_its_pieces_joined(builder, echo):
    own = {301: Logprob(-3.0, 9)}
    fields = {"index": 3, "logprobs": 0, "prompt_logprobs": True, "echo": echo}
    streamed = builder(**fields)
    pieces = [
        streamed.read(delta("x", rows=[None], logprobs=[ROW])),
        streamed.read(delta("y", rows=[ROW], logprobs=[own])),
        streamed.read(delta("z", end="stop", stop="!", logprobs=[])),
    ]
    output = CompletionOutput(
        index=1, text="xyz", token_ids=[], logprobs=[ROW, own], finish_reason="stop",
        stop_reason="!",
    )  # fmt: skip
    whole = builder(**fields).read_whole(output, [None, ROW])
    assert (whole.index, whole.finish_reason, whole.stop_reason) == (3, "stop", "!")
    assert whole.text == "".join(piece.text for piece in pieces) == "cde" * echo + "xyz"
    shown = [piece.logprobs for piece in pieces]
    logprobs = [logprob for each in shown for logprob in each.token_logprobs]
    assert sorted(whole.logprobs.token_logprobs, key=str) == sorted(logprobs, key=str)
    assert whole.logprobs.token_logprobs == [*[None, -1.0] * echo, -1.0, -3.0]
    assert whole.prompt_logprobs == [None, ROW]


def test_a_full_choice_has_what_was_asked_for(builder):
    output = CompletionOutput(index=0, text="x", token_ids=[1], finish_reason="length")
    plain = builder().read_whole(output, None)
    assert plain == CompletionChoice(index=0, text="x", finish_reason="length")
    assert plain.prompt_logprobs is UNSET


def test_a_choice_without_an_end_is_an_error(builder):
    output = CompletionOutput(index=0, text="x", token_ids=[1])
    with pytest.raises(RequestFailedError, match="without a finish reason"):
        builder().read_whole(output, None)


def test_a_generation_that_has_not_started_has_no_prompts(frontend):
    generation = Generation(
        frontend,
        LogprobBudget(),
        [{"prompt": "x"}],
        SamplingParams(),
        None,
        SamplingBody(),
        Sender(),
    )
    assert generation.encoded == []
    assert asyncio.run(first(generation)) == ["x"]


async def first(generation):
    async for _ in generation.deltas():
        pass
    return [prompt.text for prompt in generation.encoded]
