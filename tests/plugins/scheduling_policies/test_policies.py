import pytest

from quire.engine.request import Request
from quire.messages import EngineRequest
from quire.sampling_params import SamplingParams
from quire.testing.scheduling import SchedulingPolicyContract
from quire_scheduling_policies.fcfs import FirstComeFirstServed
from quire_scheduling_policies.priority import PriorityFirst


class TestFirstComeFirstServed(SchedulingPolicyContract):
    policy = FirstComeFirstServed


class TestPriorityFirst(SchedulingPolicyContract):
    policy = PriorityFirst


def request(priority, num_tokens=1):
    message = EngineRequest(
        request_id="a",
        token_ids=[1] * num_tokens,
        params=SamplingParams(),
        max_tokens=1,
        seed=0,
        priority=priority,
    )
    return Request(message, 1)


def test_lower_priorities_go_first():
    policy = PriorityFirst()
    keys = [policy.order(request(priority)) for priority in (3, -1, 0)]
    assert sorted(keys) == [-1, 0, 3]


def test_first_come_first_served_does_not_look_at_priorities():
    policy = FirstComeFirstServed()
    assert policy.order(request(5)) == policy.order(request(-5))


@pytest.mark.parametrize("policy", [FirstComeFirstServed(), PriorityFirst()])
def test_short_prompts_do_not_overtake_long_ones(policy):
    assert policy.order(request(0)) == policy.order(request(0, num_tokens=9))


def test_both_offer_their_names(quire_registries):
    registry = quire_registries.scheduling_policies
    assert registry.get("fcfs") is FirstComeFirstServed
    assert registry.get("priority") is PriorityFirst


def test_only_the_one_that_reads_priorities_says_so(quire_registries):
    registry = quire_registries.scheduling_policies
    read = {name: registry.entry(name).capabilities.reads_priority for name in registry}
    assert (read["fcfs"], read["priority"]) == (False, True)
