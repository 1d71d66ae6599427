"""What a route can do: generate, chat, tokenize, and read the names and limits of the model."""

import asyncio
import json
import time
from functools import partial

import pytest
from asgi_parts import JSON, Wire, call, post, scope_of
from route_parts import PATH, loaded

from quire import SamplingParams
from quire.config import ServerSettings
from quire.errors import OverloadedError, PluginError, RequestError
from quire.server.app import create_app
from quire.server.keys.accounts import Accounts
from quire.server.keys.api_key import KeyLimits, make_key
from quire.server.keys.key_ring import KeyRing
from quire.server.observe.observed_exchange import GENERATION
from quire.server.routes.generation import Generation
from quire.server.wire.http_errors import HTTPError

CALL = '[[weather {"city": "Oslo"}]]'
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


@pytest.fixture
def make_app(frontend):
    def make(respond, accounts=None, settings=None, **capabilities):
        return create_app(
            frontend,
            settings or ServerSettings(),
            list,
            accounts=accounts,
            routes=[loaded(respond, **capabilities)],
        )

    return make


def plain(piece):
    return {
        "text": piece.text,
        "reasoning": piece.reasoning,
        "calls": [(each.name, each.arguments) for each in piece.tool_calls],
        "end": piece.finish_reason,
    }


def joined(pieces):
    """Join the pieces of a streamed completion."""
    return {
        "text": "".join(piece["text"] for piece in pieces),
        "reasoning": "".join(piece["reasoning"] for piece in pieces),
        "calls": [call for piece in pieces for call in piece["calls"]],
        "end": pieces[-1]["end"],
    }


def responding(ask):
    """Return a route that responds with the completion that a function asks for."""

    async def respond(request):
        completion = ask(request)
        if request.body.stream:
            return (plain(piece) async for piece in completion)
        (piece,) = await completion.whole()
        counts = completion.token_counts
        return plain(piece) | {"num": [counts.num_prompt_tokens, counts.num_completion_tokens]}

    return respond


def test_generated_text_is_whole_or_in_pieces(make_app, core):
    core.script.by_prompt = {"Once": "<t>no</t> parser reads this"}
    params = SamplingParams(max_tokens=100, temperature=0)
    app = make_app(responding(lambda request: request.generate(request.body.text, params)))
    whole = post(app, PATH).json()
    assert whole["text"] == "<t>no</t> parser reads this"
    assert (whole["reasoning"], whole["end"]) == ("", "stop")
    assert min(whole.pop("num")) > 0
    events = post(app, PATH, stream=True).events
    assert len(events) > 3
    assert joined(events) == whole


@pytest.mark.parametrize("text", [CALL, f"<t>hm</t>So: {CALL}{CALL}", "plain", '[[weather {"ci'])
def test_a_chat_is_split_into_reasoning_text_and_calls(make_app, core, text):
    core.script.by_prompt = {"Weather": text}

    def ask(request):
        messages = [{"role": "user", "content": "Weather?"}]
        return request.chat(messages, SamplingParams(max_tokens=200), tools=[WEATHER])

    app = make_app(responding(ask))
    whole = post(app, PATH).json()
    whole.pop("num")
    num_calls = text.count(CALL)
    assert whole["calls"] == [["weather", '{"city": "Oslo"}']] * num_calls
    assert whole["end"] == ("tool_calls" if num_calls else "stop")
    assert whole["reasoning"] == ("hm" if "<t>" in text else "")
    assert joined(post(app, PATH, stream=True).events) == whole


def test_the_text_of_a_call_that_is_cut_is_text(make_app, core, frontend):
    core.script.by_prompt = {"Weather": f"So: {CALL}"}
    limit = len(frontend.tokenizer.encode(f"So: {CALL}")) - 3

    def ask(request):
        messages = [{"role": "user", "content": "Weather?"}]
        return request.chat(messages, SamplingParams(max_tokens=limit), tools=[WEATHER])

    app = make_app(responding(ask))
    whole = post(app, PATH).json()
    whole.pop("num")
    assert (whole["calls"], whole["end"]) == ([], "length")
    assert whole["text"].startswith('So: [[weather {"ci')
    assert joined(post(app, PATH, stream=True).events) == whole


