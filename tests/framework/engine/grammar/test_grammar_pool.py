"""The processes of grammars within their limits: which start, stay, are made again and end."""

import os
import signal
import subprocess
import time

import pytest
from grammar_hosts import EOS, WORDS, fork_server_of, mask, wait_for_outcome
from processes import descendants, eventually, is_running, workers_of

from quire.engine.grammar import fork_server_client
from quire.engine.grammar.grammar_link import START_TIMEOUT_S
from quire.engine.grammar.grammar_pool import GrammarLimits
from quire.errors import GrammarError
from quire.sampling_params import StructuredOutputsParams as Params

SLOW = [Params(regex=f"[ab]*a[ab]{{24}}{index}") for index in range(3)]  # never within its time


def ready(host, request_id, word):
    host.submit(request_id, Params(choice=(word,)))
    assert wait_for_outcome(host, request_id) is None


def is_ready_at_once(host, request_id, word):
    host.submit(request_id, Params(choice=(word,)))
    return host.poll() == [(request_id, None)]


def processes_of(host):
    return workers_of(fork_server_of(host).pid)


def grammars_of(host):
    return list(host._pool._grammars.values())


# -- together --------------------------------------------------------------------------------------


def test_of_requests_with_one_grammar_each_may_leave_by_itself(make_host):
    host = make_host(max_idle=0)
    ready(host, "a", "xyz")
    ready(host, "b", "xyz")
    assert len(processes_of(host)) == 1
    host.accept("b", b"x")
    host.release("a")
    assert mask(host, "b") == {ord("y")}
    host.release("b")
    eventually(lambda: not processes_of(host))


def test_one_that_leaves_a_grammar_which_compiles_leaves_it_to_the_others(make_host):
    host = make_host()
    host.submit("a", WORDS)
    host.submit("b", WORDS)
    host.release("a")
    assert wait_for_outcome(host, "b") is None
    assert mask(host, "b") == set(b"abc")


def test_a_grammar_that_compiles_without_users_ends_at_once(make_host):
    host = make_host(timeout_s=60.0)
    ready(host, "good", "x")
    [kept] = processes_of(host)
    host.submit("slow", SLOW[0])
    eventually(lambda: len(processes_of(host)) == 2)
    host.release("slow")
    assert eventually(lambda: processes_of(host) == [kept]) < 5.0, "not even a zombie is left"


def test_so_many_compile_at_a_time_and_the_others_wait(make_host):
    host = make_host(timeout_s=60.0, max_compiling=2)
    for index, params in enumerate(SLOW):
        host.submit(f"slow {index}", params)
    host.submit("gone", Params(choice=("gone",)))
    host.release("gone")
    assert [grammar.link.is_compiling for grammar in grammars_of(host)] == [True, True]
    host.release("slow 0")
    host.release("slow 2")
    ready(host, "good", "x")
    assert host.poll() == [], "nothing is said of one that left while it waited"


# -- what stays ------------------------------------------------------------------------------------


def test_the_grammars_that_were_used_last_stay(make_host):
    host = make_host(max_idle=2)
    for name in "ab":
        ready(host, name, name)
        host.release(name)
    assert is_ready_at_once(host, "again", "a")
    host.release("again")
    ready(host, "c", "c")
    host.release("c")
    assert len(grammars_of(host)) == 2
    assert is_ready_at_once(host, "a", "a")
    assert not is_ready_at_once(host, "b", "b"), "it had to go"


def test_a_large_grammar_evicts_idle_ones(make_host):
    host = make_host(max_bytes=10**12)
    ready(host, "a", "x")
    ready(host, "b", "y")
    host.release("a")
    first, second = grammars_of(host)
    first.num_bytes = second.num_bytes = 100
    host._pool._limits = GrammarLimits(max_bytes=200)
    host._pool.evict_to_fit()
    assert grammars_of(host) == [first, second], "there is memory for both"
    host.submit("c", WORDS)
    assert wait_for_outcome(host, "c") is None
    assert grammars_of(host)[0] is second, "idle ones are evicted, and those in use stay"
    assert mask(host, "b") == {ord("y")}


def test_idle_grammars_are_evicted_only_where_that_helps(make_host):
    host = make_host(max_grammars=2, max_idle=2)
    for name in "ab":
        ready(host, name, name)
        host.release(name)
    ready(host, "c", "c")
    assert [grammar.num_users for grammar in grammars_of(host)] == [0, 1]
    assert is_ready_at_once(host, "b", "b"), "the one that was used last stayed"
    host.submit("d", Params(choice=("d",)))
    host.release("c")
    assert wait_for_outcome(host, "d") is None
    host.submit("waits", Params(choice=("e",)))
    assert [grammar.num_users for grammar in grammars_of(host)] == [1, 1]
    host._pool._limits = GrammarLimits(max_grammars=1)
    host.release("d")
    host.poll()
    assert [grammar.num_users for grammar in grammars_of(host)] == [1, 0], (
        "there is no room either way"
    )


