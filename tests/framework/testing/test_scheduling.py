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


class NoPlainData(SchedulingPolicy):
    def order(self, request):
        return (request.priority, {request.adapter_name})


class ComparesSometimes(SchedulingPolicy):
    def order(self, request):
        length = request.num_prompt_tokens
        return (request.priority, request.adapter_name, None if length < 9 else length)


class CountsItsQuestions(SchedulingPolicy):
    def __init__(self):
        self.num_asked = 0

    def order(self, request):
        return 0

    def admits(self, request, running):
        self.num_asked += 1
        return self.num_asked < 20


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


@pytest.mark.parametrize("kind", [Fickle, Incomparable, NoPlainData])
def test_keys_without_an_order_are_seen(kind):
    with pytest.raises(AssertionError, match="key"):
        contract(kind).test_keys_can_be_compared_and_do_not_change()


def test_a_victim_that_does_not_run_is_seen():
    with pytest.raises(AssertionError, match="victim"):
        contract(ChoosesNobody).test_the_victim_is_one_of_those_that_run()


def test_one_at_a_time_is_slow_and_allowed():
    contract(AdmitsNobodyBeside).test_everybody_gets_an_answer()


def test_keys_that_compare_sometimes_have_a_place():
    contract(ComparesSometimes).test_keys_can_be_compared_and_do_not_change()
    contract(ComparesSometimes).test_everybody_gets_an_answer()


def test_an_answer_that_wears_out_is_seen():
    with pytest.raises(AssertionError, match="changed its mind"):
        contract(CountsItsQuestions).test_a_request_may_be_asked_about_again()
