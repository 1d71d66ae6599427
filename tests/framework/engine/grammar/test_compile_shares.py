"""Compile time of clients: counted, and forgotten with time."""

import pytest

from quire.engine.grammar import compile_shares
from quire.engine.grammar.compile_shares import HALF_LIFE_S, CompileShares


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(compile_shares.time, "monotonic", lambda: now[0])
    return now


def test_the_time_of_a_client_halves_with_each_half_life(clock):
    shares = CompileShares()
    assert shares["a"] == 0.0
    shares.add("a", 8.0)
    clock[0] += 2 * HALF_LIFE_S
    assert shares["a"] == pytest.approx(2.0)
    shares.add("a", 1.0)
    assert shares["a"] == pytest.approx(3.0)
    assert shares["b"] == 0.0


def test_beyond_the_limit_the_client_with_the_least_time_is_forgotten(clock, monkeypatch):
    monkeypatch.setattr(compile_shares, "MAX_CLIENTS", 2)
    shares = CompileShares()
    for client, seconds in (("a", 5.0), ("b", 1.0), ("c", 3.0)):
        shares.add(client, seconds)
    assert [shares[client] for client in "abc"] == [5.0, 0.0, 3.0]
