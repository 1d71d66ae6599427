"""Failures in a grammar process end its own requests, and are reported to client or log."""

import errno
import logging
import os
import signal
import subprocess
import time

import msgspec
import pytest
from grammar_hosts import WORDS, fork_server_of, mask, ready, wait_for_outcome
from installed import write_distribution
from processes import workers_of

from quire.engine.grammar import fork_server_client
from quire.engine.grammar import grammar_host as grammar_module
from quire.errors import GrammarError, RequestFailedError
from quire.sampling_params import StructuredOutputsParams as Params

FAULTY = {
    "faulty_plugin": """
        from quire import hookimpl
        from quire.interfaces.structured_output import GrammarCapabilities

        @hookimpl
        def register_structured_output(registry):
            registry.add(
                "faulty",
                "faulty_backend:Faulty",
                capabilities=GrammarCapabilities(frozenset({"regex"})),
            )
    """,
    "faulty_backend": """
        import time

        from quire.interfaces.structured_output import (
            CompiledGrammar,
            Matcher,
            StructuredOutputBackend,
        )

        class Faulty(StructuredOutputBackend, CompiledGrammar, Matcher):
            @classmethod
            def check(cls, params):
                if params.regex == "check":
                    raise RuntimeError("secret of check")

            def compile(self, params):
                print("noise of a compiler", flush=True)
                if params.regex == "slow":
                    time.sleep(30)
                if params.regex == "large":
                    self.index = bytearray(2**28)
                if params.regex == "compile":
                    raise RuntimeError("secret of compile")
                return self

            def matcher(self):
                return self

            def accept(self, token_id):
                raise RuntimeError("secret of accept")

            def fill_bitmask(self, words):
                pass

            def rollback(self, num_tokens):
                pass

            def is_finished(self):
                return False
    """,
}


def num_processes(host):
    pid = fork_server_of(host).pid
    return len(workers_of(pid))


def test_a_grammar_that_is_too_long_a_message_is_refused_with_the_size(make_host):
    host = make_host()
    ready(host, "good", WORDS)
    pid = fork_server_of(host).pid
    host.submit("long", Params(json={"const": "a" * grammar_module.MAX_PARAMS_BYTES}))
    error = wait_for_outcome(host, "long")
    assert isinstance(error, GrammarError)
    assert f"of {grammar_module.MAX_PARAMS_BYTES} at most" in str(error)
    assert mask(host, "good")
    assert fork_server_of(host).pid == pid


def test_an_order_that_cannot_be_read_ends_its_own_grammar_only(make_host, caplog):
    host = make_host()
    ready(host, "good", WORDS)
    pid = fork_server_of(host).pid
    unreadable = Params(regex="7")
    msgspec.structs.force_setattr(unreadable, "regex", 7)
    host.submit("bad", unreadable)
    assert isinstance(wait_for_outcome(host, "bad"), GrammarError)
    assert "failing requests bad" in caplog.text
    assert mask(host, "good")
    ready(host, "next", Params(regex="[0-9]"))
    assert fork_server_of(host).pid == pid


@pytest.mark.parametrize(
    ("regex", "secret"), [("compile", "compile"), ("check", "check"), ("a", "accept")]
)
def test_what_a_backend_did_not_foresee_is_for_the_log(
    make_host, tmp_path, monkeypatch, caplog, capfd, regex, secret
):
    write_distribution(tmp_path, "faulty", {"faulty": "faulty_plugin"}, **FAULTY)
    monkeypatch.syspath_prepend(str(tmp_path))
    host = make_host()
    host.submit("a", Params(regex=regex, backend="faulty"))
    error = wait_for_outcome(host, "a")
    if secret == "accept":
        assert error is None
        host.accept("a", [97])
        mask(host, "a")
        error = wait_for_outcome(host, "a")
    assert isinstance(error, RequestFailedError)
    assert "secret" not in str(error)
    assert f"RuntimeError: secret of {secret}" in caplog.text
    assert "failed for requests a" in caplog.text
    if secret != "accept":
        assert not host._pool._grammars, "its place is free"
    assert "noise" not in capfd.readouterr().out, "clients must not be able to fill the log"


@pytest.mark.parametrize(
    ("regex", "limits", "reason"),
    [
        ("slow", {"timeout_s": 0.2}, "within 0.2 s of CPU time and"),
        ("large", {"memory_bytes": 2**27}, "exceeds the memory limit"),
    ],
)
def test_a_grammar_has_no_more_time_and_memory_than_it_may(
    make_host, tmp_path, monkeypatch, regex, limits, reason
):
    write_distribution(tmp_path, "faulty", {"faulty": "faulty_plugin"}, **FAULTY)
    monkeypatch.syspath_prepend(str(tmp_path))
    host = make_host(**limits)
    host.submit("a", Params(regex=regex, backend="faulty"))
    error = wait_for_outcome(host, "a", within_s=10.0)
    assert isinstance(error, GrammarError)
    assert reason in str(error)


def test_a_process_that_cannot_be_started_is_the_servers_fault(make_host, monkeypatch, caplog):
    def refuse(*args, **options):
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    host = make_host()
    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", refuse)
        host.submit("a", WORDS)
        error = wait_for_outcome(host, "a")
    assert isinstance(error, RequestFailedError)
    assert "no grammar process can be started" in str(error)
    assert "failing requests a" in caplog.text
    ready(host, "b", WORDS)


def test_a_fork_server_that_ends_at_once_is_the_servers_fault(make_host, monkeypatch):
    host = make_host()
    monkeypatch.setattr(fork_server_client, "MODULE", "no_such_module")
    host.submit("a", WORDS)
    assert fork_server_of(host)._process.wait(10.0)
    error = wait_for_outcome(host, "a")
    assert isinstance(error, RequestFailedError)
    assert "the process that compiles grammars has ended" in str(error)


def test_a_process_that_dies_is_logged_with_its_requests(make_host, caplog):
    host = make_host()
    ready(host, "one", WORDS)
    ready(host, "two", WORDS)
    before = mask(host, "one")
    pid = fork_server_of(host).pid
    [worker] = workers_of(pid)
    os.kill(worker, signal.SIGKILL)
    assert mask(host, "one") == before
    [record] = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert "one, two" in record.getMessage()


def test_unused_grammars_end_when_all_take_too_much_memory(make_host):
    host = make_host(max_bytes=0)
    large = Params(json={"type": "array", "items": {"type": "string", "maxLength": 200}})
    ready(host, "a", large)
    assert num_processes(host) == 1
    host.submit("b", WORDS)
    assert not host.wait_for_compile(0.2)  # it waits for the memory of the one in use
    host.release("a")
    assert wait_for_outcome(host, "b") is None
    until = time.monotonic() + 5
    while num_processes(host) > 1:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert mask(host, "b")


def test_unused_grammars_stay_while_there_is_memory(make_host):
    host = make_host()
    ready(host, "a", WORDS)
    host.release("a")
    ready(host, "b", Params(choice=("x",)))
    assert num_processes(host) == 2
