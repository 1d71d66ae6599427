"""What OpenAI's client sees of /v1/chat/completions."""

import json
from collections import Counter

import httpx
import openai
import pytest
from pydantic import BaseModel

from quire.frontend.chat.parsing.completion_parsers import CompletionParsers

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object"}}}


def ask(client, text="Who are you?", **fields):
    return client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": text}], **fields
    )


def stream(client, text="Who are you?", **fields):
    return list(ask(client, text, stream=True, **fields))


def joined(chunks):
    """Put the pieces of one streamed completion together, as a client does."""
    whole = {"content": "", "reasoning": "", "calls": {}, "finish": None, "logprobs": []}
    for chunk in chunks:
        for choice in chunk.choices:
            whole["content"] += choice.delta.content or ""
            whole["reasoning"] += (choice.delta.model_extra or {}).get("reasoning_content", "")
            if choice.logprobs:
                whole["logprobs"] += [token.model_dump() for token in choice.logprobs.content]
            for call in choice.delta.tool_calls or []:
                name, arguments = whole["calls"].get(call.index, ("", ""))
                name += call.function.name or ""
                whole["calls"][call.index] = (name, arguments + (call.function.arguments or ""))
            whole["finish"] = choice.finish_reason or whole["finish"]
    return whole


def test_a_question_gets_a_completion(client, served):
    response = ask(client, max_completion_tokens=50)
    assert response.choices[0].message.content == "I am a script."
    assert response.choices[0].message.role == "assistant"
    assert response.choices[0].finish_reason == "stop"
    assert response.model == "demo"
    assert response.id.startswith("chatcmpl-")
    request = served.core.requests[0]
    assert request.max_tokens == 50
    prompt = served.frontend.tokenizer.decode(request.token_ids, skip_special_tokens=False)
    assert prompt.endswith("Who are you?<|im_end|>\n<|im_start|>assistant\n")
    assert response.usage.prompt_tokens == len(request.token_ids)
    num_tokens = len(served.frontend.tokenizer.encode("I am a script.")) + 1  # and the end
    assert response.usage.completion_tokens == num_tokens
    assert response.usage.total_tokens == len(request.token_ids) + num_tokens


@pytest.mark.parametrize("tokens_per_step", [1, 3, 100])
@pytest.mark.parametrize("is_parallel", [True, False])
@pytest.mark.parametrize("call", ['get_weather {"city": "Rome"}', "get_weather {}"])
def test_the_clients_events_end_each_call(client, served, call, is_parallel, tokens_per_step):
    served.texts.by_prompt = {"Go": f"Sure: [[{call}]]"}
    served.core.tokens_per_step = tokens_per_step
    sent = client.chat.completions.stream(
        model="demo",
        messages=[{"role": "user", "content": "Go"}],
        tools=[WEATHER],
        parallel_tool_calls=is_parallel,
        stream_options={"include_usage": True},
        extra_body={"return_token_ids": True},
    )
    with sent as events:
        kept = list(events)
    ended = [each for each in kept if each.type == "tool_calls.function.arguments.done"]
    assert [(each.name, each.arguments) for each in ended] == [tuple(call.split(" ", 1))]
    chunks = [each.chunk for each in kept if each.type == "chunk"]
    last, usage = chunks[-2:]
    assert (last.choices[0].delta.tool_calls, last.choices[0].finish_reason) == (None, "tool_calls")
    extras = [choice.model_extra for chunk in chunks for choice in chunk.choices]
    num_tokens = sum(len(extra.get("token_ids", ())) for extra in extras)
    assert num_tokens == usage.usage.completion_tokens


def test_without_max_tokens_a_completion_may_fill_the_models_length(client, served):
    ask(client)
    request = served.core.requests[0]
    assert request.max_tokens == served.frontend.max_model_len - len(request.token_ids)


def test_a_stream_has_one_role_one_finish_and_one_identity(client):
    chunks = stream(client)
    roles = [chunk.choices[0].delta.role for chunk in chunks]
    assert roles == ["assistant"] + [None] * (len(chunks) - 1)
    finishes = [chunk.choices[0].finish_reason for chunk in chunks]
    assert finishes == [None] * (len(chunks) - 1) + ["stop"]
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    assert len(chunks) > 4
    assert all(chunk.usage is None for chunk in chunks)


