"""Stored responses and those in the background, as OpenAI's client sees them."""

import json
import re
import time

import httpx
import openai
import pytest
from asgi_parts import post

from quire.config import ServerSettings
from quire.messages import ErrorReport
from quire.server.app import create_app


def ask(client, question="Who are you?", **fields):
    return client.responses.create(model="demo", input=question, **fields)


def wait_for_end(client, response, statuses=None):
    """Retrieve a response until it has ended; note its statuses until then."""
    deadline = time.monotonic() + 10
    while response.status in ("queued", "in_progress") and time.monotonic() < deadline:
        (set() if statuses is None else statuses).add(response.status)
        time.sleep(0.01)
        response = client.responses.retrieve(response.id)
    return response


def prompt_of(served, index=-1):
    ids = served.core.requests[index].token_ids
    return served.frontend.tokenizer.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_is_found_as_it_was_sent_until_it_is_deleted(client, stream):
    response = [*ask(client, stream=True)][-1].response if stream else ask(client)
    assert response.store is True
    assert client.responses.retrieve(response.id).to_dict() == response.to_dict()
    client.responses.delete(response.id)
    for call in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(openai.NotFoundError) as failed:
            call(response.id)
        assert failed.value.code == "response_not_found"


def test_a_response_that_shall_not_be_stored_is_not(client):
    response = ask(client, store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)


def test_a_chain_of_responses_is_one_conversation(client, served):
    served.texts.by_prompt = {"One": "<t>hm</t>Uno.", "Two": "Due.", "Three": "Tre."}
    first = ask(client, "One")
    second = ask(client, "Two", previous_response_id=first.id)
    client.responses.delete(first.id)
    third = ask(client, "Three", previous_response_id=second.id)
    assert third.previous_response_id == second.id
    prompt = prompt_of(served)
    places = [prompt.index(word) for word in ("One", "Uno.", "Two", "Due.", "Three")]
    assert places == sorted(places)


def test_the_input_of_a_response_is_a_list_of_items_with_ids(client):
    first = ask(client, "One")
    second = ask(
        client,
        [
            {"role": "user", "content": [{"type": "input_text", "text": "Two"}]},
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "three"},
        ],
        previous_response_id=first.id,
    )
    items = [*client.responses.input_items.list(second.id, order="asc")]
    assert [item.type for item in items] == [
        "message", "message", "message", "reasoning", "function_call", "function_call_output",
    ]  # fmt: skip
    assert items[0].content[0].text == "One"
    assert items[1].content[0].text == "I am a script."
    assert len({item.id for item in items}) == len(items)
    pages = client.responses.input_items.list(second.id, limit=2)
    assert [item.id for item in pages] == [item.id for item in reversed(items)]
    between = {"after": items[1].id, "before": items[4].id, "order": "asc"}
    response = httpx.get(f"{client.base_url}responses/{second.id}/input_items", params=between)
    assert [item["id"] for item in response.json()["data"]] == [items[2].id, items[3].id]
    page = client.responses.input_items.list(second.id, limit=2)
    assert (len(page.data), page.has_more) == (2, True)


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=no", "limit"),
        ("limit=101", "limit"),
        ("limit=0", "limit"),
        ("limit=", "limit"),
        ("order=up", "order"),
        ("after=x", "after"),
        ("before=x", "before"),
        ("include=bogus", "include[0]"),
        ("include[]=bogus", "include[0]"),
    ],
)
def test_a_wrong_page_is_named(client, served, query, param):
    response = ask(client)
    url = f"{served.url}/v1/responses/{response.id}/input_items?{query}"
    answer = httpx.get(url)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("starting_after=3", "starting_after"),
        ("stream=true&starting_after=-1", "starting_after"),
        ("include[]=message.output_text.logprobs&include[]=bogus", "include[1]"),
        ("stream=perhaps", "stream"),
    ],
)
def test_a_wrong_way_to_retrieve_is_named(client, served, query, param):
    answer = httpx.get(f"{served.url}/v1/responses/{ask(client).id}?{query}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_what_to_include_may_be_named(client):
    response = ask(client)
    found = client.responses.retrieve(response.id, include=["message.output_text.logprobs"])
    assert found.to_dict() == response.to_dict()


def test_a_response_in_the_background_needs_no_connection(client, served):
    served.core.step_s = 0.02
    response = ask(client, background=True)
    assert (response.status, response.background, response.output) == ("queued", True, [])
    with pytest.raises(openai.BadRequestError) as failed:
        ask(client, previous_response_id=response.id)
    assert "still generated" in failed.value.body["message"]
    statuses = set()
    ended = wait_for_end(client, response, statuses)
    assert statuses <= {"queued", "in_progress"}
    assert "in_progress" in statuses
    assert (ended.status, ended.output_text) == ("completed", "I am a script.")
    assert ended.usage.output_tokens > 0
    assert ask(client, "More", previous_response_id=ended.id).status == "completed"


@pytest.mark.parametrize("stream", [False, True])
def test_a_cancelled_response_is_aborted_in_the_engine(client, served, stream, wait_for):
    served.core.step_s = 0.05
    fields = {"background": True, "extra_body": {"ignore_eos": True}, "stream": stream}
    response = ask(client, max_output_tokens=400, **fields)
    if stream:
        response = next(iter(response)).response
    assert wait_for(lambda: served.core.requests)
    cancelled = client.responses.cancel(response.id)
    assert cancelled.status == "cancelled"
    assert wait_for(lambda: served.core.aborted)
    assert client.responses.retrieve(response.id).status == "cancelled"
    assert client.responses.cancel(response.id).status == "cancelled"


def test_a_deleted_response_is_aborted_in_the_engine(client, served, wait_for):
    served.core.step_s = 0.05
    response = ask(client, background=True, extra_body={"ignore_eos": True})
    assert wait_for(lambda: served.core.requests)
    client.responses.delete(response.id)
    assert wait_for(lambda: served.core.aborted)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)


