"""Salts separate keys, and nothing that a client sends makes another key's salt."""

from hypothesis import given
from hypothesis import strategies as st

from quire.server.keys.api_key import make_key
from quire.server.keys.cache_salts import CacheSalts, combined_salt

KEYS = [make_key("a", "sk-canary-1"), make_key("b", "sk-canary-2")]
SALTS = CacheSalts(KEYS)
SALT = st.none() | st.text(min_size=1, max_size=128)


def test_a_changed_key_of_the_same_name_has_another_salt():
    assert SALTS.of(make_key("a", "sk-canary-3")) not in [SALTS.of(key) for key in KEYS]


def test_each_key_has_a_salt_that_is_the_same_after_a_restart():
    assert SALTS.of(KEYS[0]) != SALTS.of(KEYS[1])
    assert CacheSalts(reversed(KEYS)).of(KEYS[0]) == SALTS.of(KEYS[0])
    assert CacheSalts(KEYS[:1]).of(KEYS[0]) != SALTS.of(KEYS[0])


def test_a_salt_shows_nothing_of_the_keys_and_is_a_valid_salt():
    salt = SALTS.of(KEYS[0])
    assert "canary" not in salt
    assert all(key.digest.hex() not in salt for key in KEYS)
    assert salt.isprintable()
    assert len(salt) == 64


@given(SALT, SALT)
def test_requests_of_two_keys_never_have_one_salt(first, second):
    own = SALTS.of(KEYS[0]), SALTS.of(KEYS[1])
    assert combined_salt(own[0], first) != combined_salt(own[1], second)
    assert combined_salt(own[0], own[1]) != combined_salt(own[1], first)


@given(SALT, SALT)
def test_requests_of_one_key_share_if_their_own_salts_are_equal(first, second):
    salts = [combined_salt(SALTS.of(KEYS[0]), own) for own in (first, second)]
    assert (salts[0] == salts[1]) is (first == second)


@given(SALT)
def test_without_a_salt_of_the_key_the_requests_own_counts(own):
    assert combined_salt(None, own) == own