def test_a_route_tokenizes_and_reads_names_and_limits(make_app, frontend):
    async def respond(request):
        token_ids = await request.tokenize("Once upon")
        return {
            "text": await request.detokenize(token_ids, skip_special_tokens=True),
            "names": [request.model_name, *request.model_names],
            "max": request.max_model_len,
            "id": request.request_id,
            "client": request.client,
        }

    wire = post(make_app(respond, generates=False), PATH)
    found = wire.json()
    assert found.pop("id") == wire.headers["x-request-id"]
    assert found == {
        "text": "Once upon", "names": ["demo", "demo", "pirate"], "max": 512, "client": "127.0.0.1",
    }  # fmt: skip


def test_token_ids_that_do_not_exist_are_refused(make_app):
    app = make_app(lambda request: request.detokenize([10**6]))
    assert post(app, PATH).status == 400


def test_an_adapter_is_named_as_in_other_requests(make_app, core):
    def ask(request):
        return request.generate("Once", model=request.body.text, priority=request.body.number)

    app = make_app(responding(ask))
    assert post(app, PATH, text="pirate", number=3).status == 200
    assert (core.requests[-1].adapter.name, core.requests[-1].priority) == ("pirate", 3)
    refused = post(app, PATH, text="pirat")
    assert (refused.status, refused.error["code"]) == (404, "model_not_found")


def test_a_route_that_has_not_declared_it_cannot_generate(make_app, caplog):
    app = make_app(lambda request: request.generate("Once").whole(), generates=False)
    assert post(app, PATH).status == 500
    assert "has not declared it" in caplog.text


def test_a_completion_is_read_once(make_app, caplog):
    async def respond(request):
        completion = request.generate("Once")
        await completion.whole()
        return [piece async for piece in completion]

    assert post(make_app(respond), PATH).status == 500
    assert "a completion is read once" in caplog.text


def test_best_of_cannot_be_streamed(make_app):
    ask = responding(lambda request: request.generate("Once", SamplingParams(n=1, best_of=2)))
    refused = post(make_app(ask), PATH, stream=True)
    assert (refused.status, refused.error["param"]) == (400, "best_of")


def keyed(app, key, **body):
    headers = JSON | {"authorization": f"Bearer {key}"}
    scope = scope_of(PATH, headers=headers)
    return asyncio.run(call(app, Wire(json.dumps(body).encode()), scope)), scope


def test_limits_and_usage_of_the_key_count_what_a_route_generates(make_app, core):
    limits = KeyLimits(tokens_per_minute=60, models=("demo",))
    accounts = Accounts(KeyRing((make_key("a", "sk-a", limits),), ()))
    params = SamplingParams(max_tokens=20)

    def ask(request):
        return request.generate("Once", params, model=request.body.text)

    app = make_app(responding(ask), accounts)
    first, scope = keyed(app, "sk-a", text="demo")
    assert first.status == 200, first.body
    (account,) = accounts.of_keys()
    num_prompt, num_completion = first.json()["num"]
    assert account.usage.num_completion_tokens == num_completion
    assert account.usage.num_prompt_tokens == num_prompt
    assert scope[GENERATION].usage().completion_tokens == num_completion
    assert keyed(app, "sk-a", text="pirate")[0].status == 404
    statuses = [keyed(app, "sk-a", text="demo")[0].status for _ in range(8)]
    assert statuses[-1] == 429


def test_two_completions_of_a_request_are_observed_together(make_app):
    async def respond(request):
        pieces = [*await request.generate("Once").whole(), *await request.generate("a").whole()]
        return sum(len(piece.token_ids) for piece in pieces)

    scope = scope_of(PATH, headers=JSON)
    wire = asyncio.run(call(make_app(respond), Wire(b"{}"), scope))
    observed = scope[GENERATION]
    assert observed.usage().completion_tokens == wire.json()
    assert len(observed.records) == 2
    assert observed.model == "demo"


def test_while_the_queue_is_full_a_route_that_generates_is_refused(make_app, frontend, monkeypatch):
    def refuse():
        raise OverloadedError("the queue is full")

    monkeypatch.setattr(frontend, "check_queue", refuse)
    called = []
    assert post(make_app(called.append), PATH).status == 503
    assert not called
    assert post(make_app(lambda request: {}, generates=False), PATH).status == 200