@pytest.mark.parametrize(
    "reply",
    [
        "plain words",
        'Ünïcode, 日本語, 👩‍👩‍👧‍👦 and 🇩🇪 flags \\ " \n\t end',
        "<t>let me think</t>the answer",
        '[[get_weather {"city": "Köln 🌧"}]]',
        'Sure: [[get_weather {"city": "a"}]][[get_time {}]]',
        '<t>hm</t>text [[get_weather {"city": "b"}]]',
        '[[get_weather {"city": "never ends',
        "a [ bracket",
    ],
)
@pytest.mark.parametrize("tokens_per_step", [1, 3, 100])
def test_streamed_and_full_completions_are_equal(client, served, reply, tokens_per_step):
    served.texts.by_prompt = {"Go": reply}
    served.core.tokens_per_step = tokens_per_step
    fields = {"tools": [WEATHER, CLOCK], "logprobs": True, "top_logprobs": 2}
    response = ask(client, "Go", **fields).choices[0]
    pieces = joined(stream(client, "Go", **fields))
    assert pieces["content"] == (response.message.content or "")
    assert pieces["reasoning"] == (response.message.model_extra or {}).get("reasoning_content", "")
    calls = [(c.function.name, c.function.arguments) for c in response.message.tool_calls or []]
    assert [call for call in pieces["calls"].values() if call[1].endswith("}")] == calls
    assert pieces["finish"] == response.finish_reason
    assert pieces["logprobs"] == [token.model_dump() for token in response.logprobs.content]
    assert pieces["content"] or pieces["calls"]


def test_thinking_stands_in_fields_of_its_own(client, served):
    served.texts.by_prompt = {"Think": "<t>two and two</t>four"}
    message = ask(client, "Think").choices[0].message
    assert message.content == "four"
    assert message.reasoning_content == "two and two"
    assert message.reasoning == "two and two"


def test_calls_have_ids_names_and_arguments(client, served):
    served.texts.by_prompt = {"Weather": '[[get_weather {"city": "Rome"}]][[get_time {}]]'}
    choice = ask(client, "Weather", tools=[WEATHER, CLOCK]).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    first, second = choice.message.tool_calls
    assert first.type == "function"
    assert first.id != second.id
    assert first.id.startswith("call_")
    assert (first.function.name, json.loads(first.function.arguments)) == (
        "get_weather",
        {"city": "Rome"},
    )
    prompt = served.frontend.tokenizer.decode(served.core.requests[0].token_ids)
    assert "get_weather(city: string): The weather of a city" in prompt


def test_a_streamed_call_says_its_id_type_and_name_once(client, served):
    served.texts.by_prompt = {"Weather": '[[get_weather {"city": "Rome"}]][[get_time {}]]'}
    chunks = stream(client, "Weather", tools=[WEATHER, CLOCK])
    calls = [c for chunk in chunks for c in chunk.choices[0].delta.tool_calls or []]
    for index in (0, 1):
        own = [call for call in calls if call.index == index]
        assert [call.id is not None for call in own] == [True] + [False] * (len(own) - 1)
        assert [call.type for call in own[1:]] == [None] * (len(own) - 1)
        assert sum(call.function.name is not None for call in own) == 1
    assert len([call for call in calls if call.index == 0]) > 2


def test_the_clients_stream_helper_reads_calls(client, served):
    served.texts.by_prompt = {"Weather": '[[get_weather {"city": "Rome"}]]'}
    with client.chat.completions.stream(
        model="demo", messages=[{"role": "user", "content": "Weather"}], tools=[WEATHER]
    ) as events:
        for _ in events:
            pass
        message = events.get_final_completion().choices[0].message
    assert message.tool_calls[0].function.arguments == '{"city": "Rome"}'


def test_a_call_cut_off_by_max_tokens_ended_by_length(client, served):
    served.texts.by_prompt = {"Weather": '[[get_weather {"city": "Rome"}]]'}
    choice = ask(client, "Weather", tools=[WEATHER], max_tokens=8).choices[0]
    assert choice.finish_reason == "length"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls
    arguments = call.function.arguments
    assert (call.function.name, arguments) == ("get_weather", '{"city": "Rome"}'[: len(arguments)])
    assert 0 < len(arguments) < len('{"city": "Rome"}')
    streamed = joined(stream(client, "Weather", tools=[WEATHER], max_tokens=8))
    assert (streamed["finish"], streamed["content"]) == ("length", "")
    assert streamed["calls"] == {0: ("get_weather", arguments)}


def test_a_call_that_breaks_off_is_no_call(client, served):
    served.texts.by_prompt = {"Weather": "[[get_weather {"}
    choice = ask(client, "Weather", tools=[WEATHER]).choices[0]
    assert choice.finish_reason == "stop"
    assert choice.message.tool_calls is None
    assert choice.message.content == "[[get_weather {"
    assert joined(stream(client, "Weather", tools=[WEATHER]))["finish"] == "stop"


