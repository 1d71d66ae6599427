"""The kit sees policies that break the contract."""

import pytest

from quire.interfaces.scheduling import SchedulingPolicy
from quire.testing.scheduling import SchedulingPolicyContract


class Fickle(SchedulingPolicy):
    def __init__(self):
        self.calls = 0

    def order(self, request):
        self.calls += 1
        return self.calls


class Incomparable(SchedulingPolicy):
    def order(self, request):
        return float("nan")


class ChoosesNobody(SchedulingPolicy):
    def order(self, request):
        return 0

    def victim(self, running):
        return len(running)


class AdmitsNobodyBeside(SchedulingPolicy):
    def order(self, request):
        return 0

    def admits(self, request, running):
        return False


def contract(kind):
    return type("Contract", (SchedulingPolicyContract,), {"policy": kind})()


@pytest.mark.parametrize("kind", [Fickle, Incomparable])
def test_keys_without_an_order_are_seen(kind):
    with pytest.raises(AssertionError, match="key"):
        contract(kind).test_keys_can_be_compared_and_do_not_change()


def test_a_victim_that_does_not_run_is_seen():
    with pytest.raises(AssertionError, match="victim"):
        contract(ChoosesNobody).test_the_victim_is_one_of_those_that_run()


def test_one_at_a_time_is_slow_and_allowed():
    contract(AdmitsNobodyBeside).test_everybody_gets_an_answer()