def test_a_refused_token_takes_its_request_out_of_its_grammar(make_host):
    host = make_host(max_grammars=1)
    ready(host, "bad", "x")
    host.accept("bad", b"z")
    assert mask(host, "bad") == {EOS}
    assert "does not allow token 122" in str(wait_for_outcome(host, "bad"))
    host.accept("bad", b"z")  # nothing follows of what is said to it now
    assert mask(host, "bad") == {EOS}
    host.release("bad")
    ready(host, "other", "y")


# -- what is made again ----------------------------------------------------------------------------


def test_a_restarted_process_has_the_tokens_and_users_of_the_old_one(make_host):
    host = make_host(max_grammars=1)
    ready(host, "a", "wxyz")
    ready(host, "b", "wxyz")
    host.accept("a", b"w")
    host.accept("b", b"wx")
    assert mask(host, "a") == {ord("x")}
    for pid in processes_of(host):
        os.kill(pid, signal.SIGKILL)
    assert mask(host, "a") == {ord("x")}
    assert mask(host, "b") == {ord("y")}
    host.release("a")
    assert mask(host, "b") == {ord("y")}
    host.release("b")
    ready(host, "c", "c")


def test_a_compiled_grammar_has_no_time_limit_any_more(make_host):
    host = make_host(timeout_s=1.0)
    ready(host, "a", "x")
    before = processes_of(host)
    time.sleep(1.1)
    assert mask(host, "a") == {ord("x")}
    assert processes_of(host) == before


@pytest.mark.parametrize("has_watchdog", [True, False])
def test_the_processes_of_a_fork_server_end_with_it(make_host, has_watchdog):
    host = make_host()
    ready(host, "a", "x")
    [child] = processes_of(host)
    [watchdog] = descendants(fork_server_of(host).pid).keys() - {child}
    if not has_watchdog:
        os.kill(watchdog, signal.SIGKILL)
        eventually(lambda: not is_running(watchdog))
    os.kill(fork_server_of(host).pid, signal.SIGKILL)
    eventually(lambda: not is_running(child))
    assert mask(host, "a") == {ord("x")}, "and come back with the next one"


def test_a_watchdog_of_a_fork_server_that_is_killed_is_replaced(make_host):
    host = make_host()
    ready(host, "a", "x")
    server = fork_server_of(host).pid
    [child] = processes_of(host)
    [watchdog] = descendants(server).keys() - {child}
    os.kill(watchdog, signal.SIGKILL)
    eventually(lambda: descendants(server).keys() - {child, watchdog})
    eventually(lambda: processes_of(host) == [child])  # the other one has its name
    assert mask(host, "a") == {ord("x")}


def test_a_fork_server_whose_start_was_interrupted_is_replaced(make_host, monkeypatch):
    def interrupted(*arguments, **options):
        started.append(start(*arguments, **options))
        raise KeyboardInterrupt

    host, started, start = make_host(), [], subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        host.submit("a", WORDS)
    monkeypatch.undo()
    ready(host, "b", "y")  # both read the setup at the same time
    assert fork_server_of(host).is_alive
    assert started[0].wait(10.0) is not None, "the interrupted one ends by itself"


# -- what does not respond -------------------------------------------------------------------------


def test_a_grammar_that_is_late_fails_whether_its_process_ends_or_not(make_host):
    host = make_host(timeout_s=60.0)
    host.submit("slow", SLOW[0])
    link = grammars_of(host)[0].link
    assert link.deadline > time.monotonic() + START_TIMEOUT_S
    link.deadline = time.monotonic() + 0.1
    start_s = time.monotonic()
    assert host.wait_for_compile(20.0)
    assert time.monotonic() - start_s < 10.0, "no longer than it has time"
    [(request_id, error)] = host.poll()
    assert request_id == "slow"
    assert isinstance(error, GrammarError)
    assert grammars_of(host) == []


def test_a_fork_server_that_hangs_is_replaced_and_ends(make_host, monkeypatch):
    monkeypatch.setattr(fork_server_client, "SEND_TIMEOUT_S", 0.1)
    monkeypatch.setattr(fork_server_client, "STOP_TIMEOUT_S", 0.1)
    host = make_host()
    ready(host, "a", "x")
    hung = fork_server_of(host).pid
    assert os.getpgid(hung) != os.getpgid(0), "a terminal's Ctrl-C is not for it"
    os.kill(hung, signal.SIGSTOP)
    host.submit("large", Params(regex="a" * 10**6))  # half of it finds room on its way
    assert "no grammar process can be started" in str(wait_for_outcome(host, "large"))
    ready(host, "b", "y")
    assert fork_server_of(host).pid != hung
    assert not is_running(hung)


def test_a_fork_server_that_reads_nothing_ends_with_its_processes(make_host, monkeypatch):
    monkeypatch.setattr(fork_server_client, "SEND_TIMEOUT_S", 0.1)
    monkeypatch.setattr(fork_server_client, "STOP_TIMEOUT_S", 0.1)
    host = make_host()
    ready(host, "a", "x")
    fork_server = fork_server_of(host)
    hung = fork_server.pid
    os.kill(hung, signal.SIGSTOP)
    for number in range(100_000):
        if not fork_server.is_alive:
            break
        fork_server.kill(1000 + number)
    assert fork_server.pid is None
    assert not is_running(hung)
    assert mask(host, "a") == {ord("x")}