def test_the_call_of_a_custom_tool_is_cut_alike_in_a_stream(client, served):
    text = '[[run {"input": "ls -l and more"}]]'
    served.texts.by_prompt = {"List": text}
    tools = [{"type": "custom", "custom": {"name": "run"}}]
    for limit in range(1, len(served.frontend.tokenizer.encode(text))):
        choice = ask(client, "List", tools=tools, max_tokens=limit).choices[0]
        body = {"messages": [{"role": "user", "content": "List"}], "tools": tools}
        url = f"{served.url}/v1/chat/completions"
        sent = httpx.post(url, json=body | {"stream": True, "max_tokens": limit}).text
        chunks = [json.loads(line[6:]) for line in sent.splitlines() if line.startswith("data: {")]
        pieces = [p for c in chunks for p in c["choices"][0]["delta"].get("tool_calls", ())]
        streamed = "".join(piece["custom"]["input"] for piece in pieces)
        (call,) = choice.message.tool_calls or [None]
        assert (call is None) == (not pieces)
        assert "ls -l and more".startswith(streamed)
        assert streamed == (call.custom.input if call else "")
        assert choice.finish_reason == chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert streamed == "ls -l and more"


def test_without_tools_calls_are_not_parsed(client, served):
    served.texts.by_prompt = {"Weather": "[[get_weather {}]]"}
    for fields in ({}, {"tools": [WEATHER], "tool_choice": "none"}):
        message = ask(client, "Weather", **fields).choices[0].message
        assert message.content == "[[get_weather {}]]"
        assert message.tool_calls is None
    prompts = [served.frontend.tokenizer.decode(r.token_ids) for r in served.core.requests]
    assert "get_weather(" not in prompts[1]


@pytest.mark.parametrize(
    ("choice", "allowed", "separator"),
    [
        ("required", ["get_weather", "get_time"], ""),
        ({"type": "function", "function": {"name": "get_time"}}, ["get_time"], None),
    ],
)
def test_a_forced_call_is_a_grammar_of_the_tool_parser(client, served, choice, allowed, separator):
    served.texts.by_prompt = {"Time": "[[get_time {}]]"}
    fields = {"tools": [WEATHER, CLOCK], "tool_choice": choice}
    response = ask(client, "Time", **fields).choices[0]
    assert response.message.tool_calls[0].function.name == "get_time"
    is_named = isinstance(choice, dict) and choice["type"] == "function"
    assert response.finish_reason == ("stop" if is_named else "tool_calls")
    ends = [c.choices[0].finish_reason for c in stream(client, "Time", **fields)]
    assert ends[-1] == response.finish_reason
    calls = served.core.requests[0].params.structured_outputs.calls
    assert [shape.tool for shape in calls.shapes] == allowed
    assert calls.separator == separator


def test_without_parallel_calls_only_the_first_is_kept(client, served):
    served.texts.by_prompt = {"Weather": '[[get_weather {"city": "Rome"}]][[get_time {}]]'}
    fields = {"tools": [WEATHER, CLOCK], "parallel_tool_calls": False}
    response = ask(client, "Weather", **fields).choices[0]
    assert [call.function.name for call in response.message.tool_calls] == ["get_weather"]
    pieces = joined(stream(client, "Weather", **fields))
    assert list(pieces["calls"]) == [0]


@pytest.mark.parametrize("tokens_per_step", [1, 3, 100])
@pytest.mark.parametrize("streamed", [False, True])
def test_without_parallel_calls_the_first_one_ends_the_generation(
    client, served, wait_for, streamed, tokens_per_step
):
    call = '[[get_weather {"city": "Rome"}]]'
    served.texts.by_prompt = {"Weather": [f"Sure: {call} and more", "no call", call * 9]}
    served.core.tokens_per_step = tokens_per_step
    fields = {"tools": [WEATHER], "parallel_tool_calls": False, "n": 3, "stream": streamed}
    if streamed:
        chunks = [*ask(client, "Weather", **fields, stream_options={"include_usage": True})]
        texts = [
            "".join(
                c.choices[0].delta.content or ""
                for c in chunks
                if c.choices and c.choices[0].index == i
            )
            for i in range(3)
        ]
        ends = {c.choices[0].index: c.choices[0].finish_reason for c in chunks if c.choices}
        usage = chunks[-1].usage
    else:
        response = ask(client, "Weather", **fields)
        texts = [choice.message.content or "" for choice in response.choices]
        ends = {choice.index: choice.finish_reason for choice in response.choices}
        usage = response.usage
    assert texts == ["Sure: ", "no call", ""]
    assert ends == {0: "tool_calls", 1: "stop", 2: "tool_calls"}
    requests = served.core.requests
    if tokens_per_step < 100:
        wait_for(lambda: len(served.core.aborted) == 2 and not served.core.running)
        encode = served.frontend.tokenizer.encode
        most = [len(encode(t)) + tokens_per_step for t in (f"Sure: {call}", "no call", call)]
        assert usage.completion_tokens <= sum(most)
    assert len(requests) == 3
    assert served.frontend.dispatch.streams() == []


