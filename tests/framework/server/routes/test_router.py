"""A request reaches the operation of its path and method, and no other."""

import asyncio

import pytest
from asgi_parts import Wire, get, scope_of
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse

from quire.errors import InvalidRequestError
from quire.server.http.json_response import json_response
from quire.server.routes.operation import Operation
from quire.server.routes.router import ErrorResponses, HTTPRouter
from quire.server.wire.http_errors import HTTPError


def shows(name):
    async def endpoint(request):
        """Show which operation it is."""
        return PlainTextResponse(f"{name} {request.method} {request.path_params}")

    return endpoint


def fails(error):
    async def endpoint(request):
        """Fail."""
        raise error

    return endpoint


ROUTER = HTTPRouter(
    [
        Operation("/a", shows("read")),
        Operation("/a", shows("list"), "OPTIONS"),
        Operation("/a/{name:path}", shows("one")),
        Operation("/a+b", shows("plus")),
        Operation("/v1.0/{name:path}", shows("dot")),
        Operation("/invalid", fails(InvalidRequestError("a reason", param="x"))),
        Operation("/gone", fails(ClientDisconnect())),
        Operation("/defect", fails(KeyError("/secret/path"))),
    ]
)
APP = ErrorResponses(ROUTER)


def ask(path, method="GET", root_path="", app=APP):
    wire = Wire()
    scope = scope_of(path, method=method) | {"root_path": root_path, "quire_is_admin": False}
    asyncio.run(app(scope, wire.receive, wire.send))
    return wire


@pytest.mark.parametrize(
    ("path", "method", "text"),
    [
        ("/a", "GET", "read GET {}"),
        ("/a", "OPTIONS", "list OPTIONS {}"),
        ("/a/b", "GET", "one GET {'name': 'b'}"),
        ("/a/b/c\n", "GET", "one GET {'name': 'b/c\\n'}"),
        ("/a/", "GET", "one GET {'name': ''}"),
        ("/a+b", "GET", "plus GET {}"),
        ("/v1.0/a", "GET", "dot GET {'name': 'a'}"),
    ],
)
def test_the_operation_of_a_path_and_method_responds(path, method, text):
    wire = ask(path, method)
    assert (wire.status, wire.body.decode()) == (200, text)


def test_head_is_served_by_what_serves_get():
    assert ask("/a", "HEAD").status == 200


@pytest.mark.parametrize("path", ["/A", "/b", "/aab", "", "/", "a", "/a%2fb", "/x/a", "/v1x0/a"])
def test_another_path_is_404(path):
    wire = ask(path)
    assert (wire.status, wire.error["code"]) == (404, "not_found")
    assert wire.error["message"] == f"GET {path}: Not Found"


def test_another_method_is_405_and_says_which_there_are():
    wire = ask("/a", "POST")
    assert (wire.status, wire.error["code"]) == (405, "method_not_allowed")
    assert wire.headers["allow"] == "GET, HEAD, OPTIONS"
    assert ask("/a/b", "PUT").headers["allow"] == "GET, HEAD"


def test_the_path_that_it_is_mounted_at_is_no_part_of_the_path():
    assert ask("/v2/a", root_path="/v2").body == b"read GET {}"
    assert ask("/v2/a").status == 404


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [("/invalid", 400, "invalid_request"), ("/defect", 500, "internal_error")],
)
def test_an_error_is_a_response_without_its_inside(path, status, code):
    wire = ask(path)
    assert (wire.status, wire.error["code"]) == (status, code)
    assert b"secret" not in wire.body


def test_a_client_that_left_gets_a_status_for_the_log():
    assert ask("/gone").status == 499


def test_the_router_alone_lets_errors_through():
    with pytest.raises(InvalidRequestError):
        ask("/invalid", app=ROUTER)
    with pytest.raises(HTTPError, match="Not Found"):
        ask("/nowhere", app=ROUTER)


def test_an_error_behind_the_head_of_a_response_breaks_the_connection():
    async def half(request):
        """Send a head, and fail."""

        async def send_half(scope, receive, send):
            await send({"type": "http.response.start", "status": 200, "headers": []})
            raise KeyError("late")

        return send_half

    with pytest.raises(KeyError, match="late"):
        get(ErrorResponses(HTTPRouter([Operation("/half", half)])), "/half")


def test_it_serves_http_only():
    with pytest.raises(RuntimeError, match="websocket"):
        asyncio.run(ROUTER({"type": "websocket"}, None, None))


def test_a_path_that_spells_a_parameter_is_one_of_its_values():
    async def shown(request):
        """Return the parameter."""
        return json_response(request.path_params)

    router = HTTPRouter([Operation("/things/{name:path}/parts", shown)])
    found = get(ErrorResponses(router), "/things/{name:path}/parts").json()
    assert found == {"name": "{name:path}"}