def test_only_a_response_in_the_background_can_be_cancelled(client):
    with pytest.raises(openai.BadRequestError) as failed:
        client.responses.cancel(ask(client).id)
    assert "background: true" in failed.value.body["message"]


def test_a_stream_in_the_background_can_be_read_again_from_any_event(client, served):
    served.core.step_s = 0.02
    events = []
    for event in ask(client, background=True, stream=True):
        events.append(event)
        if len(events) == 5:
            break  # the connection is closed
    response_id, seen = events[0].response.id, events[-1].sequence_number
    rest = [*client.responses.retrieve(response_id, stream=True, starting_after=seen)]
    numbers = [event.sequence_number for event in events + rest]
    assert numbers == list(range(len(numbers)))
    assert rest[-1].type == "response.completed"
    assert rest[-1].response.output_text == "I am a script."
    whole = [*client.responses.retrieve(response_id, stream=True)]
    assert [event.to_dict() for event in whole] == [event.to_dict() for event in events + rest]


def test_a_stream_that_was_not_stored_is_refused(client):
    response = ask(client)
    with pytest.raises(openai.BadRequestError) as failed:
        [*client.responses.retrieve(response.id, stream=True)]
    assert failed.value.param == "stream"


@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_in_the_background_is_the_status_of_the_response(client, served, stream):
    served.texts.by_prompt = {"Go": ("some words", ErrorReport("request_failed", "it broke"))}
    made = ask(client, "Go", background=True, stream=stream)
    if stream:
        *_, last = made
        assert last.type == "response.failed"
        made = last.response
    response = wait_for_end(client, made)
    assert (response.status, response.error.code) == ("failed", "server_error")
    assert response.error.message == "it broke"


def test_a_server_without_a_store_says_so(serve):
    served = serve(responses_store_max=0)
    url = f"{served.url}/v1/responses"
    response = httpx.post(url, json={"input": "Hi"}).json()
    assert response["store"] is False
    for name, value in (
        ("store", True), ("background", True), ("previous_response_id", "resp_x"),
    ):  # fmt: skip
        error = httpx.post(url, json={"input": "Hi", name: value}).json()["error"]
        assert error["param"] == name
        assert "--responses-store-max 0" in error["message"]
    assert httpx.get(f"{url}/{response['id']}").status_code == 404


def test_several_front_ends_store_nothing(frontend):
    app = create_app(frontend, ServerSettings(api_server_count=2), list)
    assert post(app, "/v1/responses", input="Hi").json()["store"] is False
    wire = post(app, "/v1/responses", input="Hi", background=True)
    assert (wire.status, wire.error["param"]) == (400, "background")
    assert "--api-server-count" in wire.error["message"]


def test_a_server_that_drains_waits_for_responses_in_the_background(serve, wait_for):
    served = serve()
    served.core.step_s = 0.05
    with httpx.Client(base_url=served.url) as one:
        made = one.post("/v1/responses", json={"input": "Hi", "background": True}).json()
        assert wait_for(lambda: served.core.requests)
        served.server.stop()
        assert wait_for(lambda: one.get("/readyz").status_code == 503)
        assert one.post("/v1/responses", json={"input": "Hi"}).status_code == 503
        with httpx.Client(base_url=served.url) as other:
            url = f"/v1/responses/{made['id']}"
            assert other.get(url).json()["status"] in ("queued", "in_progress", "completed")
    served.thread.join(10)
    assert not served.thread.is_alive()
    assert served.core.aborted == []


