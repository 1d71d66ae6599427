"""A crash of a grammar process is the server's failure; the limits of a grammar are the client's.

What a process dies of is written in the grammar: its regex is the name of a signal.
"""

import os
import signal
import time

import pytest
from grammar_hosts import WORDS, fork_server_of, mask, ready, wait_for_outcome
from installed import write_distribution
from processes import workers_of

from quire.errors import GrammarError, RequestFailedError
from quire.sampling_params import StructuredOutputsParams as Params

DYING = {
    "dying_plugin": """
        from quire import hookimpl
        from quire.interfaces.structured_output import GrammarCapabilities

        @hookimpl
        def register_structured_output(registry):
            registry.add(
                "dying",
                "dying_backend:Dying",
                capabilities=GrammarCapabilities(frozenset({"regex"})),
            )
    """,
    "dying_backend": """
        import os, signal, time

        from quire.interfaces.structured_output import (
            CompiledGrammar,
            Matcher,
            StructuredOutputBackend,
        )

        def die(how):
            if how == "exit":
                os._exit(3)
            if how == "hang":
                time.sleep(60)
            os.kill(os.getpid(), signal.Signals[how])
            time.sleep(60)

        class Dying(StructuredOutputBackend, CompiledGrammar, Matcher):
            @classmethod
            def check(cls, params):
                pass

            def compile(self, params):
                when, self.how = params.regex.split("-")
                if when == "compile":
                    die(self.how)
                return self

            def matcher(self):
                return self

            def accept(self, token_id):
                return True

            def fill_bitmask(self, words):
                die(self.how)

            def rollback(self, num_tokens):
                pass

            def is_finished(self):
                return False
    """,
}


@pytest.fixture
def dying(make_host, tmp_path, monkeypatch):
    """A host with a backend whose processes die as the grammar says."""
    write_distribution(tmp_path, "dying", {"dying": "dying_plugin"}, **DYING)
    monkeypatch.syspath_prepend(str(tmp_path))
    return make_host()


CRASHES = {
    "SIGSEGV": "been ended by SIGSEGV",
    "SIGKILL": "been ended by SIGKILL",
    "exit": "exited with status 3",
}


def outcome(host, when, how):
    """Return the error of a grammar whose process dies when it compiles, or fills masks."""
    name = f"{when}-{how}"
    host.submit(name, Params(regex=name, backend="dying"))
    error = wait_for_outcome(host, name)
    if when == "compile" or error is not None:
        return error
    mask(host, name)
    return wait_for_outcome(host, name)


@pytest.mark.parametrize("when", ["compile", "mask"])
def test_a_crash_is_the_servers_failure(dying, caplog, when):
    for how, written in CRASHES.items():
        error = outcome(dying, when, how)
        assert isinstance(error, RequestFailedError)
        assert written in str(error)
        assert f"failing requests {when}-{how}" in caplog.text
    assert not dying._failures, "the same grammar may work the next time"
    ready(dying, "b", WORDS)
    assert mask(dying, "b")


def test_an_end_by_a_limit_is_the_grammars(dying):
    for how in ("SIGPROF", "SIGALRM", "SIGABRT"):
        error = outcome(dying, "compile", how)
        assert isinstance(error, GrammarError)
        assert "make it simpler" in str(error)
    assert len(dying._failures) == 3, "the same grammars are refused at once"


def test_memory_that_runs_out_while_masks_are_filled_is_the_grammars(dying):
    error = outcome(dying, "mask", "SIGABRT")
    assert isinstance(error, GrammarError)
    assert "out of memory" in str(error)


def test_masks_that_take_too_long_are_the_grammars(dying, monkeypatch):
    from quire.engine.grammar import grammar_link

    monkeypatch.setattr(grammar_link, "TURN_TIMEOUT_S", 0.3)
    error = outcome(dying, "mask", "hang")
    assert isinstance(error, GrammarError)
    assert "has not filled its masks within 0.3 s" in str(error)


def test_a_process_that_is_killed_while_it_compiles_is_a_crash(make_host):
    host = make_host(timeout_s=60.0)
    slow = Params(regex="(?:(?:a{1,50}){1,50}){1,50}x", backend="outlines")
    ready(host, "first", WORDS)
    before = set(workers_of(fork_server_of(host).pid))
    host.submit("slow", slow)
    until = time.monotonic() + 30
    while not (workers := set(workers_of(fork_server_of(host).pid)) - before):
        assert time.monotonic() < until
    [worker] = workers
    os.kill(worker, signal.SIGKILL)
    error = wait_for_outcome(host, "slow")
    assert isinstance(error, RequestFailedError)
    assert mask(host, "first")


def test_the_status_of_a_process_that_is_unknown_or_runs_is_unknown(dying):
    ready(dying, "a", WORDS)
    server = fork_server_of(dying)
    assert server.exit_status(10**6) is None
    server.shutdown()
    assert server.exit_status(1) is None
