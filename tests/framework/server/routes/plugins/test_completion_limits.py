"""Completions of a request count as requests of its key, the request itself as the first."""

from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.server.keys.account import Account
from quire.server.keys.api_key import KeyLimits
from quire.server.routes.plugins.completion_limits import CompletionLimits
from quire.server.wire.http_errors import HTTPError


@given(st.lists(st.integers(0, 5)), st.integers(1, 4))
def test_a_request_takes_as_many_places_as_completions_run_and_at_least_one(ends, most):
    account = Account("a", KeyLimits(max_concurrent=most))
    running, num_begun = [], 0
    with account.request():
        limits = CompletionLimits(account)
        for end in ends:  # 0: one begins; else one of those that run ends
            if end and running:
                running.pop(end % len(running)).close()
            elif len(running) < most:
                running.append(ExitStack())
                running[-1].enter_context(limits.one())
                num_begun += 1
            else:
                with pytest.raises(HTTPError, match="requests at the same time"), limits.one():
                    raise AssertionError("not refused")
            assert account.num_running == max(1, len(running))
            assert account.usage.num_requests == max(1, num_begun)
        for each in running:
            each.close()
        assert account.num_running == 1
    assert account.num_running == 0


def test_a_completion_that_fails_gives_its_place_back():
    account = Account("a", KeyLimits(max_concurrent=2))
    with account.request():
        limits = CompletionLimits(account)
        for _ in range(3):
            with pytest.raises(ValueError, match="x"), limits.one(), limits.one():
                raise ValueError("x")
        assert account.num_running == 1