def test_a_response_belongs_to_the_key_that_made_it(serve):
    served = serve(api_key=("sk-one", "sk-two"), admin_key=("sk-root",))
    url = f"{served.url}/v1/responses"
    one, two, root = ({"authorization": f"Bearer {key}"} for key in ("sk-one", "sk-two", "sk-root"))
    made = httpx.post(url, json={"input": "Hi"}, headers=one).json()
    mine, unknown = f"{url}/{made['id']}", f"{url}/resp_unknown"
    for headers in (two, root):
        answer, absent = (httpx.get(each, headers=headers) for each in (mine, unknown))
        assert answer.status_code == absent.status_code == 404
        assert answer.json()["error"]["code"] == absent.json()["error"]["code"]
    assert httpx.delete(mine, headers=two).status_code == 404
    assert httpx.get(f"{mine}/input_items", headers=two).status_code == 404
    body = {"input": "Hi", "previous_response_id": made["id"]}
    assert httpx.post(url, json=body, headers=two).status_code == 400
    assert httpx.get(mine).status_code == 401
    assert httpx.get(mine, headers=one).json() == made


def test_the_same_request_id_in_the_background_is_refused_while_it_runs(client, served):
    served.core.step_s = 0.05
    fields = {"background": True, "extra_body": {"request_id": "job?1"}}
    response = ask(client, **fields)
    assert response.id == "resp_job?1"
    with pytest.raises(openai.ConflictError):
        ask(client, **fields)
    url = f"{served.url}/v1/responses/resp_job%3F1"
    assert httpx.get(url).json()["id"] == response.id
    assert json.loads(httpx.delete(url).content)["deleted"] is True


def test_an_id_that_is_taken_is_refused_without_background_too(client, served):
    served.core.step_s = 0.05
    fields = {"extra_body": {"request_id": "x"}}
    ask(client, background=True, **fields)
    for _ in range(2):
        with pytest.raises(openai.ConflictError) as failed:
            ask(client, **fields)
        assert failed.value.param == "request_id"
        wait_for_end(client, client.responses.retrieve("resp_x"))
    assert client.responses.retrieve("resp_x").background is True
    assert ask(client, store=False, **fields).id == "resp_x"
    client.responses.delete("resp_x")
    assert ask(client, **fields).store is True


SMALL = 100_000


@pytest.fixture(scope="module")
def small_store(serve):
    return serve(responses_store_max=50, responses_store_max_bytes=SMALL)


@pytest.fixture
def small(small_store):
    """A server with a small store, and its client; nothing is stored afterwards."""
    made = []
    with httpx.Client(base_url=small_store.url, timeout=20) as http:
        http.event_hooks = {"response": [lambda r: (r.read(), made.append(r))]}
        yield small_store, http
        http.event_hooks = {}
        small_store.core.step_s, small_store.core.tokens_per_step = 0.0, 1
        small_store.texts.by_prompt = {}
        for response in made:
            for found in re.findall(r"resp_[0-9a-f]{28}", response.text)[:1]:
                http.delete(f"/v1/responses/{found}")


def create(http, **body):
    return http.post("/v1/responses", json={"input": "Hi"} | body)


def test_what_is_generated_in_the_background_is_limited_in_bytes(small):
    served, http = small
    served.core.step_s = 0.05
    served.texts.by_prompt = {"Hi": "word " * 100}
    statuses = []
    while not statuses or statuses[-1] == 200:
        answer = create(http, background=True, user="u" * 20_000)
        statuses.append(answer.status_code)
    assert (len(statuses), statuses[-1], answer.headers["retry-after"]) == (5, 429, "1")
    assert http.get("/v1/responses/resp_x").status_code == 404


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_says_whether_it_is_stored(small, stream):
    served, http = small
    answer = create(http, stream=stream, user="u" * SMALL)
    response = json.loads(answer.text.split("data: ")[-1])["response"] if stream else answer.json()
    assert (response["status"], response["store"]) == ("completed", False)
    assert http.get(f"/v1/responses/{response['id']}").status_code == 404
    served.core.step_s = 0.05
    served.texts.by_prompt = {"Slow": "word " * 100}
    assert create(http, input="Slow", background=True, user="u" * 80_000).is_success
    assert create(http, user="u" * 30_000).json()["store"] is False


def events_of(text):
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]


