"""The limits on connections follow the limit of open files, which is raised as far as it may be."""

import resource

import pytest

from quire.server.http import connection_limit
from quire.server.http.connection_limit import (
    FILES_BESIDE,
    MAX_SERVED,
    SPARE,
    ConnectionLimits,
    connection_limits,
)

ALL = MAX_SERVED + SPARE + FILES_BESIDE
FREE = resource.RLIM_INFINITY


@pytest.fixture
def files(monkeypatch):
    """Return a function that sets the limits of open files, and a list of what they become."""
    known = []
    connection_limits.cache_clear()

    def limit(soft, hard):
        known[:] = [(soft, hard)]

    monkeypatch.setattr(resource, "getrlimit", lambda _: known[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: known.append(limits))
    yield limit, known
    connection_limits.cache_clear()


@pytest.mark.parametrize(
    ("soft", "hard", "raised", "expected"),
    [
        (1024, FREE, ALL, ConnectionLimits(MAX_SERVED, MAX_SERVED + SPARE)),
        (1024, 10**6, ALL, ConnectionLimits(MAX_SERVED, MAX_SERVED + SPARE)),
        (1024, ALL, ALL, ConnectionLimits(MAX_SERVED, MAX_SERVED + SPARE)),
        (FREE, FREE, None, ConnectionLimits(MAX_SERVED, MAX_SERVED + SPARE)),
        (ALL, ALL, None, ConnectionLimits(MAX_SERVED, MAX_SERVED + SPARE)),
        (1024, 4096, 4096, ConnectionLimits(4096 - FILES_BESIDE - SPARE, 4096 - FILES_BESIDE)),
        (512, 512, 512, ConnectionLimits(128, 256)),
        (64, 64, 64, ConnectionLimits(1, 2)),
    ],
)
def test_there_are_as_many_connections_as_files_allow(files, caplog, soft, hard, raised, expected):
    limit, known = files
    limit(soft, hard)
    assert connection_limits() == expected
    assert known == [(soft, hard), *([] if raised is None else [(raised, hard)])]
    is_short = expected.served < MAX_SERVED
    assert (f"at most {expected.served} connections are served" in caplog.text) is is_short


def test_a_limit_that_cannot_be_raised_after_all_stays(files, monkeypatch):
    limit, _ = files
    limit(1024, FREE)

    def refuse(_, limits):
        raise ValueError("not allowed")

    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert connection_limits() == ConnectionLimits(1024 - FILES_BESIDE - 384, 1024 - FILES_BESIDE)


def test_elsewhere_nothing_is_known_of_files(monkeypatch, files):
    monkeypatch.setattr(connection_limit.sys, "platform", "win32")
    assert connection_limits() == ConnectionLimits(MAX_SERVED, MAX_SERVED + SPARE)
