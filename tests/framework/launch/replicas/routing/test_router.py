"""The router: the cheapest replica, no request lost or counted twice, no credit of the dead."""

import math
from itertools import pairwise

import msgspec
import pytest
from engine_parts import make_message
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from quire.engine.kv_cache.block_hash import BlockHasher
from quire.launch.replicas.routing.replica_loads import WARM_UP_S
from quire.launch.replicas.routing.router import Router
from quire.launch.replicas.routing.routing_policy import LeastLoaded, RoundRobin
from quire.messages import AdapterRef, EngineOutput

BLOCK = 4
SYSTEM = [5] * 4 * BLOCK


def make_router(num_replicas=3, policy=None, num_blocks=1000, has_cache=True):
    router = Router(num_replicas, BlockHasher(BLOCK, b"") if has_cache else None, policy)
    for replica in range(num_replicas):
        router.start(replica, num_blocks, 0.0)
    return router


def says(request_id, tokens=(1,), finish=None):
    return EngineOutput(request_id=request_id, token_ids=list(tokens), finish_reason=finish)


def test_without_hits_requests_go_to_the_least_loaded():
    router = make_router()
    long, *short = [make_message(str(i), prompt=[i] * (1000 if i == 0 else 10)) for i in range(5)]
    first = router.place(long, 0.0).replica
    assert first not in {router.place(request, 0.0).replica for request in short}


def test_the_next_turn_goes_where_the_conversation_is():
    router = make_router()
    prompt = list(range(40))
    placement = router.place(make_message("a", prompt=prompt), 0.0)
    completion = list(range(100, 108))
    router.apply(placement.replica, 1, [says("a", completion, "stop")])
    numbers = []
    for _ in range(3):  # wherever the turn of the least loaded is
        later = router.place(make_message("b", prompt=[*prompt, *completion, 1, 2]), 0.0)
        router.abort(later.replica, "b")
        assert later.replica == placement.replica
        numbers.append(later.num_cached_tokens)
    assert numbers == [44, 48, 48]  # the last token of a completion is not computed at first
    assert placement.num_cached_tokens == 0


def test_a_hit_counts_as_far_as_it_saves_work():
    router = make_router(2)
    prompt = [7] * 40
    holder = router.place(make_message("a", prompt=prompt), 0.0).replica
    router.apply(holder, 1, [says("a", [1], "stop")])
    router.loads.add(holder, 35)
    assert router.place(make_message("b", prompt=prompt), 0.0).replica == holder  # saves 36
    router.abort(holder, "b")
    router.loads.add(holder, 2)
    assert router.place(make_message("c", prompt=prompt), 0.0).replica != holder


def test_a_prompt_whose_logprobs_are_asked_for_has_no_hits():
    router = make_router(1)
    router.place(make_message("a", prompt=SYSTEM), 0.0)
    asked = make_message("b", prompt=SYSTEM, prompt_logprobs=1)
    assert router.place(asked, 0.0).num_cached_tokens == 0
    assert router.place(make_message("c", prompt=SYSTEM), 0.0).num_cached_tokens == 12


def test_an_adapter_that_the_engine_will_refuse_is_placed_by_load():
    router = make_router()
    nameless = make_message("a", prompt=SYSTEM)
    nameless = msgspec.structs.replace(nameless, adapter=AdapterRef("x", "x"))
    assert router.place(nameless, 0.0).num_cached_tokens == 0


def test_without_a_prefix_cache_nothing_counts_as_cached():
    router = make_router(1, has_cache=False)
    for name in "ab":
        placement = router.place(make_message(name, prompt=SYSTEM), 0.0)
        assert placement.num_cached_tokens == 0
    assert router.apply(0, 1, [says("a", [1], "stop")])


def test_without_replicas_there_is_no_place():
    router = make_router(1)
    router.stop(0)
    assert not router.has_replica
    with pytest.raises(RuntimeError, match="no replica to run on"):
        router.place(make_message("a"), 0.0)


