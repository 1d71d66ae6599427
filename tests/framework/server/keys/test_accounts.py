"""Whose request it is, and what stays when the keys change."""

import pytest
from asgi_parts import scope_of

from quire.config import ServerSettings
from quire.errors import SettingsError
from quire.server.keys.accounts import Accounts
from quire.server.keys.api_key import KeyLimits, make_key
from quire.server.keys.key_ring import KeyRing
from quire.server.wire.http_errors import HTTPError

A, B, ADMIN = make_key("a", "one"), make_key("b", "two"), make_key("root", "three")


def identified(accounts, key=None):
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    scope = scope_of("/v1/x", headers=headers)
    accounts.open(scope)
    accounts.identify(scope)
    return scope["quire_account"].name, scope["quire_client"], scope["quire_is_admin"]


def test_a_request_is_of_its_key():
    accounts = Accounts(KeyRing([A, B], [ADMIN]))
    assert identified(accounts, "two") == ("b", "b", False)
    assert identified(accounts, "three") == ("root", "root", True)
    for key in (None, "four"):
        with pytest.raises(HTTPError) as caught:
            identified(accounts, key)
        assert caught.value.status == 401
    assert accounts.num_unauthorized == 2


def named(*headers):
    accounts = Accounts(KeyRing([A, B], [ADMIN]))
    scope = scope_of("/v1/x") | {"headers": [(n.encode(), v.encode()) for n, v in headers]}
    accounts.open(scope)
    accounts.identify(scope)
    return scope["quire_account"].name, scope["quire_is_admin"]


BEARER, PLAIN = ("authorization", "Bearer two"), ("x-api-key", "two")


@pytest.mark.parametrize("headers", [[BEARER], [PLAIN], [BEARER, PLAIN], [PLAIN, BEARER]])
def test_a_key_is_in_either_header_or_in_both(headers):
    assert named(*headers) == ("b", False)
    assert named(("x-api-key", "three")) == ("root", True)


@pytest.mark.parametrize(
    "headers",
    [
        [BEARER, ("x-api-key", "one")],
        [("authorization", "Bearer four"), PLAIN],
        [("authorization", "Basic two"), PLAIN],
        [("authorization", ""), PLAIN],
        [BEARER, ("x-api-key", "")],
        [PLAIN, PLAIN],
        [BEARER, BEARER],
        [PLAIN, ("x-api-key", "one")],
        [("x-api-key", "Bearer two")],
        [("x-api-key", "")],
    ],
)
def test_headers_with_different_keys_or_twice_have_none(headers):
    with pytest.raises(HTTPError) as caught:
        named(*headers)
    assert caught.value.status == 401


def test_without_api_keys_requests_are_open_and_the_admin_key_is_known():
    accounts = Accounts(KeyRing([], [ADMIN]))
    assert identified(accounts) == ("open", "127.0.0.1", False)
    assert identified(accounts, "anything") == ("open", "127.0.0.1", False)
    assert identified(accounts, "three") == ("root", "root", True)
    assert [each.name for each in accounts.of_keys()] == ["open"]


@pytest.mark.parametrize(
    ("keys", "shares", "is_isolated"),
    [([A], False, False), ([A, B], True, False), ([A, B], False, True)],
)
def test_several_keys_have_caches_of_their_own_unless_they_share(keys, shares, is_isolated):
    accounts = Accounts(KeyRing(keys), shares_cache=shares)
    salts = [each.cache_salt for each in accounts.of_keys()]
    assert (None not in salts) is is_isolated
    assert len(set(salts)) == (len(keys) if is_isolated else 1)


def test_a_key_that_stays_keeps_its_usage_and_its_cache_and_gets_its_new_limits():
    accounts = Accounts(KeyRing([A, B]))
    before = accounts.of_keys()[1]
    before.usage.num_requests = 7
    salt = before.cache_salt
    accounts.replace(KeyRing([make_key("b", "two", KeyLimits(requests_per_minute=1))]))
    assert identified(accounts, "two") == ("b", "b", False)
    with pytest.raises(HTTPError):
        identified(accounts, "one")
    (after,) = accounts.of_keys()
    assert (after.usage.num_requests, after.cache_salt) == (7, salt)
    assert after.limits.requests_per_minute == 1
    assert after.requests is not None


def test_the_account_of_a_key_that_goes_or_is_renamed_is_removed():
    accounts = Accounts(KeyRing([A, B]))
    first, second = accounts.with_keys
    accounts.replace(KeyRing([make_key("other", "one"), B]))
    assert (first.is_removed, second.is_removed) == (True, False)
    accounts.replace(KeyRing())
    assert second.is_removed
    assert not accounts.of_keys()[0].is_removed


@pytest.mark.parametrize("others", [[], [B]])
def test_another_key_of_a_name_inherits_neither_the_usage_nor_the_cache(others):
    accounts = Accounts(KeyRing([A, *others]))
    before = accounts.of_keys()[0]
    before.usage.num_requests = 7
    accounts.replace(KeyRing([make_key("a", "new"), *others]))
    assert identified(accounts, "new") == ("a", "a", False)
    after = accounts.of_keys()[0]
    assert (after.usage.num_requests, after.num_running) == (0, 0)
    assert after.cache_salt not in (None, before.cache_salt)


def test_a_key_without_a_name_does_not_become_the_one_above_it(tmp_path):
    file = tmp_path / "keys"
    file.write_text("sk-alice\nsk-bob\n")
    file.chmod(0o600)
    settings = ServerSettings(api_key_file=str(file))
    accounts = Accounts.load(settings)
    alice, bob = accounts.of_keys()
    file.write_text("sk-bob\n")
    accounts.replace(KeyRing.load(settings))
    assert accounts.of_keys() == [bob]
    assert identified(accounts, "sk-bob") == (bob.name, bob.name, False)
    assert bob.cache_salt not in (None, alice.cache_salt)


def test_a_second_key_separates_the_caches():
    accounts = Accounts(KeyRing([A]))
    assert accounts.of_keys()[0].cache_salt is None
    accounts.replace(KeyRing([A, B]))
    assert len({each.cache_salt for each in accounts.of_keys()} - {None}) == 2


def test_unchanged_limits_are_not_filled_again():
    limited = make_key("a", "one", KeyLimits(requests_per_minute=1))
    accounts = Accounts(KeyRing([limited]))
    with accounts.of_keys()[0].request():
        pass
    accounts.replace(KeyRing([limited, B]))
    with pytest.raises(HTTPError), accounts.of_keys()[0].request():
        pass


def test_a_priority_that_nothing_reads_is_refused():
    accounts = Accounts(KeyRing([A, make_key("b", "two", KeyLimits(priority=1))]))
    accounts.check(has_priorities=True)
    with pytest.raises(SettingsError, match="the key 'b' has a priority, which the scheduling"):
        accounts.check(has_priorities=False)
    Accounts(KeyRing([A])).check(has_priorities=False)
