"""Bodies that are being received have a limit together; once they are decoded, they are free."""

import asyncio
from contextlib import suppress

import pytest
from asgi_parts import Wire, call, scope_of
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from quire.config import ServerSettings
from quire.server.http.body_budget import BodyBudget
from quire.server.http.guard import Guard
from quire.server.http.lifecycle import Lifecycle
from quire.server.keys.accounts import Accounts
from quire.server.wire.http_errors import HTTPError


def message(size, more=False):
    return {"type": "http.request", "body": b"x" * size, "more_body": more}


def receiver(messages):
    waiting = list(messages)

    async def receive():
        return waiting.pop(0)

    return receive


def test_bodies_that_are_being_received_count_together():
    budget = BodyBudget(10, 16)

    async def check():
        first = budget.receive(receiver([message(6, more=True), message(4), message(0)]))
        second = budget.receive(receiver([message(7, more=True), message(3, more=True)]))
        await first()
        await second()
        assert budget.num_bytes == 13
        with pytest.raises(HTTPError, match="have 13 bytes, and all together may have 16") as found:
            await first()
        assert (found.value.status, found.value.name) == (503, "overloaded")
        assert found.value.headers["retry-after"]
        await second()
        assert budget.num_bytes == 16
        second.release()
        second.release()
        assert budget.num_bytes == 6

    asyncio.run(check())


def test_a_whole_body_is_free_when_the_next_message_is_awaited():
    budget = BodyBudget(10, 16)

    async def check():
        receive = budget.receive(
            receiver([message(5, more=True), message(5), {"type": "http.disconnect"}])
        )
        await receive()
        await receive()
        assert budget.num_bytes == 10, "it is decoded now"
        await receive()
        assert budget.num_bytes == 0

    asyncio.run(check())


@given(
    bodies=st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=4), max_size=6),
    order=st.randoms(use_true_random=False),
)
def test_the_count_is_that_of_the_bodies_in_between(bodies, order):
    budget, held = BodyBudget(20, 40), {}
    receives = [
        budget.receive(receiver([message(n, more=i + 1 < len(body)) for i, n in enumerate(body)]))
        for body in bodies
    ]
    left = [index for index, body in enumerate(bodies) for _ in body]
    order.shuffle(left)
    position = dict.fromkeys(range(len(bodies)), 0)

    async def check():
        for index in left:
            size = bodies[index][position[index]]
            position[index] += 1
            own = held.get(index, 0)
            is_too_large, is_too_much = own + size > 20, sum(held.values()) + size > 40
            if is_too_large or is_too_much:
                with pytest.raises(HTTPError) as found:
                    await receives[index]()
                assert found.value.status == (413 if is_too_large else 503)
            else:
                await receives[index]()
                held[index] = own + size
            assert budget.num_bytes == sum(held.values()) <= 40

    asyncio.run(check())
    for receive in receives:
        receive.release()
    assert budget.num_bytes == 0


def test_a_client_that_leaves_or_is_refused_takes_nothing_with_it():
    async def read(scope, receive, send):
        with suppress(ClientDisconnect):
            await Request(scope, receive).body()
            await Response("read")(scope, receive, send)

    guarded = Guard(
        read,
        ServerSettings(max_body_bytes=10, max_received_bytes=10),
        Lifecycle(),
        Accounts(),
    )

    async def half_sent():
        pieces = [message(8, more=True), {"type": "http.disconnect"}]
        await guarded(scope_of("/v1/x"), receiver(pieces), None)

    async def check():
        await half_sent()
        for _ in range(3):
            refused = Wire(b"x" * 8, b"x" * 8)
            await call(guarded, refused, scope_of("/v1/x"))
            assert refused.status == 413
        for _ in range(3):
            taken = Wire(b"x" * 10)
            await call(guarded, taken, scope_of("/v1/x"))
            assert taken.status == 200

    asyncio.run(check())