@pytest.mark.parametrize("tokens_per_step", [1, 4, 100])
def test_a_custom_tool_is_called_with_a_text(client, served, tokens_per_step):
    command = 'ls -l "a"\n🌧'
    call_text = "[[run " + json.dumps({"input": command}) + "]]"
    served.texts.by_prompt = {"List": f"{call_text}[[get_time {{}}]]", "total 0": "Nothing."}
    served.core.tokens_per_step = tokens_per_step
    tools = [{"type": "custom", "custom": {"name": "run", "description": "Runs it"}}, CLOCK]
    choice = ask(client, "List", tools=tools).choices[0]
    call, other = choice.message.tool_calls
    assert (call.type, call.custom.name, call.custom.input) == ("custom", "run", command)
    assert (other.type, other.function.arguments, choice.finish_reason) == (
        "function", "{}", "tool_calls",
    )  # fmt: skip
    body = {"messages": [{"role": "user", "content": "List"}], "tools": tools, "stream": True}
    sent = httpx.post(f"{served.url}/v1/chat/completions", json=body).text  # the client has no type
    chunks = [json.loads(line[6:]) for line in sent.splitlines() if line.startswith("data: {")]
    pieces = [p for c in chunks for p in c["choices"][0]["delta"].get("tool_calls", ())]
    mine = [piece for piece in pieces if piece["index"] == 0]
    assert (mine[0]["type"], mine[0]["custom"]["name"]) == ("custom", "run")
    assert [*filter(lambda piece: "id" in piece or "function" in piece, mine)] == mine[:1]
    assert "".join(piece["custom"]["input"] for piece in mine) == command
    assert [piece["type"] for piece in pieces if "id" in piece] == ["custom", "function"]
    question = {"role": "user", "content": "List"}
    result = {"role": "tool", "tool_call_id": call.id, "content": "total 0"}
    second = client.chat.completions.create(
        model="demo", messages=[question, choice.message, result], tools=tools
    )
    assert second.choices[0].message.content == "Nothing."
    prompt = served.frontend.tokenizer.decode(served.core.requests[-1].token_ids)
    assert json.dumps({"input": command}, ensure_ascii=False) in prompt


def test_tools_without_a_parser_of_their_calls_are_refused(serve):
    served = serve(parsers=CompletionParsers())
    url = f"{served.url}/v1/chat/completions"
    body = {"messages": [{"role": "user", "content": "Hi"}], "tools": [WEATHER]}
    error = httpx.post(url, json=body).json()["error"]
    assert (error["param"], error["code"]) == ("tools", "invalid_request")
    assert "--tool-call-parser" in error["message"]
    assert httpx.post(url, json=body | {"tool_choice": "none"}).status_code == 200
    assert httpx.post(url, json=body | {"tools": []}).status_code == 200
    assert httpx.post(url, json=body | {"tool_choice": "required"}).status_code == 400


def test_a_second_turn_shows_the_call_and_its_result(client, served):
    call = {"id": "call_1", "type": "function"}
    call["function"] = {"name": "get_weather", "arguments": '{"city": "Rome"}'}
    client.chat.completions.create(
        model="demo",
        tools=[WEATHER],
        messages=[
            {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
        ],
    )
    prompt = served.frontend.tokenizer.decode(served.core.requests[0].token_ids)
    assert '"arguments": {"city": "Rome"}' in prompt
    assert "<tool_response>\nrain" in prompt
    assert "Be brief." in prompt


class Person(BaseModel):
    name: str
    age: int


def test_a_schema_reaches_the_engine_and_the_completion_is_parsed(client, served):
    served.texts.by_prompt = {"Who": '{"name": "Ada", "age": 36}'}
    response = client.chat.completions.parse(
        model="demo",
        messages=[{"role": "user", "content": "Who?"}],
        response_format=Person,
    )
    assert response.choices[0].message.parsed == Person(name="Ada", age=36)
    schema = served.core.requests[0].params.structured_outputs.json
    assert schema["required"] == ["name", "age"]


def test_json_object_and_our_own_constraints_reach_the_engine(client, served):
    ask(client, response_format={"type": "json_object"})
    ask(client, response_format={"type": "text"})
    ask(client, extra_body={"structured_outputs": {"choice": ["yes", "no"]}})
    constraints = [request.params.structured_outputs for request in served.core.requests]
    assert constraints[0].json_object
    assert constraints[1] is None
    assert constraints[2].choice == ("yes", "no")


def test_n_completions_have_indexes_and_one_finish_each(client, served):
    served.texts.by_prompt = {"Pick": ["red", "a much longer green", "blue"]}
    response = ask(client, "Pick", n=3, seed=7)
    texts = {choice.index: choice.message.content for choice in response.choices}
    assert texts == {0: "red", 1: "a much longer green", 2: "blue"}
    assert {request.seed for request in served.core.requests} == {7}
    prompt_tokens = response.usage.prompt_tokens
    assert prompt_tokens == len(served.core.requests[0].token_ids)
    chunks = stream(client, "Pick", n=3, seed=7)
    finishes = Counter(c.index for k in chunks for c in k.choices if c.finish_reason)
    assert finishes == {0: 1, 1: 1, 2: 1}
    streamed = dict.fromkeys(range(3), "")
    for choice in (c for chunk in chunks for c in chunk.choices):
        streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts


def test_usage_comes_in_a_last_chunk_without_choices(client):
    chunks = stream(client, stream_options={"include_usage": True})
    assert chunks[-1].choices == []
    assert chunks[-1].usage.total_tokens == (
        chunks[-1].usage.prompt_tokens + chunks[-1].usage.completion_tokens
    )
    assert chunks[-1].usage == ask(client).usage
    assert all(chunk.usage is None and chunk.choices for chunk in chunks[:-1])


def test_usage_is_null_in_other_chunks_and_absent_unless_asked_for(served):
    body = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}
    url = f"{served.url}/v1/chat/completions"
    plain = httpx.post(url, json=body).text
    with_usage = httpx.post(url, json={**body, "stream_options": {"include_usage": True}}).text
    assert '"usage"' not in plain
    events = [json.loads(line[6:]) for line in with_usage.split("\n\n")[:-2]]
    assert [event["usage"] is None for event in events] == [True] * (len(events) - 1) + [False]
    assert plain.endswith("data: [DONE]\n\n")


