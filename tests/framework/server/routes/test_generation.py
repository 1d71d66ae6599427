"""One request's completions: all of them or an error, counted once, and nothing kept afterwards."""

import asyncio
from contextlib import aclosing

import pytest
from scripted_core import ScriptedCore
from server_parts import Texts, make_frontend

from quire.errors import GrammarError, OverloadedError, RequestFailedError
from quire.frontend.intake.intake import Intake
from quire.messages import ErrorReport
from quire.outputs import Delta
from quire.sampling_params import SamplingParams, StructuredOutputsParams
from quire.server.http.logprob_budget import LogprobBudget
from quire.server.keys.account import Account
from quire.server.keys.api_key import KeyLimits
from quire.server.routes.generation import LARGE, Generation
from quire.server.wire.http_errors import HTTPError
from quire.server.wire.protocol import SamplingBody
from quire.server.wire.sender import Sender

BODY = SamplingBody()
STOPPED_S = 1.0  # a clock that stands


def prompts_of(*texts):
    return [{"prompt": text} for text in texts]


def start(frontend, *texts, budget=None, n=1, max_tokens=None, body=BODY, **fields):
    own = {"is_prompt_only": fields.pop("is_prompt_only", False)}
    params = SamplingParams(n=n, max_tokens=max_tokens, **fields)
    budget = budget or LogprobBudget()
    return Generation(frontend, budget, prompts_of(*texts), params, None, body, Sender(), **own)


async def read(generation):
    async with aclosing(generation.deltas()) as deltas:
        return [(index, delta) async for index, delta in deltas]


class Watched:
    """A frontend that keeps its streams for the test."""

    def __init__(self, frontend):
        self.intake = frontend.intake
        self.time_limit = frontend.time_limit
        self.frontend = frontend
        self.streams = []

    async def encode(self, prompts):
        return await self.frontend.encode(prompts)

    async def submit(self, prompt, params, **options):
        self.streams.append(await self.frontend.submit(prompt, params, **options))
        return self.streams[-1]


def test_choices_are_numbered_prompt_by_prompt(frontend, core):
    core.script.by_prompt = {"red": ["r0", "r1"], "blue": ["b0", "b1"]}
    texts = {}
    for index, delta in asyncio.run(read(start(frontend, "red", "blue", n=2))):
        texts[index] = texts.get(index, "") + delta.text
    assert texts == {0: "r0", 1: "r1", 2: "b0", 3: "b1"}


@pytest.mark.parametrize("texts", [["a"], ["a", "b"]])
def test_a_stream_that_ends_without_its_completion_is_an_error(frontend, core, texts):
    core.script.by_prompt = {"": "word " * 100}
    watched = Watched(frontend)

    async def main():
        async with aclosing(start(watched, *texts).deltas()) as deltas:
            await anext(deltas)
            await watched.streams[-1].aclose()
            async for _ in deltas:
                pass

    core.step_s = 0.01
    with pytest.raises(RequestFailedError, match="before it was finished"):
        asyncio.run(main())


@pytest.mark.parametrize("texts", [["bad"], ["good", "bad"], ["bad", "good"]])
def test_one_prompt_that_fails_ends_the_others(frontend, core, texts, wait_for):
    report = ErrorReport("request_failed", "it broke")
    core.script.by_prompt = {"good": "word " * 100, "bad": ("one", report)}
    core.step_s = 0.005
    with pytest.raises(RequestFailedError, match="it broke"):
        asyncio.run(asyncio.wait_for(read(start(frontend, *texts)), 10))
    assert wait_for(lambda: not core.has_work())
    assert len(core.aborted) == len(texts) - 1


def test_leaving_early_aborts_all(frontend, core, wait_for):
    core.script.by_prompt = {"": "word " * 100}
    core.step_s = 0.005

    async def main():
        async with aclosing(start(frontend, "a", "b", n=2).deltas()) as deltas:
            await anext(deltas)

    asyncio.run(main())
    assert wait_for(lambda: len(core.aborted) == 4)


