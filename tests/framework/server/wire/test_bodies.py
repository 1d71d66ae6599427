"""A body is read within bounds of time, depth and size, and becomes its declared type."""

import asyncio
import threading
from typing import Any

import msgspec
import pytest
from asgi_parts import JSON, Wire, scope_of
from starlette.requests import Request

from quire.errors import InvalidRequestError
from quire.server.wire import bodies
from quire.server.wire.bodies import LARGE_BYTES, MAX_DEPTH, check_depth, decode, read_body
from quire.server.wire.http_errors import HTTPError
from quire.server.wire.undeclared_fields import Undeclared

THREADS: list[str] = []


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    number: int
    values: Any = None


class Text(msgspec.Struct, forbid_unknown_fields=True):
    """A body that notes the thread in which it is decoded."""

    text: str = ""
    values: Any = None
    inner: Inner | None = None

    def __post_init__(self):
        THREADS.append(threading.current_thread().name)


def read(*pieces, headers=JSON):
    wire = Wire(*pieces)
    return asyncio.run(read_body(Request(scope_of("/", headers=headers), wire.receive), Text))


def nested(kind, depth):
    value = kind()
    for _ in range(depth - 1):
        value = {"a": value} if kind is dict else [value]
    return value


@pytest.mark.parametrize("kind", [dict, list])
def test_a_body_may_be_so_deep_and_no_deeper(kind):
    check_depth(nested(kind, MAX_DEPTH))
    with pytest.raises(InvalidRequestError, match="deeper than 64"):
        check_depth(nested(kind, MAX_DEPTH + 1))


def test_a_body_that_is_too_deep_is_refused_before_it_is_typed():
    for name in ("text", "values", "unknown"):
        deep = msgspec.json.encode({name: nested(list, MAX_DEPTH)})
        with pytest.raises(InvalidRequestError, match="deeper than 64"):
            decode(deep, Text)
    shallower = nested(list, MAX_DEPTH - 1)
    assert decode(msgspec.json.encode({"values": shallower}), Text).typed.values == shallower


def test_what_is_within_an_object_with_a_type_of_its_own_is_no_deeper():
    deep = nested(list, MAX_DEPTH - 1)
    with pytest.raises(InvalidRequestError, match="deeper than 64"):
        decode(msgspec.json.encode({"inner": {"number": 1, "values": deep}}), Text)
    (shallower,) = deep
    body = decode(msgspec.json.encode({"inner": {"number": 1, "values": shallower}}), Text)
    assert body.typed.inner.values == shallower


def test_depth_is_looked_for_in_every_branch():
    value = {"a": 1, "b": [{}, {"c": nested(list, MAX_DEPTH - 2)}]}
    with pytest.raises(InvalidRequestError, match="deeper"):
        check_depth(value)


def test_braces_and_brackets_are_counted_together(monkeypatch):
    monkeypatch.setattr(bodies, "MAX_BRACKETS", 5)
    assert decode(b'{"a":[{},{},[]]}', Text).undeclared == {"a": [{}, {}, []]}
    for body in (b'{"a":[{},{},[],{}]}', b'{"a":[{},{},[],[]]}'):
        with pytest.raises(InvalidRequestError, match="more than 5 opening"):
            decode(body, Text)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "not valid JSON"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b"[]", "a JSON object"),
        (b"3", "a JSON object"),
        (b'{"a":' * 40_000 + b"1" + b"}" * 40_000, "deeper than 64"),
    ],
)
def test_what_is_no_object_is_refused(body, said):
    with pytest.raises(InvalidRequestError, match=said):
        decode(body, Text)


def test_a_body_keeps_what_its_type_lacks_and_its_size():
    body = decode(b'{"text": "a", "more": 1}', Text)
    assert (body.typed.text, body.undeclared, body.num_bytes) == ("a", {"more": 1}, 24)
    assert decode(b"{}", Text).undeclared == {}


def test_an_object_with_a_type_of_its_own_keeps_what_that_lacks():
    body = decode(b'{"inner": {"number": 3, "more": [1]}, "other": null}', Text)
    assert body.typed.inner == Inner(3)
    assert (body.undeclared, body.undeclared_of_objects) == (
        {"other": None},
        (Undeclared("inner", {"more": [1]}, ("number", "values")),),
    )
    with pytest.raises(InvalidRequestError, match="inner") as caught:
        decode(b'{"inner": [1], "other": null}', Text)
    assert caught.value.param == "inner"


@pytest.mark.parametrize(("num_bytes", "is_large"), [(LARGE_BYTES - 1, False), (LARGE_BYTES, True)])
def test_a_large_body_is_decoded_beside_the_event_loop(num_bytes, is_large):
    THREADS.clear()
    frame = len(b'{"text":""}')
    body = read(b'{"text":"', b"x" * (num_bytes - frame), b'"}')
    assert body.num_bytes == num_bytes
    assert body.is_large is is_large
    assert [name != threading.current_thread().name for name in THREADS] == [is_large]


def test_a_body_that_does_not_come_is_a_408(monkeypatch):
    monkeypatch.setattr(bodies, "BODY_TIMEOUT_S", 0.02)

    async def never():
        await asyncio.Event().wait()

    async def main():
        request = Request(scope_of("/", headers=JSON), never)
        await asyncio.wait_for(read_body(request, Text), 5)

    with pytest.raises(HTTPError) as caught:
        asyncio.run(main())
    assert (caught.value.status, caught.value.name) == (408, "timeout")


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "application/json; charset=utf-8"},
        {"content-type": "Application/JSON ;x"},
        {"content-type": "application/json", "content-encoding": "Identity"},
    ],
)
def test_json_by_any_spelling_is_taken(headers):
    assert read(b'{"text": "a"}', headers=headers).typed.text == "a"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": "text/plain"},
        {"content-type": "text/json"},
        {"content-type": "application/jsonx"},
        *({"content-type": "application/json", "content-encoding": e} for e in ("br", "gzip", "")),
    ],
)
def test_anything_else_is_a_415(headers):
    with pytest.raises(HTTPError) as caught:
        read(b"{}", headers=headers)
    assert (caught.value.status, caught.value.name) == (415, "unsupported_media_type")
