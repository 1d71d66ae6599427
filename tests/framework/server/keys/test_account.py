"""Limits of a key: requests, requests at the same time, tokens, models and priority."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.errors import SettingsError, UnknownModelError
from quire.server.keys.account import Account, duration_text
from quire.server.keys.api_key import KeyLimits, make_key
from quire.server.wire.http_errors import HTTPError

PIECES = st.lists(st.integers(1, 300), max_size=10)  # tokens of the deltas of one request


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


def account(clock, **limits):
    return Account("acme", KeyLimits(**limits), clock=clock)


def headers_of(made):
    return {name.decode(): value.decode() for name, value in made.headers()}


def test_requests_beyond_the_limit_are_told_when_to_come_back(clock):
    made = account(clock, requests_per_minute=2)
    for _ in range(2):
        with made.request():
            pass
    with pytest.raises(HTTPError) as caught, made.request():
        pass
    error = caught.value
    assert (error.status, error.name) == (429, "rate_limit_exceeded")
    assert error.headers == {"retry-after": "30", "retry-after-ms": "30000"}
    assert "the key 'acme' may have 2 requests per minute; try again in 30s" in str(error)
    clock.now_s += 30
    with made.request():
        assert made.num_running == 1
    assert (made.usage.num_requests, made.usage.num_refused, made.num_running) == (3, 1, 0)


def test_requests_at_the_same_time_are_limited_also_after_a_failure(clock):
    made = account(clock, max_concurrent=1)
    with pytest.raises(ValueError, match="a bug"), made.request():
        raise ValueError("a bug")
    for _ in range(2):
        refused = pytest.raises(HTTPError, match="1 requests at the same time")
        with made.request(), refused, made.request():
            pass
    assert made.usage.num_refused == 2


def test_a_refusal_by_concurrency_costs_no_request(clock):
    made = account(clock, max_concurrent=1, requests_per_minute=2)
    with made.request():
        for _ in range(5):
            with pytest.raises(HTTPError, match="at the same time"), made.request():
                pass
    assert headers_of(made)["x-ratelimit-remaining-requests"] == "1"


def test_headers_say_what_is_left_in_openais_names(clock):
    made = account(clock, requests_per_minute=60, tokens_per_minute=1000)
    with made.request():
        made.reserve(100, 150)
    assert headers_of(made) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "750",
        "x-ratelimit-reset-tokens": "15s",
    }
    assert Account("free").headers() == []


def test_what_is_not_used_of_a_reservation_comes_back(clock):
    made = account(clock, tokens_per_minute=1000)
    reservation = made.reserve(100, 500)
    with pytest.raises(HTTPError, match="1000 tokens per minute"):
        made.reserve(100, 500)
    reservation.use(100)
    reservation.use(20)
    reservation.close()
    reservation.close()
    assert made.tokens.level(clock()) == 880
    made.reserve(100, 500).close()
    assert made.tokens.level(clock()) == 880


def test_what_is_used_beyond_a_reservation_is_charged_at_once(clock):
    made = account(clock, tokens_per_minute=1000)
    reservation = made.reserve(100, 0)
    reservation.use(100)
    for _ in range(100):
        reservation.use(20)
    assert made.tokens.level(clock()) == -1100
    with pytest.raises(HTTPError) as caught:
        made.reserve(1, 0)
    assert caught.value.headers["retry-after"] == "67"  # 1,101 tokens at 1,000 a minute
    assert headers_of(made)["x-ratelimit-remaining-tokens"] == "0"
    reservation.close()
    assert made.tokens.level(clock()) == -1100


@given(
    st.lists(
        st.tuples(st.integers(1, 500), st.integers(0, 500), PIECES),
        max_size=10,
    )
)
def test_in_the_end_exactly_the_used_tokens_are_charged(requests):
    made = account(Clock(), tokens_per_minute=10**6)
    for num_prompt, most, pieces in requests:
        reservation = made.reserve(num_prompt, most)
        reservation.use(num_prompt)
        for piece in pieces:
            reservation.use(piece)
        reservation.close()
    used = sum(num_prompt + sum(pieces) for num_prompt, _, pieces in requests)
    assert made.tokens.level(100.0) == pytest.approx(10**6 - used)


def test_a_prompt_beyond_the_limit_runs_when_the_bucket_is_full(clock):
    made = account(clock, tokens_per_minute=100)
    made.reserve(500, 0)
    with pytest.raises(HTTPError) as caught:
        made.reserve(1, 0)
    clock.now_s += int(caught.value.headers["retry-after-ms"]) / 1000
    made.reserve(1, 0)


def test_a_key_uses_its_models_only(clock):
    made = account(clock, models=("demo",))
    made.check_model("demo")
    with pytest.raises(UnknownModelError, match="'acme' may not use 'pirate'; it may use demo"):
        made.check_model("pirate")
    account(clock).check_model("anything")


@pytest.mark.parametrize(
    ("own", "given", "wanted"),
    [(None, None, 0), (None, -7, -7), (5, None, 5), (5, 0, 5), (5, 9, 9), (-2, None, -2)],
)
def test_a_request_does_not_go_before_the_priority_of_its_key(clock, own, given, wanted):
    assert account(clock, priority=own).priority_of(given) == wanted


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"requests_per_minute": 0}, "requests_per_minute of the key 'a' must be at least 1"),
        ({"tokens_per_minute": -1}, "tokens_per_minute of the key 'a' must be at least 1, got -1"),
        ({"max_concurrent": 0}, "max_concurrent of the key 'a' must be at least 1"),
        ({"models": ()}, "models of the key 'a' is empty"),
    ],
)
def test_limits_that_let_nothing_through_are_refused(limits, message):
    with pytest.raises(SettingsError, match=message):
        make_key("a", "text", KeyLimits(**limits))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0ms"), (0.0121, "13ms"), (1, "1s"), (1.5, "1.5s"), (59.9, "59.9s"), (360, "6m0s")],
)
def test_times_are_written_as_openai_writes_them(seconds, text):
    assert duration_text(seconds) == text