def test_a_dead_replica_has_no_credit_after_its_restart():
    router = make_router(2)
    placement = router.place(make_message("a", prompt=SYSTEM), 0.0)
    router.apply(placement.replica, 1, [says("a", [1], "stop")])
    assert router.stop(placement.replica) == []
    assert router.start(placement.replica, 1000, 0.0) == 2
    assert (
        router.prefixes.num_held(placement.replica, router._hashes(make_message("b", SYSTEM))[1:])
        == 0
    )


def test_late_news_of_a_dead_replica_are_ignored():
    router = make_router(1)
    router.place(make_message("a", max_tokens=5), 0.0)
    assert router.stop(0) == ["a"]
    router.start(0, 1000, 0.0)
    router.place(make_message("a", max_tokens=5), 0.0)  # again, under its own name
    load = router.loads.tokens(0)
    assert router.apply(0, 1, [says("a", [9], "stop")]) == []
    assert router.loads.tokens(0) == load
    assert router.apply(0, 2, [says("a", [9], "stop")]) == [says("a", [9], "stop")]
    assert router.loads.tokens(0) == pytest.approx(0)
    assert router.apply(0, 2, [says("a", [9], "stop")]) == []


def test_a_computed_prompt_is_no_load_any_more():
    router = make_router(1)
    router.place(make_message("a", prompt=[1] * 30, max_tokens=5), 0.0)
    assert router.loads.tokens(0) == 35
    router.apply(0, 1, [says("a", [])])
    assert router.loads.tokens(0) == 35
    router.apply(0, 1, [says("a", [1])])
    assert router.loads.tokens(0) == 5
    router.apply(0, 1, [says("a", [1])])
    assert router.loads.tokens(0) == 5
    router.abort(0, "a")
    router.abort(0, "a")
    assert router.loads.tokens(0) == 0


def test_tokens_in_the_cache_are_no_load():
    router = make_router(1)
    router.place(make_message("a", prompt=[1] * 30, max_tokens=5), 0.0)
    router.place(make_message("b", prompt=[1] * 30, max_tokens=5), 0.0)
    assert router.loads.tokens(0) == 35 + 7  # 28 tokens are found


def test_the_expected_length_of_completions_follows_those_that_end():
    router = make_router(1)
    for _ in range(400):
        router.place(make_message("a", max_tokens=1000), 0.0)
        router.apply(0, 1, [says("a", [1] * 10, "stop")])
    router.place(make_message("a", prompt=[1], max_tokens=1000), 0.0)
    assert router.loads.tokens(0) == pytest.approx(11, rel=0.1)


def test_after_a_reset_nothing_counts_as_cached():
    router = make_router(1)
    router.place(make_message("a", prompt=SYSTEM), 0.0)
    router.reset_prefix_caches()
    assert router.place(make_message("b", prompt=SYSTEM), 0.0).num_cached_tokens == 0


def test_round_robin_and_least_loaded_are_what_they_are_called():
    router = make_router(3, RoundRobin())
    assert [router.place(make_message(str(i)), 0.0).replica for i in range(6)] == [0, 1, 2, 0, 1, 2]
    router = make_router(2, LeastLoaded())
    replicas = [router.place(make_message(str(i), prompt=SYSTEM), 0.0).replica for i in range(4)]
    assert sorted(replicas) == [0, 0, 1, 1]


def test_a_restarted_replica_fills_up_to_the_others_while_it_warms_up():
    router = make_router(10, num_blocks=0)

    def place(number, now_s):
        return router.place(make_message(f"{now_s}-{number}", prompt=[1] * 40), now_s).replica

    for number in range(1000):
        place(number, 0.0)
    router.stop(3)
    router.start(3, 0, 1.0)
    counts = []
    for step in range(11):
        now_s = 1.0 + step * WARM_UP_S / 10
        for number in range(20):
            place(number, now_s)
        counts.append(len(router._placed[3]))
    assert counts[0] == 0
    assert all(after - before <= 15 for before, after in pairwise(counts))
    assert counts[-1] >= 100


