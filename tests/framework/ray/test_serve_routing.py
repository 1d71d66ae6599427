"""Requests go where their prefix is cached; replicas come, go, and have requests of others."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from quire.ray.prompt_reader import NO_TOKENS, PromptTokens
from quire.ray.serve_routing import FOREIGN_TOKENS, ReplicaFacts, ReplicaLoad, ServeRouting

FACTS = ReplicaFacts(block_size=4, num_blocks=64)
NAMES = ("a", "b", "c")


def prompt(*token_ids, owner="model", max_tokens=8):
    return PromptTokens(list(token_ids), owner, max_tokens)


LONG = prompt(*range(40))
OTHER = prompt(*range(100, 140))


@pytest.fixture
def routing():
    made = ServeRouting(clock=lambda: 0.0)
    made.update(dict.fromkeys(NAMES, FACTS))
    return made


def test_without_replicas_there_is_no_order():
    assert ServeRouting().place("r", LONG) == []


def test_a_prefix_is_routed_to_the_replica_that_computed_it(routing):
    first = routing.place("r1", LONG)[0]
    routing.end("r1", first)
    routing.place("r2", OTHER)
    assert routing.place("r3", LONG)[0] == first


def test_prefixes_of_another_owner_do_not_count(routing):
    first = routing.place("r1", LONG)[0]
    routing.end("r1")
    same = prompt(*range(40), owner="model\nanother salt")
    assert routing.place("r2", same)[0] != first


def test_a_burst_is_shared_though_no_replica_has_answered_yet(routing):
    found = [routing.place(f"r{i}", prompt(i * 7, *range(30)))[0] for i in range(9)]
    assert {found.count(name) for name in NAMES} == {3}


def test_the_others_follow_by_load(routing):
    names = [routing.place("r1", LONG)[0], routing.place("r2", prompt(1))[0]]
    order = routing.place("r3", prompt(2))
    assert order == [next(n for n in NAMES if n not in names), names[1], names[0]]


def test_a_request_that_ends_leaves_no_load(routing):
    name = routing.place("r", LONG)[0]
    assert routing.load(name) == 48
    routing.end("r", name)
    assert routing.load(name) == 0


def test_a_request_that_is_placed_again_counts_once(routing):
    routing.place("r", LONG)
    routing.place("r", LONG)
    assert sum(map(routing.load, NAMES)) <= 48


def test_a_request_counts_on_the_replica_that_has_taken_it(routing):
    chosen, other, _ = routing.place("r", LONG)
    routing.move("r", other)
    assert (routing.load(chosen), routing.load(other)) == (0, 48)
    routing.end("r", chosen)
    assert routing.load(other) == 48
    routing.end("r", other)
    assert routing.load(other) == 0


def test_a_replica_that_is_gone_takes_its_requests_and_prefixes_along(routing):
    name = routing.place("r1", LONG)[0]
    routing.end("r1", name)
    routing.place("r2", LONG)
    left = {other: FACTS for other in NAMES if other != name}
    routing.update(left)
    assert name not in routing.place("r3", LONG)
    routing.end("r2", name)
    routing.update(left | {"d": FACTS})
    assert routing.load("d") == 0
    routing.place("r4", prompt(1))
    assert routing.place("r5", LONG)[0] != "d"


def test_requests_of_other_routers_are_load(routing):
    routing.report("a", ReplicaLoad(num_requests=3))
    assert routing.load("a") == 3 * FOREIGN_TOKENS
    assert routing.place("r", prompt(1))[0] != "a"
    routing.report("a", ReplicaLoad())
    assert routing.load("a") == 0


def test_a_report_that_was_read_is_not_decoded_again(routing):
    """It may be large, and Serve passes it on with each request."""
    routing.read("a", {"num_requests": 1})
    routing.read("a", {"num_requests": True})  # is equal, and is refused if it is decoded
    assert routing.load("a") == FOREIGN_TOKENS
    routing.read("a", {"num_requests": 2})
    assert routing.load("a") == 2 * FOREIGN_TOKENS


def test_a_report_of_a_replica_that_is_gone_is_left_out(routing):
    routing.read("a", {"num_requests": 1})
    routing.update({"b": FACTS})
    routing.read("a", {"num_requests": 2})
    routing.update({"a": FACTS})
    assert routing.load("a") == 0
    routing.read("a", {"num_requests": 1})
    assert routing.load("a") == FOREIGN_TOKENS


def test_own_requests_in_a_report_count_once(routing):
    name = routing.place("r", LONG)[0]
    routing.report(name, ReplicaLoad(num_requests=1))
    assert routing.load(name) == 48


def test_a_cleared_cache_is_forgotten(routing):
    name = routing.place("r1", LONG)[0]
    routing.end("r1", name)
    routing.report(name, ReplicaLoad(num_resets=1))
    routing.place("r2", prompt(1))
    assert routing.place("r3", LONG)[0] != name


def test_replicas_without_a_prefix_cache_are_chosen_by_load():
    routing = ServeRouting(clock=lambda: 0.0)
    routing.update({"a": ReplicaFacts(), "b": ReplicaFacts()})
    names = [routing.place(f"r{i}", LONG)[0] for i in range(4)]
    assert sorted(names) == ["a", "a", "b", "b"]


def test_a_prompt_that_is_not_known_is_routed_by_load(routing):
    found = [routing.place(f"r{i}", NO_TOKENS)[0] for i in range(6)]
    assert {found.count(name) for name in NAMES} == {2}


class Replicas(RuleBasedStateMachine):
    """Replicas come and go while requests are placed, moved and ended in any order."""

    def __init__(self):
        super().__init__()
        self.routing = ServeRouting(clock=lambda: 0.0)
        self.up = {}
        self.open = {}
        self.num_requests = self.num_replicas = 0

    @rule()
    def add_replica(self):
        self.num_replicas += 1
        self.up[f"replica {self.num_replicas}"] = FACTS
        self.routing.update(self.up)

    @precondition(lambda self: self.up)
    @rule(data=st.data())
    def remove_replica(self, data):
        gone = data.draw(st.sampled_from(sorted(self.up)))
        del self.up[gone]
        self.routing.update(self.up)
        self.open = {key: name for key, name in self.open.items() if name != gone}

    @precondition(lambda self: self.up)
    @rule(num_tokens=st.integers(0, 30))
    def place(self, num_tokens):
        self.num_requests += 1
        request_id = f"request {self.num_requests}"
        order = self.routing.place(request_id, prompt(*range(num_tokens)))
        assert sorted(order) == sorted(self.up)
        self.open[request_id] = order[0]

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def move(self, data):
        request_id = data.draw(st.sampled_from(sorted(self.open)))
        name = data.draw(st.sampled_from(sorted(self.up)))
        self.routing.move(request_id, name)
        self.open[request_id] = name

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def end(self, data):
        request_id = data.draw(st.sampled_from(sorted(self.open)))
        self.routing.end(request_id, self.open.pop(request_id))

    @invariant()
    def load_is_that_of_open_requests(self):
        for name in self.up:
            has_requests = name in self.open.values()
            assert (self.routing.load(name) > 0) == has_requests
            assert self.routing.load(name) >= 0


TestReplicas = Replicas.TestCase
TestReplicas.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
