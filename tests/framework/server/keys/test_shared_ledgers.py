"""Counts that several processes share: none is lost, and none is counted twice."""

import subprocess
import sys

import pytest

from quire.server.keys.account import Account
from quire.server.keys.api_key import KeyLimits
from quire.server.keys.ledger import KeyUsage
from quire.server.keys.shared_ledgers import MAX_ACCOUNTS, SharedLedgers
from quire.server.wire.http_errors import HTTPError

A, B = b"a" * 32, b"b" * 32


@pytest.fixture
def processes():
    """The ledgers of a parent and of two processes, all of which are this one."""
    parent = SharedLedgers.new(2)
    return [parent, *(SharedLedgers(parent.fd, 2, number) for number in (1, 2))]


def test_all_processes_see_the_counts_of_all(processes):
    for each in processes[1:]:
        ledger = each.of(A)
        with ledger.lock():
            ledger.add(KeyUsage(1, 2, 3, 4, 5))
    assert processes[0].of(A).usage == KeyUsage(2, 4, 6, 8, 10)
    assert processes[0].of(B).usage == KeyUsage()


def test_the_requests_of_a_process_that_died_are_taken_away(processes):
    parent, one, two = processes
    for each, num in ((one, 2), (two, 3)):
        each.of(A).run(num)
        each.of(B).run(num)
    assert (parent.of(A).num_running, parent.of(B).num_running) == (5, 5)
    parent.clear(1)
    assert (two.of(A).num_running, one.of(B).num_running) == (3, 3)


def test_a_limit_is_one_of_all_processes(processes):
    limits = KeyLimits(requests_per_minute=3, max_concurrent=2)
    one, two = (
        Account("acme", limits, clock=lambda: 100.0, ledger=each.of(A)) for each in processes[1:]
    )
    with (
        one.request(),
        two.request(),
        pytest.raises(HTTPError, match="2 requests at the same time"),
        one.request(),
    ):
        pass
    with two.request():
        pass
    with pytest.raises(HTTPError, match="3 requests per minute"), one.request():
        pass
    assert (one.usage.num_requests, two.usage.num_refused, one.num_running) == (3, 2, 0)
    remaining = dict(two.headers())[b"x-ratelimit-remaining-requests"]
    assert remaining == b"0"


def test_what_is_gone_stays_gone_when_one_process_sets_new_limits(processes):
    one, two = (
        Account("a", KeyLimits(tokens_per_minute=10), clock=lambda: 100.0, ledger=each.of(A))
        for each in processes[1:]
    )
    one.reserve(10, 0)
    two.set_limits(KeyLimits(tokens_per_minute=12))
    with pytest.raises(HTTPError):
        two.reserve(3, 0)
    two.reserve(2, 0)


def test_a_table_that_is_full_still_counts_in_each_process(processes, caplog):
    parent = processes[0]
    for number in range(MAX_ACCOUNTS - 1):
        start = number * parent._row_bytes
        parent.memory[start : start + 32] = (number + 1).to_bytes(32, "big")
    assert parent.of(A).keeps_levels
    ledger = parent.of(B)
    assert not ledger.keeps_levels
    ledger.add(KeyUsage(num_requests=1))
    assert "restart the server" in caplog.text


PROGRAM = """
import sys
from quire.server.keys.ledger import KeyUsage
from quire.server.keys.shared_ledgers import SharedLedgers
ledger = SharedLedgers(int(sys.argv[1]), 2, int(sys.argv[2])).of(b"a" * 32)
for _ in range(3000):
    with ledger.lock():
        ledger.add(KeyUsage(1, 1, 1, 1, 1))
        ledger.run(1)
"""


def test_nothing_is_lost_when_two_processes_count_at_the_same_time(processes):
    parent = processes[0]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(parent.fd), str(number)], pass_fds=[parent.fd]
        )
        for number in (1, 2)
    ]
    assert [each.wait(60) for each in started] == [0, 0]
    assert parent.of(A).usage == KeyUsage(6000, 6000, 6000, 6000, 6000)
    assert parent.of(A).num_running == 6000


HOLDER = """
import os, signal, sys
from quire.server.keys.shared_ledgers import SharedLedgers
with SharedLedgers(int(sys.argv[1]), 2, 1).lock():
    print(flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_holder_of_the_lock_that_is_stopped_stops_no_other(processes):
    parent = processes[0]
    arguments = [sys.executable, "-c", HOLDER, str(parent.fd)]
    holder = subprocess.Popen(arguments, pass_fds=[parent.fd], stdout=subprocess.PIPE)
    holder.stdout.readline()
    try:
        ledger = parent.of(A)
        with ledger.lock():
            ledger.add(KeyUsage(num_requests=1))
        assert ledger.usage.num_requests == 1
    finally:
        holder.kill()
        holder.communicate()
