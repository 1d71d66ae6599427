"""Cheap grammars are matched in one process, and the one at fault leaves it alone."""

import logging
import os
import signal

import pytest
from grammar_hosts import VOCABULARY, allowed, fork_server_of, mask, ready, wait_for_outcome
from installed import write_distribution
from processes import eventually, workers_of

from quire.engine.grammar import fork_server_client, grammar_link
from quire.engine.grammar.grammar_host import GrammarHost
from quire.engine.grammar.grammar_pool import GrammarLimits
from quire.errors import GrammarError, RequestFailedError
from quire.sampling_params import StructuredOutputsParams as Params

SHARING = {
    "sharing_plugin": """
        from quire import hookimpl
        from quire.interfaces.structured_output import GrammarCapabilities

        @hookimpl
        def register_structured_output(registry):
            capabilities = GrammarCapabilities(frozenset({"regex"}))
            registry.add("sharing", "sharing_backend:Sharing", capabilities=capabilities)
    """,
    "sharing_backend": """
        import os
        import signal
        import time

        from quire.errors import GrammarError
        from quire.interfaces.structured_output import (
            CompiledGrammar,
            Matcher,
            StructuredOutputBackend,
        )

        class Sharing(StructuredOutputBackend):
            @classmethod
            def check(cls, params):
                pass

            def compile(self, params):
                if params.regex == "slow":
                    until = time.process_time() + 0.2
                    while time.process_time() < until:
                        pass
                return Grammar(params.regex, is_loaded=False)

            def load(self, packed):
                if packed == b"brittle":
                    os.kill(os.getpid(), signal.SIGKILL)
                if packed == b"fat" * 1000:
                    raise GrammarError("cannot be loaded")
                return Grammar(packed.decode(), is_loaded=True)

        class Grammar(CompiledGrammar):
            def __init__(self, name, is_loaded):
                self.name, self.is_loaded = name, is_loaded
                self.ballast = bytearray(os.urandom(2**20)) * 64 if name == "large" else b""

            def packed(self):
                if self.name == "unsendable":
                    return None
                return b"fat" * 1000 if self.name == "fat" else self.name.encode()

            def matcher(self):
                return Counter(self)

        class Counter(Matcher):
            # The mask is the number of accepted tokens, 64 added where the grammar was loaded.
            def __init__(self, grammar):
                self.grammar, self.num_accepted = grammar, 0

            def accept(self, token_id):
                match chr(token_id):
                    case "k":
                        os.kill(os.getpid(), signal.SIGKILL)
                    case "h":
                        time.sleep(60)
                    case "m":
                        self.eaten = bytearray(2**30)
                    case "r":
                        raise RuntimeError("a secret")
                    case "s":
                        until = time.process_time() + 0.6
                        while time.process_time() < until:
                            pass
                    case "x":
                        return False
                self.num_accepted += 1
                return True

            def fill_bitmask(self, words):
                words[0] = self.num_accepted + 64 * self.grammar.is_loaded

            def rollback(self, num_tokens):
                self.num_accepted -= num_tokens

            def is_finished(self):
                return False
    """,
}


@pytest.fixture
def make_host(tmp_path, monkeypatch):
    """Make hosts whose grammars can be sent; they are shut down after the test."""
    write_distribution(tmp_path, "sharing", {"sharing": "sharing_plugin"}, **SHARING)
    monkeypatch.syspath_prepend(str(tmp_path))
    hosts = []

    def make(backends=("sharing",), **limits):
        limits = GrammarLimits(**limits)
        hosts.append(GrammarHost(lambda: VOCABULARY, backends=backends, max_rows=64, limits=limits))
        return hosts[-1]

    yield make
    for host in hosts:
        host.shutdown()


def processes_of(host):
    return workers_of(fork_server_of(host).pid)


def state(host, request_id):
    """Return how many tokens a matcher has accepted, and whether its process is shared."""
    host.request_masks([(0, request_id)])
    [row] = host.collect_masks()
    return row.words[0] % 64, row.words[0] >= 64


def states(host, *request_ids):
    host.request_masks(list(enumerate(request_ids)))
    return [(row.words[0] % 64, row.words[0] >= 64) for row in host.collect_masks()]


def is_ready_at_once(host, request_id, params):
    host.submit(request_id, params)
    return host.poll() == [(request_id, None)]


# -- what shares -----------------------------------------------------------------------------------


def test_twenty_grammars_share_one_process(make_host):
    host = make_host()
    names = [f"grammar {index}" for index in range(20)]
    for index, name in enumerate(names):
        ready(host, name, Params(regex=name))
        host.accept(name, b"a" * index)
    eventually(lambda: len(processes_of(host)) == 1)
    assert states(host, *names) == [(index, True) for index in range(20)]


def test_many_idle_grammars_stay_compiled_where_they_cost_no_process(make_host):
    host = make_host(max_idle=1)
    for index in range(20):
        ready(host, f"{index}", Params(regex=f"{index}"))
        host.release(f"{index}")
    assert is_ready_at_once(host, "again", Params(regex="0"))
    assert state(host, "again") == (0, True)


