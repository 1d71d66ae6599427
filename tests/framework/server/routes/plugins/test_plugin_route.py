"""Checks that the host makes before a route is called, and the description of a route."""

import asyncio
import json

import msgspec
import pytest
from asgi_parts import JSON, Wire, call, post, scope_of
from openapi_spec_validator import validate
from route_parts import PATH, RouteOf, loaded

from quire.config import ServerSettings
from quire.server.app import create_app
from quire.server.routes.plugins.route_structs import strict_body


class ChatBody(msgspec.Struct):
    """A body with the name of one of quire's."""

    words: list[str]


class Counted(msgspec.Struct):
    """A count."""

    num_words: int


class Count(RouteOf):
    """Count words."""

    body = ChatBody
    response = ChatBody
    event = Counted


@pytest.fixture
def make_app(frontend):
    def make(*routes, **settings):
        return create_app(frontend, ServerSettings(**settings), list, routes=routes)

    return make


def ask(app, path=PATH, method="POST", body=None, query=b"", key=None, headers=JSON):
    given = headers | ({"authorization": f"Bearer {key}"} if key else {})
    scope = scope_of(path, method, given, query_string=query)
    return asyncio.run(call(app, Wire(json.dumps(body or {}).encode()), scope))


def count(request):
    return Counted(len(request.body.words))


def test_a_route_gets_its_body_as_its_struct(make_app):
    app = make_app(loaded(Count(count)))
    assert post(app, PATH, words=["a", "b"]).json() == {"num_words": 2}


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, None, "invalid_request"),
        ({"words": "a"}, "words", "invalid_request"),
        ({"words": [], "wrods": []}, "wrods", "unknown_parameter"),
        ([], None, "invalid_request"),
        ({"words": ["a"] * 200_000, "w": [[]] * 100_001}, None, "invalid_request"),
    ],
)
def test_a_body_that_is_not_the_struct_never_reaches_the_route(make_app, body, param, code):
    def respond(request):
        raise AssertionError("called")

    app = make_app(loaded(Count(respond)))
    refused = ask(app, body=body)
    assert (refused.status, refused.error["param"], refused.error["code"]) == (400, param, code)


def test_a_body_of_another_type_or_too_large_is_refused(make_app):
    app = make_app(loaded(Count(count)), max_body_bytes=1000, max_received_bytes=1000)
    assert ask(app, headers={"content-type": "text/plain"}).status == 415
    assert ask(app, body={"words": ["a" * 2000]}).status == 413


def test_lenient_fields_are_left_out(make_app):
    app = make_app(loaded(Count(count)), lenient_fields=True)
    assert ask(app, body={"words": [], "wrods": []}).json() == {"num_words": 0}


def test_a_route_asks_for_the_kind_of_key_that_it_declares(make_app):
    keys = {"api_key": ("sk-user",), "admin_key": ("sk-root",), "host": "0.0.0.0"}
    routes = loaded(Count(count)), loaded(Count(count), path="/acme/root", is_admin=True)
    app, body = make_app(*routes, **keys), {"words": []}
    of_users = {key: ask(app, body=body, key=key).status for key in (None, "sk-user", "sk-root")}
    assert of_users == {None: 401, "sk-user": 200, "sk-root": 403}
    path = "/acme/root"
    of_admins = {k: ask(app, path, body=body, key=k).status for k in (None, "sk-user", "sk-root")}
    assert of_admins == {None: 401, "sk-user": 403, "sk-root": 200}


def test_other_methods_of_its_path_are_not_allowed(make_app):
    app = make_app(loaded(Count(count)))
    refused = ask(app, method="GET")
    assert (refused.status, refused.headers["allow"]) == (405, "POST")


def test_a_route_without_a_body_reads_the_query(make_app):
    class Query(RouteOf):
        body = None

    def respond(request):
        return {"query": request.query, "body": request.body}

    app = make_app(loaded(Query(respond), method="GET", generates=False))
    found = ask(app, method="GET", query=b"a=1&b=x%20y&a=2")
    assert found.json() == {"query": {"a": "2", "b": "x y"}, "body": None}


def test_the_description_tells_equal_names_of_structs_apart(make_app):
    app = make_app(loaded(Count(count)))
    document = ask(app, "/openapi.json", "GET").json()
    validate(document)
    schemas = document["components"]["schemas"]

    def fields(reference):
        return set(schemas[reference["$ref"].rpartition("/")[2]]["properties"])

    operation = document["paths"][PATH]["post"]
    assert operation["summary"] == "Count words."
    content = operation["responses"]["200"]["content"]
    assert fields(content["application/json"]["schema"]) == {"words"}
    assert fields(content["text/event-stream"]["schema"]) == {"num_words"}
    assert fields(operation["requestBody"]["content"]["application/json"]["schema"]) == {"words"}
    own = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]
    assert {"messages", "warmth"} <= fields(own["application/json"]["schema"])


def test_routes_that_share_structs_and_paths_are_described_each_by_a_name_of_its_own(make_app):
    class Get(RouteOf):
        body = None
        response = ChatBody

    app = make_app(
        loaded(Count(count), name="try_post"),
        loaded(Get(count), name="try_get", method="GET", generates=False),
        loaded(Count(count), name="dash", path="/acme/a-b"),
        loaded(Count(count), name="slash", path="/acme/a/b"),
        loaded(Count(count), name="livez", path="/acme/livez"),
    )
    document = ask(app, "/openapi.json", "GET").json()
    validate(document)
    operations = [each for of_path in document["paths"].values() for each in of_path.values()]
    ids = [each["operationId"] for each in operations]
    assert len(ids) == len({*ids})
    assert {"route_try_post", "route_try_get", "route_dash", "route_slash"} < {*ids}


def test_a_strict_struct_stays_itself_and_another_one_is_derived():
    class Strict(msgspec.Struct, forbid_unknown_fields=True):
        x: int

    assert strict_body(Strict) is Strict
    derived = strict_body(ChatBody)
    assert strict_body(ChatBody) is derived
    assert issubclass(derived, ChatBody)
    assert derived.__struct_config__.forbid_unknown_fields
