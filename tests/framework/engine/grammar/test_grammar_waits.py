"""The wait for a grammar counts once, and not for a request that ended meanwhile."""

from quire.engine.grammar.grammar_waits import GrammarWaits


def test_a_wait_counts_once():
    waits = GrammarWaits()
    waits.begin("a")
    waits.end("a")
    total_s = waits.total_s
    waits.end("a")
    assert (waits.num_done, waits.total_s) == (1, total_s)
    assert total_s > 0


def test_a_request_that_ended_while_it_waited_is_left_out():
    waits = GrammarWaits()
    waits.begin("a")
    waits.forget("a")
    waits.end("a")
    assert (waits.num_done, waits.total_s) == (0, 0.0)