def test_an_abort_from_outside_is_an_error_that_says_when_to_come_back(frontend, core):
    core.script.by_prompt = {"": "word " * 100}
    core.step_s = 0.01
    watched = Watched(frontend)

    async def main():
        async with aclosing(start(watched, "a").deltas()) as deltas:
            await anext(deltas)
            frontend.abort(watched.streams[0].request_id)
            async for _ in deltas:
                pass

    with pytest.raises(HTTPError) as caught:
        asyncio.run(main())
    assert (caught.value.status, caught.value.name) == (503, "aborted")
    assert caught.value.headers == {"retry-after": "1"}


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("tokens_per_step", [1, 4])
def test_a_prompt_is_counted_once_and_each_completion_by_its_tokens(
    frontend, core, n, tokens_per_step
):
    core.script.by_prompt = {"": "one two three four five"}
    core.tokens_per_step = tokens_per_step
    generation = start(frontend, "red", "blue and green", n=n)
    assert generation.usage().total_tokens == 0
    deltas = asyncio.run(read(generation))
    encode = frontend.tokenizer.encode
    usage = generation.usage()
    assert usage.prompt_tokens == len(encode("red")) + len(encode("blue and green"))
    num_answer = len(encode("one two three four five", add_special_tokens=False)) + 1
    assert usage.completion_tokens == num_answer * 2 * n
    assert usage.completion_tokens == sum(len(delta.token_ids) for _, delta in deltas)
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert generation.num_choices == 2 * n


def test_cached_tokens_are_those_of_each_prompts_first_completion(tokenizer):
    class Caching(ScriptedCore):
        def num_cached_of(self, request):
            return 7 * request.child + len(request.token_ids)

    frontend = make_frontend(tokenizer, Caching(Texts(tokenizer)))
    generation = start(frontend, "red", "blue and green", n=3)
    asyncio.run(read(generation))
    asyncio.run(frontend.shutdown())
    assert (
        generation.usage().prompt_tokens_details.cached_tokens == generation.usage().prompt_tokens
    )


def test_the_budget_is_reserved_for_the_prompts_own_tokens_too_and_released_once(frontend):
    budget = LogprobBudget(1000)
    generation = start(frontend, "red blue", "green", budget=budget, prompt_logprobs=2, n=2)
    num_tokens = sum(len(frontend.tokenizer.encode(text)) for text in ("red blue", "green"))
    asyncio.run(read(generation))
    assert budget.num_free == 1000 - 3 * num_tokens
    generation.release()
    generation.release()
    assert budget.num_free == 1000


def test_a_request_that_asks_for_none_takes_nothing_of_the_budget(frontend):
    generation = start(frontend, "red", budget=LogprobBudget(0))
    asyncio.run(read(generation))
    generation.release()
    assert not generation.is_large


def test_the_last_of_the_budget_is_reserved_and_no_more(frontend, core):
    num_tokens = len(frontend.tokenizer.encode("red"))
    budget = LogprobBudget(2 * num_tokens)
    first = start(frontend, "red", budget=budget, prompt_logprobs=0)
    second = start(frontend, "red", budget=budget, prompt_logprobs=0)
    for generation in (first, second):
        asyncio.run(read(generation))
    assert budget.num_free == 0
    num_before = len(core.requests)
    with pytest.raises(OverloadedError):
        asyncio.run(read(start(frontend, "red", budget=budget, prompt_logprobs=0)))
    assert len(core.requests) == num_before
    first.release()
    asyncio.run(read(start(frontend, "red", budget=budget, prompt_logprobs=0)))