def test_the_shared_process_has_so_many_grammars_and_the_oldest_idle_one_goes(make_host):
    host = make_host(max_shared=2)
    for name in "abc":
        ready(host, name, Params(regex=name))
        assert state(host, name) == (0, True)
        host.release(name)
    assert not is_ready_at_once(host, "a", Params(regex="a"))
    assert wait_for_outcome(host, "a") is None
    ready(host, "c", Params(regex="c"))
    ready(host, "d", Params(regex="d"))
    assert states(host, "a", "c", "d") == [(0, True), (0, True), (0, False)], "it is full"


@pytest.mark.parametrize(
    ("regex", "limits"),
    [
        ("unsendable", {}),
        ("slow", {"shared_cpu_s": 0.1}),
        ("large", {"shared_bytes": 2**25}),
        ("fat", {"shared_packed_bytes": 2999}),
        ("sharable", {"max_shared": 0}),
    ],
)
def test_a_grammar_that_is_not_cheap_keeps_its_process(make_host, regex, limits):
    host = make_host(**limits)
    ready(host, "own", Params(regex=regex))
    ready(host, "own too", Params(regex=regex))
    assert states(host, "own", "own too") == [(0, False), (0, False)]
    assert len(processes_of(host)) == 1


def test_a_request_that_leaves_takes_its_matcher_along_and_no_other(make_host):
    host = make_host()
    for name in ("a", "b"):
        ready(host, name, Params(regex="same"))
    ready(host, "c", Params(regex="other"))
    host.accept("b", b"ab")
    host.release("a")
    host.release("c")
    assert state(host, "b") == (2, True)


def test_a_refused_token_fails_its_request_where_it_is(make_host, caplog):
    host = make_host()
    ready(host, "bad", Params(regex="a"))
    ready(host, "good", Params(regex="a"))
    host.accept("bad", b"x")
    host.request_masks([(0, "bad"), (1, "good")])
    assert [row.words[0] for row in host.collect_masks()] == [0, 64]
    assert "does not allow token 120" in str(wait_for_outcome(host, "bad"))
    assert "restarting" not in caplog.text


# -- what goes wrong -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "error", "reason"),
    [
        (b"k", RequestFailedError, "while it filled masks"),
        (b"h", GrammarError, "has not filled its masks within 0.5 s"),
        (b"m", GrammarError, "exceeds the memory limit"),
        (b"r", RequestFailedError, "the structured-output backend failed"),
        (b"s", GrammarError, "takes too long to follow"),
    ],
    ids=["dies", "hangs", "eats memory", "raises", "is slow"],
)
def test_a_grammar_at_fault_fails_alone(make_host, monkeypatch, caplog, fault, error, reason):
    timeout_s = 0.5 if fault == b"h" else 60.0  # of processes that a busy machine delays
    monkeypatch.setattr(grammar_link, "SHARED_TURN_TIMEOUT_S", timeout_s)
    monkeypatch.setattr(grammar_link, "TURN_TIMEOUT_S", timeout_s)
    host = make_host(memory_bytes=2**29, shared_memory_bytes=2**29)
    ready(host, "idle", Params(regex="idle"))
    host.release("idle")
    for name in ("good", "bad", "elsewhere"):
        ready(host, name, Params(regex=name))
        host.accept(name, b"abc")
    assert states(host, "good", "bad") == [(3, True), (3, True)]
    host.accept("bad", fault)
    host.accept("good", b"d")
    assert states(host, "good", "bad")[0][0] == 4
    caught = wait_for_outcome(host, "bad")
    assert isinstance(caught, error)
    assert reason in str(caught)
    assert "secret" not in str(caught)
    ends_process = fault in b"khm"
    assert ("restarting" in caplog.text) == ends_process
    host.release("bad")
    assert host.poll() == []
    assert states(host, "good", "elsewhere") == [(4, True), (3, True)]
    ready(host, "bad again", Params(regex="bad"))
    is_blamed = ends_process or fault == b"s"
    assert state(host, "bad again") == (0, not is_blamed)
    ready(host, "new", Params(regex="new"))
    assert state(host, "new") == (0, True)


def test_a_grammar_that_cannot_be_loaded_fails_its_requests(make_host):
    host = make_host()
    ready(host, "good", Params(regex="good"))
    ready(host, "fat", Params(regex="fat"))
    assert states(host, "fat", "good")[1] == (0, True)
    assert "cannot be loaded" in str(wait_for_outcome(host, "fat"))


def test_a_process_that_is_killed_comes_back_with_all_its_grammars(make_host, caplog):
    host = make_host()
    for name in ("one", "two"):
        ready(host, name, Params(regex=name))
        host.accept(name, b"ab")
    assert states(host, "one", "two") == [(2, True), (2, True)]
    eventually(lambda: len(processes_of(host)) == 1)
    os.kill(processes_of(host)[0], signal.SIGKILL)
    assert states(host, "one", "two") == [(2, True), (2, True)]
    [record] = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert "one, two" in record.getMessage()
    host.release("one")
    ready(host, "one", Params(regex="another"))
    assert states(host, "one", "two") == [(0, True), (2, True)]