def test_a_stream_whose_events_outgrow_the_store_fails_for_all_who_read_it(small):
    served, http = small
    served.texts.by_prompt = {"Hi": "word " * 400}
    events = events_of(create(http, background=True, stream=True, user="u" * 60_000).text)
    last = events[-1]
    assert (last["type"], last["response"]["error"]["code"]) == ("response.failed", "server_error")
    assert "--responses-store-max-bytes" in last["response"]["error"]["message"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert http.get(f"/v1/responses/{last['response']['id']}").json() == last["response"]


def test_a_stream_whose_end_outgrows_the_store_has_its_last_event(small):
    served, http = small
    served.texts.by_prompt = {"Hi": "Wort und noch ein Wort, " * 100}
    served.core.tokens_per_step = 100
    first, _, *others, _ = create(http, background=True, stream=True).text.split("\n\n")[:-1]
    sizes = [len(event.partition("data: ")[2]) for event in (first, *others)]
    user = "u" * (SMALL - sum(sizes) - 64 * (len(sizes) + 1) - 2048 - 100)  # its end adds more
    events = events_of(create(http, background=True, stream=True, user=user).text)
    last = events[-1]
    assert last["response"]["status"] == "incomplete"  # after all tokens of the model
    one = f"/v1/responses/{last['response']['id']}"
    assert http.get(one).json() == last["response"]
    again = http.get(one, params={"stream": True})
    assert (again.status_code, again.json()["error"]["param"]) == (400, "stream")


def test_a_response_that_outgrows_the_store_at_its_end_fails(small, wait_for):
    served, http = small
    served.texts.by_prompt = {"Hi": "Wort und noch ein Wort, " * 100}
    one = f"/v1/responses/{create(http, background=True, user='u' * 97_200).json()['id']}"
    assert wait_for(lambda: http.get(one).json()["status"] == "failed")
    response = http.get(one).json()
    assert (response["output"], response["completed_at"]) == ([], None)
    assert response["error"]["code"] == "server_error"
    assert "too large" in response["error"]["message"]


def test_the_response_is_not_stored_once_more_with_each_event(small):
    _, http = small
    events = events_of(create(http, background=True, stream=True, user="u" * 60_000).text)
    again = http.get(f"/v1/responses/{events[0]['response']['id']}", params={"stream": True})
    assert events_of(again.text) == events
    assert {len(e["response"]["user"]) for e in events if "response" in e} == {60_000}
    assert [e["response"]["status"] for e in events if "response" in e] == [
        "queued", "in_progress", "completed",
    ]  # fmt: skip


def test_readers_of_a_cancelled_stream_get_its_end(client, served):
    served.core.step_s = 0.05
    events = []
    fields = {"extra_body": {"ignore_eos": True}, "max_output_tokens": 400}
    for event in ask(client, background=True, stream=True, **fields):
        events.append(event)
        if len(events) == 5:
            client.responses.cancel(events[0].response.id)
    last = events[-1]
    assert (last.type, last.response.status) == ("response.incomplete", "cancelled")
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-2].type == "response.output_item.done"
    assert events[-2].item.to_dict() == last.response.output[0].to_dict()
    assert events[-2].item.status == "incomplete"
    assert client.responses.retrieve(last.response.id).to_dict() == last.response.to_dict()


def test_the_responses_of_a_key_that_is_renamed_are_gone(serve, tmp_path, wait_for):
    file = tmp_path / "keys.yaml"
    file.write_text("keys:\n  - {key: sk-one, name: one}\n")
    served = serve(api_key_file=str(file))
    url, headers = f"{served.url}/v1/responses", {"authorization": "Bearer sk-one"}
    one = f"{url}/{httpx.post(url, json={'input': 'Hi'}, headers=headers).json()['id']}"
    assert httpx.get(one, headers=headers).is_success
    file.write_text("keys:\n  - {key: sk-one, name: another}\n")
    assert wait_for(lambda: httpx.get(one, headers=headers).status_code == 404)


def test_a_response_in_the_background_counts_as_running_for_its_key(serve, tmp_path, wait_for):
    file = tmp_path / "keys.yaml"
    file.write_text("keys:\n  - {key: sk-one, name: one, max_concurrent: 1}\n")
    served = serve(api_key_file=str(file))
    served.core.step_s = 0.05
    url, headers = f"{served.url}/v1/responses", {"authorization": "Bearer sk-one"}
    made = httpx.post(
        url, json={"input": "Hi", "background": True, "ignore_eos": True}, headers=headers
    ).json()
    refused = httpx.post(url, json={"input": "Hi"}, headers=headers)
    assert refused.status_code == 429
    one = f"{url}/{made['id']}"
    assert httpx.get(one, headers=headers).status_code == 200
    assert httpx.post(f"{one}/cancel", headers=headers).json()["status"] == "cancelled"
    assert wait_for(lambda: httpx.post(url, json={"input": "Hi"}, headers=headers).is_success)
