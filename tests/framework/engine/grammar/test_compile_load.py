"""Too many waiting grammars are refused: of one client, of all, or by the wait they would cause."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.engine.grammar.compile_load import CompileLoad, Waiting
from quire.errors import OverloadedError

NEW = (0.0, 0.0)


def load(max_waiting=8, max_wait_s=60.0, num_places=2):
    return CompileLoad(max_waiting, max_wait_s, 0.1, num_places)


def waiting(*clients, rank=NEW):
    return [Waiting(client, rank) for client in clients]


def refusal(limit, client, others, rank=NEW):
    with pytest.raises(OverloadedError) as caught:
        limit.check(Waiting(client, rank), others)
    return str(caught.value)


def test_a_client_may_have_a_quarter_of_all_that_wait():
    limit = load()
    limit.check(Waiting("one", NEW), waiting("one", "two", "three"))
    assert "2 new grammars of this client" in refusal(limit, "one", waiting("one", "one"))


def test_a_client_with_nothing_waiting_has_room_where_others_have_none():
    limit = load()
    full = waiting(*"abcdefgh")
    assert "8 new grammars are waiting" in refusal(limit, "a", full)
    limit.check(Waiting("new", NEW), full)
    assert "16 new grammars are waiting" in refusal(limit, "new", full + waiting(*"ijklmnop"))


def test_only_grammars_ranked_before_count_for_the_wait():
    limit = load(max_waiting=1000, max_wait_s=1.0, num_places=3)
    slow = [Waiting(f"c{i}", (5.0, 1.0)) for i in range(100)]
    limit.check(Waiting("quick", NEW), slow)
    message = refusal(limit, "late", slow, rank=(9.0, 0.0))
    assert "would wait about 5 s to be compiled" in message


def test_a_client_is_told_when_to_come_back():
    with pytest.raises(OverloadedError) as caught:
        load().check(Waiting("a", NEW), waiting(*"abcdefgh"))
    assert caught.value.retry_after_s == pytest.approx(0.8)


@given(st.lists(st.sampled_from("abcd"), max_size=100))
def test_the_number_that_waits_is_bounded_and_every_client_gets_a_place(clients):
    limit, taken = load(), []
    for client in clients:
        new = Waiting(client, NEW)
        try:
            limit.check(new, taken)
        except OverloadedError:
            assert any(each.client == client for each in taken)
        else:
            taken.append(new)
    assert len(taken) <= 16
    assert all(sum(each.client == client for each in taken) <= 2 for client in "abcd")