def test_the_loss_of_many_grammars_takes_no_place_of_a_new_one(make_host):
    host = make_host(max_grammars=2, max_compiling=1)
    names = [f"grammar {index}" for index in range(8)]
    for index, name in enumerate(names):
        ready(host, name, Params(regex=name))
        host.accept(name, b"a" * index)
    for _ in range(2):
        states(host, *names)
        eventually(lambda: len(processes_of(host)) == 1)
        os.kill(processes_of(host)[0], signal.SIGKILL)
        assert states(host, *names) == [(index, True) for index in range(8)]
        assert len(processes_of(host)) == 1
    ready(host, "new", Params(regex="new"))
    assert states(host, "new", *names)[:2] == [(0, True), (0, True)]


def test_grammars_at_fault_in_the_same_step_fail_and_no_other_does(make_host, caplog):
    host = make_host()
    for name in ("bad", "good", "worse", "waiting"):
        ready(host, name, Params(regex=name))
        host.accept(name, b"ab")
    states(host, "bad", "good", "worse", "waiting")
    host.accept("bad", b"k")
    host.accept("worse", b"k")
    assert states(host, "bad", "good", "worse")[1] == (2, True)
    assert dict(host.poll()).keys() == {"bad", "worse"}
    assert states(host, "good", "waiting") == [(2, True), (2, True)]
    assert len(processes_of(host)) == 1


def test_a_grammar_that_only_dies_where_it_is_loaded_goes_on_in_a_process_of_its_own(make_host):
    host = make_host()
    for name in ("brittle", "good"):
        ready(host, name, Params(regex=name))
        host.accept(name, b"ab")
    assert states(host, "brittle", "good") == [(2, False), (2, True)]
    host.release("brittle")
    ready(host, "brittle", Params(regex="brittle"))
    assert state(host, "brittle") == (0, False)


def test_a_process_that_cannot_be_restarted_fails_its_requests_as_the_servers_fault(
    make_host, monkeypatch
):
    host = make_host()
    for name in ("one", "two"):
        ready(host, name, Params(regex=name))
    states(host, "one", "two")
    with monkeypatch.context() as patch:
        patch.setattr(fork_server_client, "MODULE", "no_such_module")
        os.kill(fork_server_of(host).pid, signal.SIGKILL)
        eventually(lambda: not fork_server_of(host).is_alive)
        host.request_masks([(0, "one"), (1, "two")])
        assert [row.words for row in host.collect_masks()] == [host._masks.end] * 2
        for name, error in host.poll():
            assert isinstance(error, RequestFailedError), name
            assert "ends whenever it is started" in str(error)
        eventually(lambda: not fork_server_of(host).is_alive)
    ready(host, "new", Params(regex="one"))
    assert state(host, "new") == (0, True)


def test_a_turn_that_was_broken_off_ends_the_process_and_no_request(make_host):
    host = make_host()
    for name in ("one", "two"):
        ready(host, name, Params(regex=name))
        host.accept(name, b"ab")
    host.request_masks([(0, "one"), (1, "two")])
    assert states(host, "two", "one") == [(2, True), (2, True)]


# -- the backend of this project that packs --------------------------------------------------------


def test_grammars_of_llguidance_share_a_process(make_host):
    host = make_host(backends=("llguidance", "outlines"))
    ready(host, "choice", Params(choice=("xyz",)))
    ready(host, "schema", Params(json={"type": "integer", "minimum": 10, "maximum": 12}))
    ready(host, "regex", Params(regex="[0-9]{3}"))
    host.accept("choice", b"x")
    host.accept("schema", b"1")
    host.request_masks([(0, "regex"), (1, "schema"), (2, "choice")])
    masks = [allowed(row.words) for row in host.collect_masks()]
    assert masks == [set(b"0123456789"), set(b"012"), set(b"y")]
    eventually(lambda: len(processes_of(host)) == 1)
    ready(host, "other backend", Params(regex="[0-9]{3}", backend="outlines"))
    assert mask(host, "other backend") == set(b"0123456789")
    assert len(processes_of(host)) == 2


@pytest.mark.slow
def test_an_ambiguous_grammar_that_becomes_slow_fails_before_others_wait_for_long(make_host):
    host = make_host(backends=("llguidance",))
    ambiguous = Params(grammar='start: s\ns: "" | s s s s | "a" s "b" | "a" s | s "a" s "a" s')
    ready(host, "simple", Params(choice=("xyz",)))
    ready(host, "ambiguous", ambiguous)
    outcomes = {}
    for _ in range(400):
        host.request_masks([(0, "simple"), (1, "ambiguous")])
        masks = {row.slot: allowed(row.words) for row in host.collect_masks()}
        assert masks[0] == {ord("x")}
        if outcomes := dict(host.poll()):
            break
        host.accept("ambiguous", b"a")
    assert "takes too long to follow" in str(outcomes["ambiguous"])
    assert mask(host, "simple") == {ord("x")}