def test_an_error_of_a_completion_is_the_error_of_the_request(make_app, core):
    app = make_app(responding(lambda request: request.generate("Once " * 2000)))
    refused = post(app, PATH)
    assert (refused.status, refused.error["code"]) == (400, "context_length_exceeded")


LONG = SamplingParams(max_tokens=400)


def merging(request, failures):
    """Return the pieces of two completions, each read by a task of its own."""
    queue = asyncio.Queue()

    async def consume(completion):
        try:
            async for piece in completion:
                await queue.put(piece.text)
        except RequestError as error:
            failures.append(error)

    async def merged(tasks):
        while tasks:
            yield await queue.get()

    completions = [request.generate("Once", LONG) for _ in range(2)]
    return merged([asyncio.create_task(consume(each)) for each in completions])


def gathering(request, failures):
    """Return events while tasks compute whole completions."""

    async def compute():
        try:
            await request.generate("Once", LONG).whole()
        except RequestError as error:
            failures.append(error)

    async def events(tasks):
        while tasks:
            yield "tick"
            await asyncio.sleep(0.01)

    return events([asyncio.create_task(compute()) for _ in range(2)])


def abandoning(request, failures):
    """Return events after pieces of completions that nothing reads to their end."""

    async def events():
        for _ in range(2):
            pieces = aiter(request.generate("Once", LONG))
            yield (await anext(pieces)).text
            failures.append(pieces)
        await asyncio.sleep(30)

    return events()


@pytest.mark.parametrize("make", [merging, gathering, abandoning])
def test_completions_that_tasks_read_end_when_the_client_leaves(make_app, frontend, core, make):
    core.script.by_prompt = {"Once": "one two three four five six seven eight nine ten " * 20}
    core.step_s, failures = 0.01, []
    accounts = Accounts(KeyRing((make_key("a", "sk-a", KeyLimits(tokens_per_minute=3000)),), ()))
    app = make_app(lambda request: make(request, failures), accounts)

    async def leave():
        wire = Wire(b"{}")
        scope = scope_of(PATH, headers=JSON | {"authorization": "Bearer sk-a"})
        task = asyncio.create_task(call(app, wire, scope))
        while len(wire.sent) < 3 or len(frontend.dispatch.streams()) < 2 - len(failures):
            await asyncio.sleep(0.01)
        wire.gone.set()
        await task
        assert not frontend.dispatch.streams()
        await asyncio.sleep(0.05)  # for the tasks

    asyncio.run(leave())
    assert len(failures) == 2
    if make is not abandoning:
        assert {str(each) for each in failures} == {
            "the request is over, and its completions were aborted"
        }
    (account,) = accounts.of_keys()
    assert account.num_running == 0
    assert 0 < account.usage.num_completion_tokens < 700
    used = account.usage.num_prompt_tokens + account.usage.num_completion_tokens
    assert account.tokens.level(time.monotonic()) > 3000 - used - 1  # the rest was given back


def test_nothing_is_generated_after_the_response(make_app, core):
    held = []

    def respond(request):
        held.append((request, request.generate("Once"), request.generate("Once")))
        return {}

    async def ask_later():
        await call(make_app(respond), Wire(b"{}"), scope_of(PATH, headers=JSON))
        ((request, completion, other),) = held
        with pytest.raises(PluginError, match="the request is over"):
            request.generate("Once")
        with pytest.raises(PluginError, match="the request is over"):
            request.chat([{"role": "user", "content": "x"}])
        with pytest.raises(PluginError, match="the request is over"):
            await completion.whole()
        with pytest.raises(PluginError, match="the request is over"):
            [piece async for piece in other]

    asyncio.run(ask_later())
    assert not core.requests


