"""Grammars compile and match in processes of their own, and nothing they do hurts another request.

The backend is `outlines`, by name, as an engine would have it.
"""

import os
import random
import re
import signal
import time

import pytest
from grammar_hosts import allowed, mask, ready, wait_for_outcomes
from installed import write_distribution
from processes import workers_of

from quire.engine.grammar.grammar_host import GrammarHost
from quire.engine.grammar.grammar_pool import GrammarLimits
from quire.errors import GrammarError
from quire.interfaces.structured_output import Vocabulary
from quire.sampling_params import StructuredOutputsParams as Params

EOS = 260
SIZE = 275
TOKENS = {bytes([byte]): [byte] for byte in range(256)} | {b"ab": [256], b"true": [257, 258]}
VOCABULARY = Vocabulary(TOKENS, (EOS,), SIZE)
SPELLED = {i: token for token, ids in TOKENS.items() for i in ids}
WORDS = Params(regex="(?:[a-c]{1,4}-){2,40}end")
HOSTILE = {
    "states": Params(regex="[ab]*a[ab]{24}"),
    "repetitions": Params(regex="x{0,1000000000}"),
    "nested repetitions": Params(regex="(((((a{0,60}){0,60}){0,60}){0,60}){0,60})b"),
    "unicode": Params(regex=r"(?:\w{0,300}\W{0,300}){0,300}"),
    "parentheses": Params(regex="(" * 30_000 + "a" + ")" * 30_000),
    "enum": Params(json={"enum": list(range(100_000))}),
    "depth": Params(json='{"items": ' * 10_000 + "{}" + "}" * 10_000),
    "recursion": Params(json={"type": "object", "properties": {"a": {"$ref": "#"}}}),
}

CROWDED = {
    "crowded_plugin": """
        from quire import hookimpl
        from quire.interfaces.structured_output import GrammarCapabilities

        @hookimpl
        def register_structured_output(registry):
            capabilities = GrammarCapabilities(frozenset({"regex"}))
            registry.add("crowded", "crowded_backend:Crowded", capabilities=capabilities)
    """,
    "crowded_backend": """
        from weakref import WeakSet

        from quire.interfaces.structured_output import (
            CompiledGrammar,
            Matcher,
            StructuredOutputBackend,
        )

        class Crowded(StructuredOutputBackend, CompiledGrammar):
            def __init__(self, vocabulary):
                self.alive = WeakSet()

            @classmethod
            def check(cls, params):
                pass

            def compile(self, params):
                return self

            def matcher(self):
                return Member(self.alive)

        class Member(Matcher):
            def __init__(self, alive):
                self.alive = alive
                alive.add(self)

            def accept(self, token_id):
                return True

            def fill_bitmask(self, words):
                words[0] = len(self.alive)

            def rollback(self, num_tokens):
                pass

            def is_finished(self):
                return False
    """,
}


@pytest.fixture
def host():
    host = GrammarHost(lambda: VOCABULARY, max_rows=8)
    yield host
    host.shutdown()


@pytest.fixture
def strict_host():
    limits = GrammarLimits(timeout_s=2.0, memory_bytes=128 * 2**20)
    host = GrammarHost(lambda: VOCABULARY, limits=limits)
    yield host
    host.shutdown()


def sample(host, request_id, rng):
    """Draw one token from a request's mask and accept it; None is the end."""
    token_id = rng.choice(sorted(mask(host, request_id)))
    host.accept(request_id, [token_id])
    return None if token_id == EOS else SPELLED[token_id]


def test_nothing_is_started_before_the_first_grammar():
    def never():
        raise AssertionError("the vocabulary was loaded")

    host = GrammarHost(never)
    assert host.poll() == []
    assert not host.wait_for_compile(1.0)
    host.request_masks([])
    assert host.collect_masks() == []
    host.release("unknown")
    host.shutdown()