def test_logprobs_are_finite_and_have_bytes(client, served):
    served.texts.by_prompt = {"Say": "é!"}
    content = ask(client, "Say", logprobs=True, top_logprobs=3).choices[0].logprobs.content
    octets = b"".join(bytes(token.bytes) for token in content)
    assert octets.startswith("é!".encode())
    assert all(len(token.top_logprobs) == 3 for token in content)
    assert content[0].top_logprobs[0].token == content[0].token
    assert [top.logprob for top in content[0].top_logprobs] == [-0.25, -1.0, -2.0]
    assert min(t.logprob for token in content for t in token.top_logprobs) >= -9999.0
    assert ask(client, "Say", logprobs=True).choices[0].logprobs.content[0].top_logprobs == []
    assert ask(client, "Say").choices[0].logprobs is None


def test_sampling_fields_reach_the_engine(client, served):
    ask(
        client,
        temperature=0,
        top_p=0.5,
        seed=3,
        stop=["script"],
        extra_body={
            "top_k": 5,
            "min_p": 0.1,
            "min_tokens": 2,
            "ignore_eos": False,
            "skip_special_tokens": False,
            "stop_token_ids": [7],
            "warmth": 1.5,
            "cache_salt": "tenant-1",
            "priority": -3,
            "timeout_s": 2.5,
        },
    )
    request = served.core.requests[0]
    params = request.params
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0, 0.5, 5, 0.1)
    assert (params.min_tokens, params.stop, params.stop_token_ids) == (2, ("script",), (7,))
    assert not params.skip_special_tokens
    assert request.params.extra_args["warmth"] == 1.5
    assert request.cache_salt == "tenant-1"
    assert (request.priority, request.timeout_s) == (-3, 2.5)


@pytest.mark.parametrize("prompt_chunk", [3, 1000])
def test_prompt_logprobs_are_those_of_the_rendered_prompt(client, served, prompt_chunk):
    served.core.prompt_chunk = prompt_chunk
    fields = {"n": 2, "extra_body": {"prompt_logprobs": 1}}
    whole = ask(client, **fields).prompt_logprobs
    ids = served.core.requests[0].token_ids
    assert len(ids) > 6
    assert whole[0] is None
    assert [next(iter(row)) for row in whole[1:]] == [str(token_id) for token_id in ids[1:]]
    assert whole[1]["300"] == {
        "logprob": -1.0,
        "rank": 1,
        "decoded_token": served.frontend.tokenizer.token_text(300),
    }
    chunks = stream(client, **fields)
    streamed = [chunk.model_extra.get("prompt_logprobs") or [] for chunk in chunks]
    assert [row for rows in streamed for row in rows] == whole
    assert len([rows for rows in streamed if rows]) == -(-(len(ids) - 1) // prompt_chunk)
    pieces = [c.delta.content or "" for chunk in chunks for c in chunk.choices if c.index == 0]
    assert "".join(pieces) == "I am a script."
    assert not hasattr(ask(client), "prompt_logprobs")


def test_cached_tokens_are_those_of_the_prompt_counted_once(client, served):
    served.core.num_cached_tokens = 4
    for response in (ask(client), ask(client, n=3)):
        assert response.usage.prompt_tokens_details.cached_tokens == 4
    last = stream(client, n=3, stream_options={"include_usage": True})[-1]
    assert last.usage.prompt_tokens_details.cached_tokens == 4


def test_a_stop_string_ends_the_completion_and_is_named(client, served):
    choice = ask(client, stop="script").choices[0]
    assert choice.message.content == "I am a "
    assert choice.finish_reason == "stop"
    assert choice.stop_reason == "script"
    assert joined(stream(client, stop="script"))["content"] == "I am a "
    whole = ask(client, stop="script", extra_body={"include_stop_str_in_output": True})
    assert whole.choices[0].message.content == "I am a script"


def test_an_adapter_is_a_model_name(client, served):
    response = client.chat.completions.create(
        model="pirate", messages=[{"role": "user", "content": "Ahoy"}]
    )
    assert response.model == "pirate"
    assert served.core.requests[0].adapter.name == "pirate"


def test_what_clients_say_about_themselves_changes_nothing(client, served):
    client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": "Hi"}],
        user="me",
        metadata={"a": "b"},
        store=True,
        service_tier="auto",
        presence_penalty=0,
        frequency_penalty=0.0,
        logit_bias={},
        prompt_cache_key="k",
        safety_identifier="s",
        verbosity="low",
        modalities=["text"],
    )
    ask(client, "Hi")
    first, second = served.core.requests
    assert (first.token_ids, first.params) == (second.token_ids, second.params)