@pytest.mark.parametrize(
    ("is_chat", "step"), [(True, "lanes"), (False, "encode"), (False, "submit")]
)
def test_a_completion_that_is_being_prepared_does_not_run_after_the_response(
    make_app, frontend, core, monkeypatch, is_chat, step
):
    core.script.by_prompt = {"Once": "one two three four five six seven eight nine ten " * 20}
    tasks, may_go_on, core.step_s = [], asyncio.Event(), 0.01
    steps = {"lanes": (frontend.lanes, "run"), "encode": (frontend, "encode")}
    owner, name = steps.get(step, (frontend, "submit"))

    async def held(wrapped, *args, **kwargs):
        await may_go_on.wait()
        return await wrapped(*args, **kwargs)

    monkeypatch.setattr(owner, name, partial(held, getattr(owner, name)))

    async def respond(request):
        messages = [{"role": "user", "content": "x"}]
        completion = request.chat(messages) if is_chat else request.generate("Once", LONG)
        tasks.append(asyncio.create_task(completion.whole()))
        await asyncio.sleep(0.01)
        return {}

    async def ask_later():
        await call(make_app(respond), Wire(b"{}"), scope_of(PATH, headers=JSON))
        may_go_on.set()
        with pytest.raises((PluginError, RequestError), match="the request is over"):
            await tasks[0]
        assert not frontend.dispatch.streams()

    asyncio.run(ask_later())
    assert step == "submit" or not core.requests


def test_all_completions_are_closed_even_if_one_cannot_be(make_app, frontend, core, monkeypatch):
    core.step_s, tasks = 0.01, []
    core.script.by_prompt = {"Once": "one two three four five six seven eight nine ten " * 20}
    abort = Generation.abort

    async def failing_once(generation):
        monkeypatch.setattr(Generation, "abort", abort)
        raise OSError("once")

    async def respond(request):
        tasks.extend(asyncio.create_task(request.generate("Once", LONG).whole()) for _ in range(3))
        while len(frontend.dispatch.streams()) < 3:
            await asyncio.sleep(0.01)
        monkeypatch.setattr(Generation, "abort", failing_once)
        return {}

    async def ask():
        with pytest.raises(OSError, match="once"):
            await call(make_app(respond), Wire(b"{}"), scope_of(PATH, headers=JSON))
        assert len(frontend.dispatch.streams()) == 1
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(ask())


def counting(num_at_once, num_rounds=1):
    """Return a route that responds with the errors of completions."""

    async def respond(request):
        found = []
        for _ in range(num_rounds):
            asked = [
                request.generate("Once", SamplingParams(max_tokens=5)) for _ in range(num_at_once)
            ]
            results = await asyncio.gather(*(a.whole() for a in asked), return_exceptions=True)
            found += [each.name if isinstance(each, HTTPError) else "" for each in results]
        return found

    return respond


@pytest.mark.parametrize(
    ("limits", "at_once", "rounds", "num_refused"),
    [
        ({"max_concurrent": 1}, 5, 1, 4),
        ({"max_concurrent": 3}, 5, 1, 2),
        ({"max_concurrent": 1}, 1, 5, 0),
        ({"max_concurrent": 2}, 2, 3, 0),
        ({"requests_per_minute": 3}, 5, 1, 2),
        ({"requests_per_minute": 3}, 1, 5, 2),
        ({}, 5, 2, 0),
    ],
)
def test_limits_of_the_key_count_each_completion(make_app, limits, at_once, rounds, num_refused):
    accounts = Accounts(KeyRing((make_key("a", "sk-a", KeyLimits(**limits)),), ()))
    app = make_app(counting(at_once, rounds), accounts)
    wire, _ = keyed(app, "sk-a")
    assert wire.status == 200, wire.body
    assert wire.json().count("rate_limit_exceeded") == num_refused
    assert len([each for each in wire.json() if not each]) == at_once * rounds - num_refused
    (account,) = accounts.of_keys()
    assert account.num_running == 0
    assert account.usage.num_requests == at_once * rounds - num_refused
    assert account.usage.num_refused == num_refused


def test_a_completion_that_a_limit_refuses_is_a_429_with_the_time_to_wait(make_app):
    accounts = Accounts(KeyRing((make_key("a", "sk-a", KeyLimits(requests_per_minute=1)),), ()))

    async def respond(request):
        await request.generate("Once").whole()
        return (await request.generate("Once").whole())[0].text

    refused, _ = keyed(make_app(respond, accounts), "sk-a")
    assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")
    assert int(refused.headers["retry-after"]) > 0
