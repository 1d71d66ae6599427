"""What the model is offered of tool servers: names that differ, and choices among them."""

import asyncio
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.errors import InvalidRequestError, UnknownFieldError
from quire.frontend.unknown_fields import UnknownFields
from quire.server.routes.responses.mcp.offered_tools import (
    OfferedServer,
    OfferedTools,
    offered_tools,
)
from quire.server.routes.responses.mcp.requested_server import requested_servers
from quire.server.tool_servers.remote_tool import RemoteTool
from quire.server.wire.http_errors import HTTPError

A = {"type": "mcp", "server_label": "a"}
NAMES = st.lists(st.text("ab/_é.", min_size=1, max_size=80), max_size=5, unique=True)


def offered(tools, functions=(), error=None):
    """Return what is offered of servers, whose tools are given by label."""
    sent = [{"type": "mcp", "server_label": label} for label in tools]
    servers = [
        OfferedServer(
            requested, tuple(RemoteTool(name, None, {}) for name in tools[requested.label]), error
        )
        for requested in requested_servers(sent, [*tools], UnknownFields())
    ]
    return OfferedTools(servers, functions)


def names(found):
    return [tool["function"]["name"] for tool in found.chat_tools()]


def choice(found, given):
    return found.choice_of_functions(given, UnknownFields())


def test_a_tool_has_its_own_name_if_nothing_else_has_it():
    assert names(offered({"a": ["read", "write"], "b": ["read"]}, ["write"])) == [
        "a_read", "a_write", "b_read",
    ]  # fmt: skip
    assert names(offered({"a": ["read"], "b": ["list/all"]})) == ["read", "list_all"]


@given(st.dictionaries(st.sampled_from(["a", "b", "a_a"]), NAMES, max_size=3), NAMES)
def test_all_names_are_those_that_functions_may_have_and_differ(tools, functions):
    functions = [name for name in functions if re.fullmatch("[a-z_.]{1,64}", name)]
    found = offered(tools, functions)
    given_names = names(found)
    assert len({*given_names, *functions}) == len(given_names) + len(functions)
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name) for name in given_names)
    for label, own in tools.items():
        for name in own:
            function = found.function_names[label, name]
            assert found.by_function(function).tool.name == name
            assert found.allows(label, name)


def test_a_choice_of_tools_names_functions():
    found = offered({"a": ["read", "write"], "b": ["read"]})
    function = {"type": "function", "name": "b_read"}
    assert choice(found, "auto") == "auto"
    assert choice(found, function) == function
    chosen = {"type": "mcp", "server_label": "b", "name": "read"}
    assert choice(found, chosen) == function
    several = choice(found, {"type": "mcp", "server_label": "a"})
    assert (several["mode"], [tool["name"] for tool in several["tools"]]) == (
        "required", ["a_read", "write"],
    )  # fmt: skip
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [chosen, function]}
    assert choice(found, allowed)["tools"] == [function, function]


def test_a_server_that_is_out_of_use_says_so_when_it_is_chosen():
    found = offered({"a": []}, error="'a' fell over")
    chosen = {"type": "mcp", "server_label": "a"}
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [chosen]}
    for sent, where in (
        (chosen, "tool_choice"), (allowed, "tool_choice.tools[0]"), ("required", "tool_choice"),
    ):  # fmt: skip
        with pytest.raises(HTTPError, match="'a' fell over; try again later") as failed:
            choice(found, sent)
        error = failed.value
        assert (error.status, error.name, error.param) == (503, "tool_server_error", where)
        assert "retry-after" in error.headers
    assert found.allows("a", "anything")
    assert not found.allows("b", "anything")


def test_of_allowed_tools_a_server_that_is_out_of_use_is_left_out():
    down = OfferedServer(requested_servers([A], ["a"], UnknownFields())[0], (), "'a' fell over")
    up = offered({"b": ["read"]}).servers[0]
    found = OfferedTools([down, up], ["f"])
    function = {"type": "function", "name": "f"}
    for mode in ("auto", "required"):
        allowed = {"type": "allowed_tools", "mode": mode, "tools": [A, function]}
        assert choice(found, allowed)["tools"] == [function]
        allowed["tools"] = [A, {"type": "mcp", "server_label": "b"}]
        assert choice(found, allowed)["tools"] == [{"type": "function", "name": "read"}]
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [A]}
    assert choice(found, allowed) == "none"
    assert choice(found, allowed | {"mode": "any"})["mode"] == "any"
    with pytest.raises(HTTPError, match="asks for a call, and 'a' fell over"):
        choice(found, allowed | {"mode": "required"})


def test_without_a_server_that_is_out_of_use_a_call_of_something_else_may_be_required():
    assert choice(offered({"a": []}, ["find"], error="it fell over"), "required") == "required"
    assert choice(offered({"a": []}, error="it fell over"), "auto") == "auto"
    assert choice(offered({"a": []}), "required") == "required"
    assert choice(OfferedTools((), ()), "required") == "required"
    with pytest.raises(InvalidRequestError, match="'a': it offers no tool 'x' that is allowed"):
        choice(offered({"a": ["y"]}), {"type": "mcp", "server_label": "a", "name": "x"})


def test_a_field_of_a_choice_that_does_not_exist_is_refused():
    found, chosen = offered({"a": ["read"]}), {"type": "mcp", "server_label": "a", "nam": "read"}
    for sent, param in (
        (chosen, "tool_choice.nam"),
        ({"type": "allowed_tools", "tools": [chosen]}, "tool_choice.tools[0].nam"),
    ):
        with pytest.raises(UnknownFieldError) as failed:
            choice(found, sent)
        assert failed.value.param == param


class ManyTools:
    """Servers with more tools than a request may have."""

    async def tools(self, label):
        return tuple(RemoteTool(f"t{i}", None, {}) for i in range(129))


def test_a_server_with_too_many_tools_is_told_with_what_helps():
    sent = {"type": "mcp", "server_label": "a"}
    requested = requested_servers([sent], ["a"], UnknownFields())
    with pytest.raises(InvalidRequestError, match=r"'a' offers 129 tools.*allowed_tools"):
        asyncio.run(offered_tools(requested, ManyTools(), []))
    some = requested_servers([sent | {"allowed_tools": ["t3"]}], ["a"], UnknownFields())
    assert names(asyncio.run(offered_tools(some, ManyTools(), []))) == ["t3"]
