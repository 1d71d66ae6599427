"""A simulated cluster: every request ends once, whatever dies; the checks notice bad routers."""

from collections import Counter
from dataclasses import replace

import pytest

from quire.cli.bench.bench_cluster import simulate
from quire.cli.bench.cluster.cluster_figures import PolicyFigures, checks
from quire.cli.bench.cluster.cluster_load import ClusterLoad
from quire.cli.bench.cluster.virtual_cluster import ClusterShape, VirtualCluster
from quire.cli.bench.null_engine import EngineParts
from quire.launch.replicas.routing import replica_loads, router
from quire.launch.replicas.routing.routing_policy import CachedPrefix, LeastLoaded

SHAPE = ClusterShape(num_replicas=8, num_blocks=200, num_deaths=6, restart_s=2.0)
LOAD = ClusterLoad(num_requests=400, rate=16.0, completion_len=16, system_len=128, think_s=2.0)
BUSY = ClusterLoad(num_requests=600, rate=36.0, completion_len=16, system_len=128, think_s=1.0)


@pytest.fixture(scope="module")
def parts():
    return EngineParts.load()


def run(parts, load=LOAD, shape=SHAPE, policy=CachedPrefix):
    return VirtualCluster(shape, load, parts, policy()).run()


def test_all_checks_hold_on_a_small_cluster():
    figures = simulate(SHAPE, LOAD, ["round_robin", "least_loaded", "prefix", "oracle"])
    assert checks(figures) == {
        "no request is lost": True,
        "no request runs twice": True,
        "imbalance is bounded by the hit": True,
        "no herd after a restart": True,
        "hits within 5 % of the oracle's": True,
    }
    assert figures["prefix"].hit_rate > 1.3 * figures["least_loaded"].hit_rate
    assert figures["prefix"].first_token_s_median < figures["round_robin"].first_token_s_median
    assert all(each.num_requests == 400 for each in figures.values())
    assert all(each.num_finished + each.num_failed == 400 for each in figures.values())


def test_events_tell_several_routers_what_others_have_sent():
    """One of the four starts anew, replicas die, and batches are lost."""
    figures = simulate(SHAPE, LOAD, ["split", "split_events", "oracle"], 4, 0.5)
    assert all(checks(figures).values())
    assert len(checks(figures)) == 4
    assert figures["split_events"].hit_rate > 1.2 * figures["split"].hit_rate
    assert figures["split_events"].num_finished + figures["split_events"].num_failed == 400


def test_deaths_fail_only_what_had_tokens_and_run_the_rest_again(parts):
    trace = run(parts, BUSY)
    ends = Counter(each.end for each in trace.requests.values())
    assert ends["finished"] > 500
    assert ends["failed"] > 0
    failed = [each for each in trace.requests.values() if each.end == "failed"]
    assert all(each.num_tokens or each.num_runs == 2 for each in failed)
    again = [each for each in trace.requests.values() if each.num_runs == 2]
    assert any(each.end == "finished" for each in again)
    assert len(trace.herds) >= 4  # a replica that is down cannot die


def test_equal_seeds_give_equal_runs(parts):
    first, second = (PolicyFigures.of(run(parts)) for _ in range(2))
    assert first == second
    other = ClusterShape(num_replicas=8, num_blocks=200, num_deaths=6, restart_s=2.0, seed=1)
    assert PolicyFigures.of(run(parts, shape=other)) != first


def test_a_router_without_warm_up_makes_a_herd_and_the_check_says_so(parts, monkeypatch):
    shape = ClusterShape(num_replicas=16, num_blocks=200, num_deaths=4)
    load = replace(BUSY, num_requests=800, rate=40.0, lone_share=0.9)
    good = PolicyFigures.of(run(parts, load, shape))
    assert checks({"prefix": good})["no herd after a restart"]
    monkeypatch.setattr(replica_loads, "WARM_UP_S", 1e-9)
    bad = PolicyFigures.of(run(parts, load, shape))
    assert not checks({"prefix": bad})["no herd after a restart"]


def test_a_router_that_loses_a_request_is_noticed(parts, monkeypatch):
    def forget_one(self, replica):
        lost = original(self, replica)
        return lost[1:]

    original = router.Router.stop
    monkeypatch.setattr(router.Router, "stop", forget_one)
    found = checks({"prefix": PolicyFigures.of(run(parts, BUSY))})
    assert not found["no request is lost"]


def test_news_of_the_dead_that_are_taken_are_noticed(parts, monkeypatch):
    def apply_all(self, replica, incarnation, outputs):
        del replica, incarnation
        return list(outputs)

    monkeypatch.setattr(router.Router, "apply", apply_all)
    found = checks({"prefix": PolicyFigures.of(run(parts, BUSY))})
    assert not found["no request runs twice"]


def test_a_policy_that_ignores_caches_is_far_from_the_oracle(parts):
    figures = simulate(SHAPE, LOAD, ["oracle"])
    figures["prefix"] = PolicyFigures.of(run(parts, policy=LeastLoaded))
    assert not checks(figures)["hits within 5 % of the oracle's"]


def test_a_policy_that_ignores_loads_has_an_unbounded_imbalance(parts):
    class First(LeastLoaded):
        def choose(self, prompt, loads, prefixes):
            return next(replica for replica in range(8) if loads.is_up(replica))

    found = checks({"prefix": PolicyFigures.of(run(parts, policy=First))})
    assert not found["imbalance is bounded by the hit"]


def test_with_one_replica_requests_wait_for_its_restart(parts):
    shape = ClusterShape(num_replicas=1, num_blocks=200, num_deaths=2, restart_s=3.0)
    load = ClusterLoad(num_requests=60, rate=2.0, completion_len=8)
    trace = run(parts, load, shape)
    assert all(each.end is not None for each in trace.requests.values())
    assert len(trace.herds) == 2
