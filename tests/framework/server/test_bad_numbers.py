"""A number that no field expects gets a completion, or a 400 with the name of its field."""

import asyncio
import json
from typing import get_args, get_type_hints

import pytest
from asgi_parts import JSON, Wire, call, scope_of

from quire.config import ServerSettings
from quire.server.app import create_app
from quire.server.wire.protocol import ChatBody, CompletionBody

ROUTES = {
    "/v1/completions": (CompletionBody, {"prompt": "Hi", "max_tokens": 1}),
    "/v1/chat/completions": (
        ChatBody,
        {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1},
    ),
}
NO_JSON = ("NaN", "Infinity", "-Infinity", "01", "+1", "0x1", "1e", ".5")
NO_NUMBERS = ("true", "false", '"1"', '""', "[1]", "{}", '"NaN"')
ODD_NUMBERS = (
    "-0.0", "1e308", "-1e308", "5e-324", "1.5", "1e400", "9223372036854775807",
    "9223372036854775808", "-9223372036854775809", "18446744073709551616", "-1", "0",
    "9" * 400,
)  # fmt: skip


def numbers_of(kind):
    """Return the names of the fields that take a number, and nothing else but null."""
    hints = {name: set(get_args(hint) or (hint,)) for name, hint in get_type_hints(kind).items()}
    return [name for name, hint in hints.items() if hint - {type(None)} <= {int, float} and hint]


def with_number(body, name, text):
    """Return a body as JSON, with a field as it is written."""
    others = json.dumps({key: value for key, value in body.items() if key != name})
    return f'{others[:-1]}, "{name}": {text}}}'.encode()


@pytest.fixture(scope="module")
def app(module_frontend):
    return create_app(module_frontend, ServerSettings(), list)


@pytest.fixture(scope="module")
def ask(app):
    def run(path, *bodies):
        async def send():
            return [await call(app, Wire(body), scope_of(path, headers=JSON)) for body in bodies]

        return asyncio.run(send())

    return run


def test_the_numbers_of_both_routes_are_found():
    for kind, _ in ROUTES.values():
        found = numbers_of(kind)
        assert {"n", "seed", "max_tokens", "min_tokens", "priority", "timeout_s"} <= set(found)
        assert len(found) > 8


@pytest.mark.parametrize("path", ROUTES)
def test_what_is_no_json_is_refused(ask, path):
    kind, body = ROUTES[path]
    for name in [*numbers_of(kind), "temperature", "mystery"]:
        texts = [with_number(body, name, text) for text in NO_JSON]
        for wire in ask(path, *texts):
            assert wire.status == 400
            assert "not valid JSON" in wire.error["message"]


@pytest.mark.parametrize("path", ROUTES)
def test_what_is_no_number_is_refused_by_the_name_of_its_field(ask, path):
    kind, body = ROUTES[path]
    for name in [*numbers_of(kind), "temperature", "warmth"]:
        texts = [with_number(body, name, text) for text in NO_NUMBERS]
        for wire, text in zip(ask(path, *texts), NO_NUMBERS, strict=True):
            assert (wire.status, wire.error["param"]) == (400, name), text


@pytest.mark.parametrize("path", ROUTES)
def test_odd_numbers_get_an_answer_or_are_refused_by_the_name_of_their_field(ask, path, core):
    kind, body = ROUTES[path]
    for name in [*numbers_of(kind), "temperature", "warmth"]:
        texts = [with_number(body, name, text) for text in ODD_NUMBERS]
        for wire, text in zip(ask(path, *texts), ODD_NUMBERS, strict=True):
            assert wire.status in (200, 400, 504), (name, text, wire.body[:300])
            if wire.status == 400:
                assert wire.error["param"] in (name, None), (name, text)
                assert name in wire.error["message"] or "JSON" in wire.error["message"]
            assert b"Infinity" not in wire.body
            assert b"NaN" not in wire.body
    assert ask(path, json.dumps(body).encode())[0].status == 200
    assert not core.requests or not core.running