def test_masks_lead_to_a_completion_that_follows_the_grammar(host):
    ready(host, "a", WORDS)
    rng, text = random.Random(0), b""
    while (piece := sample(host, "a", rng)) is not None:
        text += piece
    assert re.fullmatch(WORDS.regex, text.decode())
    assert mask(host, "a") == {EOS}


def test_requests_of_one_step_stand_where_each_of_them_is(host):
    ready(host, "a", Params(choice=("xy",)))
    ready(host, "b", Params(choice=("xy",)))
    ready(host, "c", Params(regex="[0-9]"))
    host.accept("b", [ord("x")])
    host.request_masks([(5, "a"), (0, "b"), (3, "c")])
    masks = {row.slot: allowed(row.words) for row in host.collect_masks()}
    assert masks == {5: {ord("x")}, 0: {ord("y")}, 3: set(b"0123456789")}


def test_a_grammar_that_is_compiled_already_is_ready_at_once(host):
    ready(host, "a", WORDS)
    host.release("a")
    host.submit("b", WORDS)
    assert host.poll() == [("b", None)]
    assert mask(host, "b") == set(b"abc") | {256}


def test_a_request_that_still_thinks_has_no_mask(host):
    host.submit("a", WORDS, is_active=False)
    assert wait_for_outcomes(host, "a") == {"a": None}
    host.accept("a", [1, 2, 3])
    host.request_masks([(0, "a")])
    assert host.collect_masks() == []
    host.activate("a")
    assert mask(host, "a") == set(b"abc") | {256}


def test_a_token_that_the_grammar_forbids_ends_its_request_only(host):
    ready(host, "good", WORDS)
    ready(host, "bad", WORDS)
    host.accept("bad", [ord("z")])
    host.request_masks([(0, "bad"), (1, "good")])
    rows = {row.slot: allowed(row.words) for row in host.collect_masks()}
    assert rows == {0: {EOS}, 1: set(b"abc") | {256}}
    [(request_id, error)] = host.poll()
    assert request_id == "bad"
    assert "does not allow token 122" in str(error)
    assert host.poll() == []


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        (Params(regex="("), "not a valid regular expression"),
        (Params(json={"type": "integer", "multipleOf": 3}), "'multipleOf' at /"),
        (Params(regex="a", backend="outlnes"), "did you mean 'outlines'"),
    ],
    ids=["regex", "schema", "backend"],
)
def test_what_cannot_be_compiled_is_an_error_of_its_request(host, params, reason):
    host.submit("a", params)
    error = wait_for_outcomes(host, "a")["a"]
    assert isinstance(error, GrammarError)
    assert reason in str(error)
    host.accept("a", [1])  # nothing follows of what is said to it now
    host.release("a")
    ready(host, "b", WORDS)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_grammar_ends_alone_while_others_are_served(strict_host, name):
    ready(strict_host, "good", WORDS)
    strict_host.submit("evil", HOSTILE[name])
    start, gaps, outcome = time.monotonic(), [], {}
    rng = random.Random(0)
    while "evil" not in outcome:
        assert time.monotonic() - start < 15, "the limits do not hold"
        before = time.monotonic()
        piece = sample(strict_host, "good", rng)
        gaps.append(time.monotonic() - before)
        if piece is None:
            strict_host.release("good")
            strict_host.submit("good", WORDS)
        outcome.update(strict_host.poll())
        time.sleep(0.002)
    assert isinstance(outcome["evil"], GrammarError)
    assert max(gaps) < 0.5  # usual is a tenth of a millisecond; the machine may be busy
    assert mask(strict_host, "good")


def test_more_grammars_than_may_compile_wait_for_their_turn(host):
    for i in range(6):
        host.submit(f"evil {i}", Params(regex=f"[ab]*a[ab]{{2{i}}}{i}"))
    host.submit("good", WORDS)
    host.submit("gone", Params(choice=("never",)))
    host.release("gone")
    for i in range(6):
        host.release(f"evil {i}")  # a release frees a place: no request waits for their timeouts
    start = time.monotonic()
    assert wait_for_outcomes(host, "good") == {"good": None}
    assert time.monotonic() - start < 5


