"""The same choice of tools over all APIs forces the same calls, and shows the same tools."""

import pytest
from asgi_parts import post

from quire.config import ServerSettings
from quire.server.app import create_app

HI = [{"role": "user", "content": "Hi"}]
NAMES = ("f", "g")


def typed(name):
    return {"type": "function", "name": name}


def nested(name):
    return {"type": "function", "function": {"name": name}}


def allowed(mode):
    return (
        {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [nested("g")]}},
        {"type": "allowed_tools", "mode": mode, "tools": [typed("g")]},
    )


CHOICES = {  # chat's, responses', messages', the tools that are shown, those that are forced
    "none": ("none", "none", {"type": "none"}, (), None),
    "auto": ("auto", "auto", {"type": "auto"}, NAMES, None),
    "absent": (None, None, None, NAMES, None),
    "required": ("required", "required", {"type": "any"}, NAMES, NAMES),
    "named": (nested("g"), typed("g"), {"type": "tool", "name": "g"}, ("g",), ("g",)),
    "allowed": (*allowed("auto"), None, ("g",), None),
    "allowed, required": (*allowed("required"), None, ("g",), ("g",)),
}


@pytest.fixture
def asked(frontend, core, tokenizer):
    """Post a request; return the tools that its prompt shows, and the calls that are forced."""
    app = create_app(frontend, ServerSettings(), list)

    def run(path, **fields):
        given = {name: value for name, value in fields.items() if value is not None}
        wire = post(app, path, **given)
        assert wire.status == 200, wire.body
        request = core.requests[-1]
        prompt = tokenizer.decode(request.token_ids)
        shown = tuple(name for name in NAMES if f"{name}(" in prompt)
        constraint = request.params.structured_outputs
        if constraint is None:
            return shown, None, None
        calls = constraint.calls
        assert calls.triggers == ()
        return shown, tuple(shape.tool for shape in calls.shapes), calls.separator

    return run


@pytest.mark.parametrize("is_parallel", [None, True, False])
@pytest.mark.parametrize("choice", CHOICES.values(), ids=list(CHOICES))
def test_a_choice_of_tools_means_the_same_over_all_apis(asked, choice, is_parallel):
    chat, responses, messages, shown, forced = choice
    may_repeat = is_parallel is not False and not (isinstance(chat, dict) and chat == nested("g"))
    separator = "" if forced and may_repeat else None
    wanted = shown, forced, separator

    tools = [{"type": "function", "function": {"name": name}} for name in NAMES]
    fields = {"tools": tools, "tool_choice": chat, "parallel_tool_calls": is_parallel}
    assert asked("/v1/chat/completions", messages=HI, **fields) == wanted

    fields = {"tools": [*map(typed, NAMES)], "tool_choice": responses}
    fields["parallel_tool_calls"] = is_parallel
    assert asked("/v1/responses", input="Hi", **fields) == wanted

    if chat is None or messages is not None:
        if is_parallel is not None and messages != {"type": "none"}:
            messages = (messages or {"type": "auto"}) | {
                "disable_parallel_tool_use": not is_parallel
            }
        fields = {"tools": [{"name": n, "input_schema": {}} for n in NAMES]}
        fields["tool_choice"] = messages
        assert asked("/v1/messages", messages=HI, max_tokens=9, **fields) == wanted

    if chat is None and is_parallel is None:
        assert asked("/api/chat", messages=HI, tools=tools, stream=False) == wanted