@given(
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=24), min_size=1, max_size=30),
    st.lists(st.integers(0, 40), min_size=4, max_size=4),
)
def test_the_cheapest_replica_is_chosen_and_the_imbalance_is_at_most_the_hit(prompts, loads):
    router = make_router(4)
    for replica, load in enumerate(loads):
        router.loads.add(replica, load)
    for number, prompt in enumerate(prompts):
        request = make_message(str(number), prompt=prompt)
        readable = router._hashes(request)[1 : 1 + (len(prompt) - 1) // BLOCK]
        before = [router.loads.tokens(replica) for replica in range(4)]
        held = [router.prefixes.num_held(replica, readable) for replica in range(4)]
        costs = [load - BLOCK * num for load, num in zip(before, held, strict=True)]
        placement = router.place(request, 0.0)
        chosen = placement.replica
        assert costs[chosen] == min(costs)
        assert placement.num_cached_tokens == BLOCK * held[chosen]
        assert before[chosen] - min(before) <= placement.num_cached_tokens


class RouterMachine(RuleBasedStateMachine):
    """Requests, their outputs, aborts, deaths and restarts in any order, with late news."""

    @initialize()
    def begin(self):
        self.router = make_router(3, num_blocks=6)
        self.incarnations = [1, 1, 1]
        self.is_up = [True] * 3
        self.open = {}  # request id -> placement
        self.old = []  # placements that are not current any more, with their ids
        self.count, self.now = 0, 0.0

    @precondition(lambda self: any(self.is_up))
    @rule(prompt=st.lists(st.integers(0, 1), min_size=1, max_size=20))
    def place(self, prompt):
        request_id = f"r{self.count}"
        self.count += 1
        placement = self.router.place(make_message(request_id, prompt=prompt), self.now)
        assert self.is_up[placement.replica]
        assert placement.incarnation == self.incarnations[placement.replica]
        self.open[request_id] = placement

    @precondition(lambda self: self.open)
    @rule(data=st.data(), tokens=st.lists(st.integers(0, 1), max_size=4))
    def advance(self, data, tokens):
        request_id = data.draw(st.sampled_from(sorted(self.open)))
        finish = data.draw(st.sampled_from([None, "stop", "error"]))
        placement = self.open[request_id]
        output = says(request_id, tokens, finish)
        news = [output, says("unknown", [1], "stop")]
        assert self.router.apply(placement.replica, placement.incarnation, news) == [output]
        if finish is not None:
            self.old.append((request_id, self.open.pop(request_id)))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def abort(self, data):
        request_id = data.draw(st.sampled_from(sorted(self.open)))
        placement = self.open.pop(request_id)
        self.router.abort(placement.replica, request_id)
        self.old.append((request_id, placement))

    @rule(replica=st.integers(0, 2))
    def stop(self, replica):
        lost = {i for i, placement in self.open.items() if placement.replica == replica}
        assert set(self.router.stop(replica)) == lost
        self.is_up[replica] = False
        for request_id in lost:
            self.old.append((request_id, self.open.pop(request_id)))

    @rule(replica=st.integers(0, 2), wait_s=st.integers(0, 15))
    def start(self, replica, wait_s):
        self.now += wait_s
        self.stop(replica)
        self.incarnations[replica] += 1
        assert self.router.start(replica, 6, self.now) == self.incarnations[replica]
        self.is_up[replica] = True

    @precondition(lambda self: self.old)
    @rule(data=st.data())
    def late_news_change_nothing(self, data):
        request_id, placement = data.draw(st.sampled_from(self.old))
        before = [self.router.loads.tokens(replica) for replica in range(3)]
        news = [says(request_id, [1, 1], "stop")]
        assert self.router.apply(placement.replica, placement.incarnation, news) == []
        assert [self.router.loads.tokens(replica) for replica in range(3)] == before

    @invariant()
    def every_open_request_is_on_its_replica_and_nothing_else_is(self):
        if not hasattr(self, "router"):
            return
        for replica in range(3):
            expected = {i for i, placement in self.open.items() if placement.replica == replica}
            assert set(self.router._placed[replica]) == expected
            load = sum(
                p.prompt_load + p.completion_load for p in self.router._placed[replica].values()
            )
            assert math.isclose(self.router.loads.tokens(replica), load, abs_tol=1e-6)
            assert self.router.loads.is_up(replica) == self.is_up[replica]


TestRouter = RouterMachine.TestCase
