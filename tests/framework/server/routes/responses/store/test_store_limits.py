"""Limits of stored responses: what has room beside what, and who makes room."""

from quire.server.keys.account import Account
from quire.server.routes.responses.store.owned_responses import OwnedResponses
from quire.server.routes.responses.store.store_limits import StoreLimits
from quire.server.routes.responses.store.stored_response import StoredResponse

ONE, TWO, OPEN = Account("one"), Account("two"), Account("open", has_key=False)
SIZE = StoredResponse("x", ONE, b"[]", None, b"{}").num_bytes


def made(name, account=ONE):
    return StoredResponse(name, account, b"[]", None, b"{}")


def limits(num=4, size=4, **running):
    owned = {ONE: OwnedResponses(), TWO: OwnedResponses()}
    for account in (ONE, TWO):
        for i in range(running.get(account.name, 0)):
            owned[account].begin(made(str(i), account))
    return StoreLimits(num, size * SIZE, owned), owned


def test_what_is_kept_has_room_beside_what_is_generated():
    some, owned = limits(one=2, two=1)
    assert some.has_room(made("a"), owned[ONE])
    assert some.has_room(made("a"), owned[ONE], more=0)
    assert not some.has_room(made("a"), owned[ONE], more=1)
    full, owned = limits(one=2, two=2)
    assert not full.has_room(made("a"), owned[ONE])


def test_a_key_leaves_to_others_as_much_as_it_generates():
    for num, size in ((4, 100), (100, 4)):
        some, owned = limits(num, size, one=1)
        assert some.may_begin(made("a"), owned[ONE])
        some, owned = limits(num, size, one=2)
        assert not some.may_begin(made("a"), owned[ONE])
        assert some.may_begin(made("a", TWO), owned[TWO])
        assert some.may_begin(made("a", OPEN), owned[ONE])


def test_responses_of_a_key_grow_to_half_and_one_alone_to_all():
    some, owned = limits(size=8, one=2)
    assert some.may_grow(ONE, owned[ONE], 2 * SIZE)
    assert not some.may_grow(ONE, owned[ONE], 2 * SIZE + 1)
    assert some.may_grow(OPEN, owned[ONE], 6 * SIZE)
    alone, owned = limits(size=8, one=1, two=2)
    assert alone.may_grow(ONE, owned[ONE], 5 * SIZE)
    assert not alone.may_grow(ONE, owned[ONE], 5 * SIZE + 1)


def test_the_oldest_of_the_key_that_holds_most_goes():
    some, owned = limits(num=3)
    first, second, third, other = made("1"), made("2"), made("3"), made("4", TWO)
    for response in (first, second, third):
        owned[ONE].keep(response)
    assert some.next_to_go(third) is None
    owned[TWO].keep(other)
    assert some.next_to_go(None) is some.next_to_go(other) is first
    owned[ONE].remove(first)
    assert some.next_to_go(other) is None


def test_the_newest_stays_also_if_its_key_holds_most():
    some, owned = limits(num=2, one=1)
    newest, other = made("a"), made("b", TWO)
    owned[ONE].keep(newest)
    owned[TWO].keep(other)
    assert some.next_to_go(newest) is other
