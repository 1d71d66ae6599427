"""Keys of the ranks, asked for through the engine."""

import pytest

from quire.errors import EngineDeadError
from quire.launch.workers.key_exchange import KeyExchange
from quire.launch.workers.worker_wire import (
    FromWorker,
    GetKey,
    KeyValue,
    LoadWeights,
    SetKey,
    ToWorker,
)
from quire.process.local.local_channel import LocalChannel
from quire.process.local.local_hub import LocalHub


@pytest.fixture
def ends(tmp_path):
    """The hub, the exchange of one rank, and how the hub answers it."""
    address = f"unix://{tmp_path}/hub"
    hub, channel = LocalHub(FromWorker, address), LocalChannel(ToWorker, address)
    channel.send(SetKey("first", b""))
    peer, _ = hub.take(5)
    yield hub, KeyExchange(channel), lambda message: hub.send([peer], message)
    hub.close()
    channel.close()


def test_a_value_is_published_for_all(ends):
    hub, exchange, _ = ends
    exchange.set("a", b"\x00\xff")
    assert hub.take(5)[1] == SetKey("a", b"\x00\xff")


def test_the_value_of_a_key_is_what_the_engine_answers(ends):
    hub, exchange, answer = ends
    answer(KeyValue("a", b"value"))
    assert exchange.get("a", 5) == b"value"
    assert hub.take(5)[1] == GetKey("a")


def test_a_key_that_no_rank_publishes_is_named(ends):
    _, exchange, _ = ends
    with pytest.raises(TimeoutError, match=r"no rank has published 'a' within 0.05 s"):
        exchange.get("a", 0.05)


@pytest.mark.parametrize("message", [KeyValue("b", b"value"), LoadWeights([])])
def test_an_answer_to_another_question_is_an_error(ends, message):
    _, exchange, answer = ends
    answer(message)
    with pytest.raises(EngineDeadError, match="and not the value of 'a'"):
        exchange.get("a", 5)
