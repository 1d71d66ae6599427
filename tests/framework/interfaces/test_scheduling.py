"""Defaults of scheduling policies: a policy that only implements `order`."""

from quire.interfaces.scheduling import SchedulingPolicy, SchedulingPolicyCapabilities


class Plain(SchedulingPolicy):
    def order(self, request):
        return 0


def test_by_default_all_are_admitted_and_the_last_is_preempted():
    policy = Plain()
    assert policy.admits("new", []) is True
    assert policy.admits("new", ["one", "two"]) is True
    assert [policy.victim(["request"] * count) for count in (1, 2, 5)] == [0, 1, 4]


def test_a_policy_that_declares_nothing_does_not_read_priorities():
    assert not SchedulingPolicyCapabilities().reads_priority
