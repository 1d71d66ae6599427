"""`Retry-After` is the measured wait, within the bounds that clients accept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.server.wire.retry_after import MAX_RETRY_AFTER_S, retry_headers, with_measured_wait

OLD = [(b"content-type", b"text/plain"), (b"retry-after", b"1")]


@pytest.mark.parametrize(
    ("wait_s", "seconds", "ms"), [(0.2, "1", "200"), (6.3, "7", "6300"), (900.0, "60", "60000")]
)
def test_the_measured_wait_replaces_the_default(wait_s, seconds, ms):
    found = with_measured_wait(OLD, wait_s)
    assert [name for name, _ in found].count(b"retry-after") == 1
    headers = {name.decode(): value.decode() for name, value in found}
    assert headers == {
        "content-type": "text/plain",
        "retry-after": seconds,
        "retry-after-ms": ms,
    }


def test_without_a_measurement_the_default_stays():
    assert with_measured_wait(OLD, 0.0) == OLD


def test_a_client_that_shall_not_retry_is_not_told_when():
    headers = [(b"x-should-retry", b"false")]
    assert with_measured_wait(headers, 5.0) == headers


@given(st.floats(0, 1e12))
def test_the_value_is_a_whole_number_that_clients_accept(wait_s):
    headers = dict(with_measured_wait(OLD, wait_s))
    assert 1 <= int(headers[b"retry-after"]) <= MAX_RETRY_AFTER_S
    if wait_s > 0:
        assert 0 < int(headers[b"retry-after-ms"]) <= 1000 * int(headers[b"retry-after"])


def test_a_wait_that_the_error_knows_is_not_replaced():
    headers = [(name.encode(), value.encode()) for name, value in retry_headers(2.5).items()]
    assert dict(headers) == {b"retry-after": b"3", b"retry-after-ms": b"2500"}
    assert with_measured_wait(headers, 50.0) == headers
