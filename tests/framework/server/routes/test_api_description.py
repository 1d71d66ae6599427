"""The API description is valid OpenAPI, and says of every route what the server does."""

import json
import sys

import pytest
from asgi_parts import get, post
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate

from quire.config import ServerSettings
from quire.server.app import create_app


@pytest.fixture
def app(frontend):
    return create_app(frontend, ServerSettings(), list)


@pytest.fixture
def document(app):
    return get(app, "/openapi.json").json()


def _validator(document, name):
    """Return a validator of one of the document's schemas."""
    return Draft202012Validator({**document, "$ref": f"#/components/schemas/{name}"})


def test_it_is_valid_openapi(document):
    validate(document)


def test_it_has_every_route_but_itself_and_the_pages(app, document):
    described = {
        (path, method.upper()) for path, of_path in document["paths"].items() for method in of_path
    }
    served = {(route.path.replace(":path", ""), route.method) for route in app.operations}
    assert served == described | {(path, "GET") for path in ("/openapi.json", "/ui", "/docs")}


def test_operations_have_a_summary_and_a_name_of_their_own(document):
    operations = [o for of_path in document["paths"].values() for o in of_path.values()]
    end = "." if sys.flags.optimize < 2 else ""  # without docstrings it is method and path
    assert all(each["summary"] and each["summary"].endswith(end) for each in operations)
    assert len({operation["operationId"] for operation in operations}) == len(operations)


def test_parameters_of_a_query_are_described(document):
    items = document["paths"]["/v1/responses/{response_id}/input_items"]["get"]["parameters"]
    found = {each["name"]: each for each in items if each["in"] == "query"}
    assert set(found) == {"limit", "order", "after", "before", "include"}
    assert found["limit"]["schema"] == {
        "type": "integer", "minimum": 1, "maximum": 100, "default": 20,
        "description": "Largest number of items.",
    }  # fmt: skip


def test_only_the_health_checks_need_no_key(document):
    without_key = [
        path
        for path, of_path in document["paths"].items()
        if not all("security" in operation for operation in of_path.values())
    ]
    assert without_key == ["/livez", "/readyz"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_response_is_as_described(app, document, path):
    chat = {"messages": [{"role": "user", "content": "x"}]}
    body = chat if "chat" in path else {"prompt": "x"}
    operation = document["paths"][path]["post"]
    sent = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    _validator(document, sent.rpartition("/")[2]).validate(body)
    returned = operation["responses"]["200"]["content"]
    schema = returned["application/json"]["schema"]["$ref"].rpartition("/")[2]
    _validator(document, schema).validate(post(app, path, **body).json())
    event = returned["text/event-stream"]["schema"]["$ref"].rpartition("/")[2]
    stream = post(app, path, **body, stream=True).body.decode()
    events = [line[6:] for line in stream.splitlines() if line.startswith("data: {")]
    assert events
    for each in events:
        _validator(document, event).validate(json.loads(each))


def test_a_response_of_anthropics_api_is_as_described(app, document):
    path, hi = "/v1/messages", [{"role": "user", "content": "x"}]
    body = {"messages": hi, "max_tokens": 9}
    operation = document["paths"][path]["post"]
    _validator(document, "MessagesBody").validate(body)
    returned = operation["responses"]["200"]["content"]
    assert returned["application/json"]["schema"]["$ref"].endswith("/Message")
    _validator(document, "Message").validate(post(app, path, **body).json())
    error = operation["responses"]["default"]["content"]["application/json"]["schema"]["$ref"]
    _validator(document, error.rpartition("/")[2]).validate(post(app, path).json())
    event = Draft202012Validator({**document, **returned["text/event-stream"]["schema"]})
    stream = post(app, path, **body, stream=True).body.decode()
    found = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: ")]
    assert len(found) > 4
    for each in found:
        event.validate(each)


def test_a_body_has_no_other_fields_than_those_described(document):
    schemas = document["components"]["schemas"]
    bodies = [
        operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        for of_path in document["paths"].values()
        for operation in of_path.values()
        if "requestBody" in operation
    ]
    assert len(bodies) == len({*bodies}) > 4
    for name in [*(body.rpartition("/")[2] for body in bodies), "StreamOptions"]:
        assert schemas[name]["additionalProperties"] is False, name


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_field_that_is_not_described_is_refused(app, document, path):
    chat = {"messages": [{"role": "user", "content": "x"}]}
    body = (chat if "chat" in path else {"prompt": "x"}) | {"temprature": 1}
    sent = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert not _validator(document, sent["$ref"].rpartition("/")[2]).is_valid(body)
    assert post(app, path, **body).status == 400


@pytest.mark.parametrize("fields", [{}, {"stream": True}])
def test_responses_are_as_described(app, document, fields):
    operation = document["paths"]["/v1/responses"]["post"]["responses"]["200"]["content"]
    text = post(app, "/v1/responses", input="x", **fields).body.decode()
    if not fields:
        schema = operation["application/json"]["schema"]["$ref"].rpartition("/")[2]
        _validator(document, schema).validate(json.loads(text))
        return
    events = operation["text/event-stream"]["schema"]["oneOf"]
    names = {
        kind: name
        for name in (event["$ref"].rpartition("/")[2] for event in events)
        for kind in document["components"]["schemas"][name]["properties"]["type"]["enum"]
    }
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    for event in map(json.loads, lines):
        _validator(document, names[event["type"]]).validate(event)
    assert len(names) == 25
    assert len(lines) > 8


def test_an_error_is_as_described(app, document):
    _validator(document, "ErrorBody").validate(post(app, "/v1/completions").json())


@pytest.mark.parametrize("name", ["CompletionBody", "ChatBody", "MessagesBody"])
def test_bodies_have_the_fields_of_samplers_with_their_bounds(document, name):
    warmth = document["components"]["schemas"][name]["properties"]["warmth"]
    validator = Draft202012Validator(warmth)
    assert [validator.is_valid(value) for value in (0.5, None, 2.5, "0.5")] == [
        True, True, False, False,
    ]  # fmt: skip


def test_metrics_are_described_as_the_text_that_they_are(app, document):
    content = document["paths"]["/metrics"]["get"]["responses"]["200"]["content"]
    assert content == {"text/plain": {"schema": {"type": "string"}}}
    assert get(app, "/metrics").headers["content-type"].startswith("text/plain")
