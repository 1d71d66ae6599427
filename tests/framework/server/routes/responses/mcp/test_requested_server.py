"""Tool servers as requests name them: what is refused, and which calls need approval."""

import httpx
import pytest
from server_parts import start_server, stop_servers

from quire.errors import InvalidRequestError, UnknownFieldError
from quire.frontend.unknown_fields import UnknownFields
from quire.server.routes.responses.mcp.requested_server import requested_servers
from quire.server.tool_servers.remote_tool import RemoteTool

READER = RemoteTool("read", None, {}, {"readOnlyHint": True})
WRITER = RemoteTool("write", None, {})
STRICT = UnknownFields()


def server(**fields):
    tool = {"type": "mcp", "server_label": "files"} | fields
    return requested_servers([{"type": "function", "name": "f"}, tool], ["files"], STRICT)[0]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, (True, True)),
        ("always", (True, True)),
        ("never", (False, False)),
        ({}, (True, True)),
        ({"never": {"read_only": True}}, (False, True)),
        ({"never": {"tool_names": ["read"]}}, (False, True)),
        ({"always": {"tool_names": ["write"]}}, (False, True)),
        ({"always": {"read_only": False}, "never": {"tool_names": ["write"]}}, (True, True)),
    ],
)
def test_calls_need_approval_unless_the_request_says_otherwise(given, expected):
    found = server(require_approval=given)
    assert (found.needs_approval(READER), found.needs_approval(WRITER)) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, (True, True)),
        (["read"], (True, False)),
        ([], (False, False)),
        ({"read_only": False}, (False, True)),
        ({"tool_names": ["read", "write"], "read_only": True}, (True, False)),
    ],
)
def test_a_request_allows_some_tools(given, expected):
    allowed = server(allowed_tools=given).allowed
    assert (allowed.matches(READER), allowed.matches(WRITER)) == expected


@pytest.mark.parametrize("name", ["server_url", "connector_id", "tunnel_id", "authorization"])
def test_an_address_of_the_client_is_refused(name):
    with pytest.raises(InvalidRequestError, match="only to the tool servers that") as failed:
        server(**{name: "http://127.0.0.1:9/mcp"})
    assert failed.value.param == f"tools[1].{name}"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"headers": {"a": "b"}}, "headers"),
        ({"server_label": "other"}, "server_label"),
        ({"server_label": None}, "server_label"),
        ({"server_label": ["files"]}, "server_label"),
        ({"require_approval": "sometimes"}, "require_approval"),
        ({"require_approval": {"always": 3}}, "require_approval.always"),
        (
            {"require_approval": {"never": {"tool_names": "read"}}},
            "require_approval.never.tool_names",
        ),
        ({"allowed_tools": {"read_only": "yes"}}, "allowed_tools.read_only"),
        ({"allowed_tools": [1]}, "allowed_tools"),
        ({"defer_loading": True}, "defer_loading"),
    ],
)
def test_what_is_wrong_is_named_by_its_path(fields, param):
    with pytest.raises(InvalidRequestError) as failed:
        server(**fields)
    assert failed.value.param == f"tools[1].{param}"


def test_a_field_that_does_not_exist_is_refused():
    with pytest.raises(UnknownFieldError) as failed:
        server(require_aproval="never")
    assert failed.value.param == "tools[1].require_aproval"


def test_a_server_is_named_once():
    tool = {"type": "mcp", "server_label": "files"}
    with pytest.raises(InvalidRequestError, match="twice"):
        requested_servers([tool, tool], ["files"], STRICT)


def test_a_server_without_tool_servers_says_how_to_list_them(frontend, core):
    served = start_server(core, frontend)
    try:
        body = {"input": "Hi", "tools": [{"type": "mcp", "server_label": "files"}]}
        response = httpx.post(f"{served.url}/v1/responses", json=body)
    finally:
        stop_servers([served])
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tools[0].type"
    assert "--tool-server" in response.json()["error"]["message"]