@pytest.mark.parametrize(("num", "is_large"), [(LARGE, False), (LARGE + 1, True)])
def test_many_candidates_are_worked_on_beside_the_event_loop(frontend, num, is_large):
    prompt = {"prompt_token_ids": [300] * 64}
    width = 16 if num == LARGE else 17
    params = SamplingParams(max_tokens=1, prompt_logprobs=width - 1)
    generation = Generation(frontend, LogprobBudget(), [prompt], params, None, BODY, Sender())
    asyncio.run(read(generation))
    assert generation.is_large is is_large
    rows = [None] * (num // width if num == LARGE else 61)
    delta = Delta(index=0, text="", token_ids=[], prompt_logprobs=rows)
    assert generation.is_large_delta(delta) is is_large
    assert not generation.is_large_delta(Delta(index=0, text="x" * 9999, token_ids=[1]))


@pytest.mark.parametrize("fields", [{}, {"logprobs": 1}, {"is_prompt_only": True, "logprobs": 0}])
def test_the_whole_outputs_are_the_deltas_joined(frontend, core, fields):
    core.script.by_prompt = {"red": ["r0 and more", "r1"], "blue": ["", "b1"]}
    texts, logprobs, ends = [""] * 4, [[] for _ in range(4)], [None] * 4
    for index, delta in asyncio.run(read(start(frontend, "red", "blue", n=2, **fields))):
        texts[index] += delta.text
        logprobs[index] += delta.logprobs or []
        ends[index] = delta.finish_reason
    generation = start(frontend, "red", "blue", n=2, **fields)
    outputs = asyncio.run(generation.outputs())
    assert [output.text for output in outputs] == texts
    assert [output.logprobs or [] for output in outputs] == logprobs
    assert [output.finish_reason for output in outputs] == ends
    num_tokens = sum(len(output.token_ids) for output in outputs)
    assert generation.usage().completion_tokens == num_tokens


@pytest.mark.parametrize("n", [1, 2])
def test_the_first_choice_of_a_prompt_has_its_log_probabilities(frontend, n):
    generation = start(frontend, "red", "blue and green", n=n, prompt_logprobs=1)
    asyncio.run(generation.outputs())
    rows = [generation.prompt_logprobs(choice) for choice in range(2 * n)]
    given = [None if each is None else len(each) for each in rows]
    lengths = [len(frontend.tokenizer.encode(text)) for text in ("red", "blue and green")]
    assert given == [value for length in lengths for value in (length, None)[:n]]
    generation.release()
    plain = start(frontend, "red")
    asyncio.run(plain.outputs())
    assert plain.prompt_logprobs(0) is None


def test_a_long_completion_is_worked_on_beside_the_event_loop(frontend, core):
    core.script.by_prompt = {"red": "word " * 30}
    for fields, is_large in (({}, False), ({"logprobs": 20}, True)):
        generation = start(frontend, "red", **fields)
        asyncio.run(generation.outputs())
        assert generation.is_large is is_large


def test_an_echo_alone_shows_and_costs_no_token(frontend):
    generation = start(frontend, "red", max_tokens=1, logprobs=1, is_prompt_only=True)
    ((index, delta),) = asyncio.run(read(generation))
    assert (index, delta.text, delta.token_ids, delta.logprobs) == (0, "", [], [])
    assert (delta.finish_reason, delta.stop_reason) == ("length", None)
    assert generation.usage().completion_tokens == 0


def test_an_echo_alone_whose_one_token_stops_ends_by_length(frontend, core):
    core.script.by_prompt = {"": ""}  # the end of text at once
    generation = start(frontend, "red", max_tokens=1, is_prompt_only=True)
    ((_, delta),) = asyncio.run(read(generation))
    assert (delta.finish_reason, delta.logprobs) == ("length", None)


@pytest.mark.parametrize("param", [None, "tools"])
def test_a_refused_constraint_names_the_field_that_set_it(tokenizer, param):
    def refuse(constraint):
        raise GrammarError("no", param=param)

    frontend = make_frontend(tokenizer, ScriptedCore(Texts(tokenizer)))
    size = tokenizer.vocab_size
    frontend.intake = Intake(tokenizer, max_model_len=64, vocab_size=size, check_grammar=refuse)
    constraint = StructuredOutputsParams(regex="x")
    generation = start(
        frontend,
        "red",
        structured_outputs=constraint,
        body=SamplingBody(response_format={"type": "json_object"}),
    )
    with pytest.raises(GrammarError) as caught:
        asyncio.run(read(generation))
    asyncio.run(frontend.shutdown())
    assert caught.value.param == (param or "response_format")


def test_between_any_two_prompts_others_have_their_turn(frontend):
    watched = Watched(frontend)

    async def main():
        done = asyncio.create_task(read(start(watched, *["a"] * 50, max_tokens=1)))
        seen = set()
        while not done.done():
            seen.add(len(watched.streams))
            await asyncio.sleep(0)
        assert seen == set(range(51))

    asyncio.run(main())


@pytest.mark.parametrize("is_prompt_only", [False, True])
def test_a_whole_response_whose_client_leaves_pays_for_what_was_generated(
    frontend, core, is_prompt_only
):
    core.script.by_prompt = {"": "word " * 100}
    core.step_s = 0.005
    watched = Watched(frontend)
    account = Account("acme", KeyLimits(tokens_per_minute=1000), clock=lambda: STOPPED_S)
    sender = Sender(account=account)
    generation = Generation(
        watched,
        LogprobBudget(),
        prompts_of("a"),
        SamplingParams(max_tokens=None),
        None,
        BODY,
        sender,
        is_prompt_only=is_prompt_only,
    )

    async def main():
        waiting = asyncio.create_task(generation.outputs())
        while not watched.streams or watched.streams[0].completions.num_tokens < 3:
            await asyncio.sleep(0.001)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        return watched.streams[0].completions.num_tokens

    num_generated = asyncio.run(main())
    num_paid = 0 if is_prompt_only else num_generated
    assert num_generated >= 3
    assert account.usage.num_completion_tokens == num_paid
    assert account.tokens.level(STOPPED_S) == 1000 - account.usage.num_prompt_tokens - num_paid