def test_grammars_beyond_the_limit_wait_until_others_are_released():
    limits = GrammarLimits(max_grammars=2, max_idle=1)
    host = GrammarHost(lambda: VOCABULARY, limits=limits)
    ready(host, "a", Params(choice=("a",)))
    ready(host, "b", Params(choice=("b",)))
    host.submit("c", Params(choice=("c",)))
    assert not host.wait_for_compile(0.05)
    host.release("a")
    assert wait_for_outcomes(host, "c") == {"c": None}
    assert mask(host, "c") == {ord("c")}
    assert mask(host, "b") == {ord("b")}
    host.shutdown()


def pids_of(host):
    """Process ids of the fork server's children, and its own."""
    fork_server = host._parts[0]._fork_server.pid
    return workers_of(fork_server), fork_server


@pytest.mark.parametrize("victim", ["grammar", "fork server"])
def test_a_process_that_is_killed_comes_back_where_it_was(host, victim):
    ready(host, "a", WORDS)
    ready(host, "b", WORDS)
    ready(host, "c", Params(choice=("xyz",)))
    rng = random.Random(1)
    for _ in range(7):
        sample(host, "a", rng)
    host.accept("b", [ord("c")])
    host.accept("c", [ord("x")])
    rows = [(0, "a"), (1, "b"), (2, "c")]
    host.request_masks(rows)
    before = host.collect_masks()
    children, fork_server = pids_of(host)
    for pid in children if victim == "grammar" else [fork_server]:
        os.kill(pid, signal.SIGKILL)
    host.request_masks(rows)
    assert host.collect_masks() == before
    assert host.poll() == []


def test_a_process_that_is_killed_between_request_and_response_comes_back(host):
    ready(host, "a", WORDS)
    host.accept("a", [ord("a")])
    before = mask(host, "a")
    [child], _ = pids_of(host)
    os.kill(child, signal.SIGSTOP)
    host.request_masks([(0, "a")])
    os.kill(child, signal.SIGKILL)
    [row] = host.collect_masks()
    assert allowed(row.words) == before


def test_all_processes_are_gone_after_shutdown(host):
    ready(host, "a", WORDS)
    host.submit("evil", HOSTILE["states"])
    time.sleep(0.2)
    children, fork_server = pids_of(host)
    assert len(children) == 2
    host.shutdown()
    host.shutdown()
    until = time.monotonic() + 5
    while any(os.path.exists(f"/proc/{pid}") for pid in [*children, fork_server]):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_after_a_shutdown_the_next_grammar_starts_all_anew(host):
    ready(host, "a", WORDS)
    host.shutdown()
    ready(host, "a", Params(choice=("xyz",)))
    assert mask(host, "a") == {ord("x")}


def test_a_grammar_that_cannot_be_sent_is_an_error_of_its_request(host):
    deep = []
    for _ in range(100_000):
        deep = [deep]
    for i, value in enumerate((deep, 2**70, "\ud800")):
        host.submit(f"{i}", Params(json={"const": value}))
    while deep:
        deep = deep.pop()  # a list this deep is taken apart by hand: its own end would recurse
    outcomes = dict(host.poll())
    assert set(outcomes) == {"0", "1", "2"}
    assert all("cannot be sent" in str(error) for error in outcomes.values())
    ready(host, "good", WORDS)


def test_a_request_that_is_over_leaves_no_matcher_behind(host, tmp_path, monkeypatch):
    write_distribution(tmp_path, "crowded", {"crowded": "crowded_plugin"}, **CROWDED)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in "abc":
        ready(host, name, Params(regex="a", backend="crowded"))
    host.release("a")
    assert mask(host, "c") == {1}, "0b10: this backend's mask is its number of live matchers"
    host.accept("b", [1])
    host.release("b")
    assert mask(host, "c") == {0}


def test_more_masks_than_rows_is_an_error(host):
    ready(host, "a", WORDS)
    with pytest.raises(ValueError, match="8 rows"):
        host.request_masks([(slot, "a") for slot in range(9)])