@pytest.mark.parametrize(
    ("fields", "param", "meant"),
    [
        ({"temprature": 0.5}, "temprature", "temperature"),
        ({"evil\r\nset-cookie: a=b": 2}, "evil\r\nset-cookie: a=b", None),
        ({"stream_options": {"include_usag": 1}}, "stream_options.include_usag", "include_usage"),
        ({"tools": [{**WEATHER, "foo": 1}]}, "tools[0].foo", None),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "params": {}}}]},
            "tools[0].function.params",
            "parameters",
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {}, "foo": 1},
                }
            },
            "response_format.json_schema.foo",
            None,
        ),
        ({"structured_outputs": {"regexp": "a"}}, "structured_outputs.regexp", "regex"),
        ({"repetition_detection": {"min_coun": 2}}, "repetition_detection.min_coun", "min_count"),
        (
            {"messages": [{"role": "user", "content": "x", "mood": 1}]},
            "messages[0].mood",
            None,
        ),
        (
            {"chat_template_kwargs": {"enable_thinkin": False}},
            "chat_template_kwargs.enable_thinkin",
            "enable_thinking",
        ),
        ({"suffixes": "x"}, "suffixes", None),
    ],
)
def test_a_field_that_does_not_exist_is_refused_as_openai_refuses_it(client, fields, param, meant):
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            ask(client, stream=stream, extra_body=fields)
        error = caught.value
        assert (error.type, error.code, error.param) == (
            "invalid_request_error",
            "unknown_parameter",
            param,
        )
        assert "there is no request field" in error.message
        assert meant is None or f"did you mean {meant!r}?" in error.message


def test_a_lenient_server_leaves_out_what_does_not_exist(serve, caplog):
    served = serve(lenient_fields=True)
    body = {
        "messages": [{"role": "user", "content": "Hi", "mood": 1}],
        "tools": [{**WEATHER, "foo": 1}],
        "temprature": 1,
        "stream": True,
        "stream_options": {"include_usag": True},
        "chat_template_kwargs": {"enable_thinkin": False},
    }
    for _ in range(2):
        response = httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=20)
        assert response.status_code == 200, response.text
    logged = [message for message in caplog.messages if "there is no request field" in message]
    named = (
        "temprature",
        "stream_options.include_usag",
        "tools[0].foo",
        "chat_template_kwargs.enable_thinkin",
        "messages[0].mood",
    )
    assert [next(name for name in named if repr(name) in line) for line in logged] == list(named)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"extra_body": {"reasoning_effort": "weird"}}, "reasoning_effort"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"frequency_penalty": -1}, "frequency_penalty"),
        ({"logit_bias": {"5": 10}}, "logit_bias"),
        ({"extra_body": {"repetition_penalty": 1.1}}, "repetition_penalty"),
        ({"extra_body": {"guided_json": {}}}, "guided_json"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "logprobs"),
        ({"tool_choice": "required"}, "tools"),
        ({"tools": [WEATHER], "tool_choice": "sometimes"}, "tool_choice"),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice",
        ),
        ({"tools": [WEATHER, WEATHER]}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
        ),
        (
            {
                "extra_body": {"structured_outputs": {"regex": "a"}},
                "tools": [WEATHER],
                "tool_choice": "required",
            },
            "structured_outputs",
        ),
        (
            {"extra_body": {"structured_outputs": {"regex": "a", "choice": ["b"]}}},
            "structured_outputs",
        ),
        (
            {"extra_body": {"structured_outputs": {"regex": "a", "xyz": 1}}},
            "structured_outputs.xyz",
        ),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"extra_body": {"chat_template_kwargs": {"messages": []}}}, "chat_template_kwargs"),
        (
            {"extra_body": {"chat_template_kwargs": {"add_generation_prompt": False}}},
            "chat_template_kwargs",
        ),
        ({"extra_body": {"priority": 2**31}}, "priority"),
        ({"extra_body": {"priority": 0.5}}, "priority"),
        ({"extra_body": {"timeout_s": 0}}, "timeout_s"),
        ({"extra_body": {"timeout_s": "1"}}, "timeout_s"),
        ({"extra_body": {"prompt_logprobs": 21}}, "prompt_logprobs"),
        ({"extra_body": {"cache_salt": "a\nb"}}, "cache_salt"),
        ({"extra_body": {"cache_salt": "x" * 129}}, "cache_salt"),
        ({"extra_body": {"warmth": 9}}, "warmth"),
        ({"extra_body": {"cache_salt": ""}}, "cache_salt"),
        ({"n": 0}, "n"),
        ({"n": 10**6}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"stop": [""]}, "stop"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(client, fields, param):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, **fields)
    assert caught.value.param == param
    assert param.split(".")[-1].split("[")[0] in caught.value.message
    assert caught.value.type == "invalid_request_error"


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ([{"role": "robot", "content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        (
            [{"role": "assistant", "content": "x", "refusal": "I will not"}],
            "messages[0].refusal",
        ),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            "messages[0].content[0]",
        ),
    ],
)
def test_a_wrong_message_is_named_by_its_path(client, messages, param):
    for is_stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model="demo", messages=messages, stream=is_stream)
        assert caught.value.param == param


def test_a_prompt_that_is_too_long_is_refused_with_openais_code(client):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, "word " * 2000)
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("messages", "what"),
    [
        ([{"role": "user", "content": "a"}] * 1025, "1025 messages"),
        ([{"role": "user", "content": "<|im_" * 10_000}], "at least"),
        ([{"role": "user", "content": "<|im_" * 1_000}] * 10, "at least"),
    ],
)
def test_a_conversation_that_is_far_too_long_is_refused_before_it_is_rendered(
    served, monkeypatch, messages, what
):
    def render(*_, **__):
        raise AssertionError("rendered")

    monkeypatch.setattr(type(served.frontend.chat_template), "render", render)
    for path in ("/v1/chat/completions", "/tokenize"):
        answer = httpx.post(f"{served.url}{path}", json={"messages": messages})
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
        assert what in error["message"]


def test_a_conversation_that_is_truncated_may_be_longer(client):
    messages = [{"role": "user", "content": "<|im_" * 10_000}]
    fields = {"truncate_prompt_tokens": 5}
    response = client.chat.completions.create(model="demo", messages=messages, extra_body=fields)
    assert response.usage.prompt_tokens == 5


def test_a_completion_may_continue_the_last_message(client, served):
    served.texts.by_prompt = {"One, two,": " three"}
    messages = [{"role": "user", "content": "Count"}, {"role": "assistant", "content": "One, two,"}]
    response = client.chat.completions.create(
        model="demo", messages=messages, extra_body={"continue_final_message": True}
    )
    assert response.choices[0].message.content == " three"
    prompt = served.frontend.tokenizer.decode(
        served.core.requests[0].token_ids, skip_special_tokens=False
    )
    assert prompt.endswith("assistant\nOne, two,")
    both = {"continue_final_message": True, "add_generation_prompt": True}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="demo", messages=messages, extra_body=both)
    assert caught.value.param == "continue_final_message"


@pytest.mark.parametrize("adds", [None, True, False])
def test_the_start_of_the_assistants_turn_may_be_left_out(client, served, adds):
    ask(client, extra_body={"add_generation_prompt": adds})
    prompt = served.frontend.tokenizer.decode(
        served.core.requests[0].token_ids, skip_special_tokens=False
    )
    assert prompt.endswith("<|im_start|>assistant\n") is (adds is not False)
    assert prompt.endswith("<|im_end|>\n") is (adds is False)


def test_token_ids_are_those_of_the_prompt_and_of_the_completion(client, served):
    served.texts.by_prompt = {"Weather": '<t>hm</t>Sure [[get_weather {"city": "Rome"}]]'}
    fields = {"tools": [WEATHER], "n": 2, "extra_body": {"return_token_ids": True}}
    response = ask(client, "Weather", **fields)
    request = served.core.requests[0]
    assert response.prompt_token_ids == list(request.token_ids)
    text = served.texts.by_prompt["Weather"]
    wanted = [*served.frontend.tokenizer.encode(text), *served.frontend.tokenizer.eos_token_ids[:1]]
    assert [choice.token_ids for choice in response.choices] == [wanted] * 2
    chunks = stream(client, "Weather", **fields)
    prompts = [chunk.model_extra.get("prompt_token_ids") for chunk in chunks]
    assert prompts == [response.prompt_token_ids] + [None] * (len(chunks) - 1)
    streamed = {0: [], 1: []}
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        streamed[choice.index] += choice.model_extra.get("token_ids", [])
    assert streamed == {0: wanted, 1: wanted}
    plain = httpx.post(
        f"{served.url}/v1/chat/completions",
        json={"messages": [{"role": "user", "content": "Weather"}], "return_token_ids": False},
    )
    assert "token_ids" not in plain.text


def test_logprobs_may_name_tokens_by_their_ids(client, served):
    served.texts.by_prompt = {"Say": "é!"}
    fields = {"logprobs": True, "top_logprobs": 2}
    plain = ask(client, "Say", **fields).choices[0].logprobs.content
    named = ask(client, "Say", **fields, extra_body={"return_tokens_as_token_ids": True})
    ids = [*served.frontend.tokenizer.encode("é!"), *served.frontend.tokenizer.eos_token_ids[:1]]
    content = named.choices[0].logprobs.content
    assert [token.token for token in content] == [f"token_id:{token_id}" for token_id in ids]
    assert [token.bytes for token in content] == [token.bytes for token in plain]
    assert content[0].top_logprobs[0].token == content[0].token


def test_the_thinking_may_be_left_out(client, served):
    served.texts.by_prompt = {"Think": "<t>two and two</t>four"}
    fields = {"extra_body": {"include_reasoning": False}}
    message = ask(client, "Think", **fields).choices[0].message
    assert message.content == "four"
    assert not {"reasoning", "reasoning_content"} & message.model_extra.keys()
    pieces = joined(stream(client, "Think", **fields))
    assert (pieces["content"], pieces["reasoning"]) == ("four", "")
    assert ask(client, "Think", extra_body={"include_reasoning": True}).choices[0].message.reasoning


@pytest.mark.parametrize("is_shown", [True, False])
def test_the_tokens_of_the_thinking_are_counted_as_in_a_response(client, served, is_shown):
    served.texts.by_prompt = {"Think": "<t>two and two</t>four"}
    num = len(served.frontend.tokenizer.encode("two and two", add_special_tokens=False))
    response = client.responses.create(model="demo", input="Think")
    assert response.usage.output_tokens_details.reasoning_tokens == num
    fields = {"extra_body": {"include_reasoning": is_shown}}
    whole = ask(client, "Think", **fields)
    assert whole.usage.completion_tokens_details.reasoning_tokens == num
    several = ask(client, "Think", n=2, **fields)
    assert several.usage.completion_tokens_details.reasoning_tokens == 2 * num
    for options in ({"include_usage": True}, {"continuous_usage_stats": True}):
        options |= {"include_usage": True}
        last = stream(client, "Think", stream_options=options, **fields)[-1]
        assert last.usage == whole.usage
    assert ask(client).usage.completion_tokens_details.reasoning_tokens == 0


def test_a_model_without_a_reasoning_parser_counts_no_thinking(serve):
    served = serve(parsers=CompletionParsers())
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    usage = httpx.post(f"{served.url}/v1/chat/completions", json=body).json()["usage"]
    assert "completion_tokens_details" not in usage


def test_each_event_may_have_the_token_counts_so_far(client, served):
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = stream(client, n=2, stream_options=options)
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts)
    assert len(set(counts)) > 4
    assert chunks[-1].choices == []
    assert chunks[-1].usage == ask(client, n=2).usage
    assert {chunk.usage.prompt_tokens for chunk in chunks} == {chunks[-1].usage.prompt_tokens}
    with pytest.raises(openai.BadRequestError) as caught:
        stream(client, stream_options={"continuous_usage_stats": True})
    assert caught.value.param == "stream_options.continuous_usage_stats"


def test_an_event_may_have_several_tokens(client, served):
    served.texts.by_prompt = {"Count": "one two three four five six seven"}
    fields = {"n": 2, "logprobs": True, "stream_options": {"include_usage": True}}
    single = stream(client, "Count", **fields)
    wide = stream(client, "Count", **fields, extra_body={"stream_interval": 5})
    assert len(wide) < len(single) / 2
    assert len(joined(wide)["logprobs"]) == len(joined(single)["logprobs"]) > 0
    assert wide[-1].usage == single[-1].usage
    for index in (0, 1):
        texts = [
            "".join(c.delta.content or "" for k in chunks for c in k.choices if c.index == index)
            for chunks in (single, wide)
        ]
        assert texts == ["one two three four five six seven"] * 2


def test_the_clients_parse_helper_gets_arguments_of_its_type(client, served):
    served.texts.by_prompt = {"Who": '[[Person {"name": "Ada", "age": 36}]]'}
    response = client.chat.completions.parse(
        model="demo",
        messages=[{"role": "user", "content": "Who?"}],
        tools=[openai.pydantic_function_tool(Person)],
    )
    (call,) = response.choices[0].message.tool_calls
    assert call.function.parsed_arguments == Person(name="Ada", age=36)
    calls = served.core.requests[0].params.structured_outputs.calls
    assert calls.triggers == ("[[",)
    assert calls.shapes[0].pieces[1].schema["required"] == ["name", "age"]
