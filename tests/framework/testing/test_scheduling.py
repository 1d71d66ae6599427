"""Scheduling conformance kit: every check rejects a broken policy, and right ones pass."""

import pytest

from quire.interfaces.scheduling import SchedulingPolicy
from quire.testing.scheduling import SchedulingPolicyContract


class Arrival(SchedulingPolicy):
    def order(self, request):
        return request.arrival_s


class KeepsAccounts(Arrival):
    """Runs two requests per adapter, and preempts the one with the most tokens."""

    def __init__(self):
        self.running = {}

    def admits(self, request, running):
        return sum(each.adapter_name == request.adapter_name for each in running) < 2

    def victim(self, running):
        return max(range(len(running)), key=lambda index: running[index].max_total_tokens)

    def began(self, request):
        if request.request_id in self.running:
            raise KeyError(request.request_id)
        self.running[request.request_id] = request

    def ended(self, request):
        del self.running[request.request_id]


class ComparesSometimes(SchedulingPolicy):
    """Mixes keys of different types, which must be sortable."""

    def order(self, request):
        length = request.num_prompt_tokens
        return (request.priority, request.adapter_name, None if length < 9 else length)


class OneAtATime(Arrival):
    def admits(self, request, running):
        return False


class TestKeepsAccounts(SchedulingPolicyContract):
    policy = KeepsAccounts


class TestComparesSometimes(SchedulingPolicyContract):
    policy = ComparesSometimes


class TestOneAtATime(SchedulingPolicyContract):
    policy = OneAtATime


class Fickle(SchedulingPolicy):
    def __init__(self):
        self.num_calls = 0

    def order(self, request):
        self.num_calls += 1
        return self.num_calls


class NotANumber(SchedulingPolicy):
    def order(self, request):
        return float("nan")


class NoPlainData(SchedulingPolicy):
    def order(self, request):
        return (request.priority, {request.adapter_name})


class NamesOneBehindTheLast(Arrival):
    def victim(self, running):
        return len(running)


class CountsFromTheEnd(Arrival):
    def victim(self, running):
        return -1


class NamesTheRequest(Arrival):
    """Returns a wrong index if many requests run."""

    def victim(self, running):
        return running[-1].num_prompt_tokens if len(running) > 30 else 0


class CountsItsCalls(Arrival):
    def __init__(self):
        self.num_calls = 0

    def admits(self, request, running):
        self.num_calls += 1
        return self.num_calls < 20


class AgesThoseThatWait(Arrival):
    def __init__(self):
        self.num_calls = 0

    def order(self, request):
        return self.num_calls

    def admits(self, request, running):
        self.num_calls += 1
        return True


class BeginsOnce(KeepsAccounts):
    """Forgets that a preempted request begins again."""

    def ended(self, request):
        pass


class EndsTwice(KeepsAccounts):
    """Removes a request when it is chosen as the victim, and again when it ends."""

    def victim(self, running):
        index = super().victim(running)
        self.running.pop(running[index].request_id)
        return index


class SortsTheRunning(Arrival):
    def victim(self, running):
        running.sort(key=lambda request: request.priority)
        return 0


class WritesToRequests(Arrival):
    def admits(self, request, running):
        request.num_preemptions = 0
        return True


class ReadsTokens(SchedulingPolicy):
    def order(self, request):
        return len(request.token_ids)


class AdmitsByAMap(KeepsAccounts):
    """Handles three adapters, but not a request without one."""

    def admits(self, request, running):
        return {"one": True, "two": True, "three": True}[request.adapter_name]


class NoOrderForSome(SchedulingPolicy):
    def order(self, request):
        return 10 // request.priority


KEYS = "keys_can_be_compared_and_do_not_change"
VICTIM = "the_victim_is_a_running_request"
AGAIN = "repeated_calls_give_the_same_result"
ENGINE = "it_raises_nothing_while_the_engine_runs"
PROOFS = [
    (Fickle, KEYS, "order must return the same key"),
    (NotANumber, KEYS, "unsortable key .* NaN"),
    (NoPlainData, KEYS, "unsortable key .* not set"),
    (NamesOneBehindTheLast, VICTIM, "index 1 of 1 running requests"),
    (CountsFromTheEnd, VICTIM, "index -1 of 1"),
    (NamesTheRequest, VICTIM, "of 3[0-9] running requests"),
    (CountsItsCalls, AGAIN, "admits must return the same result"),
    (AgesThoseThatWait, AGAIN, "changed the key"),
    (BeginsOnce, ENGINE, "raised in began"),
    (EndsTwice, ENGINE, "raised in ended"),
    (SortsTheRunning, ENGINE, "raised in victim"),
    (AdmitsByAMap, ENGINE, "raised in admits"),
]


@pytest.mark.parametrize(("policy", "test", "reason"), PROOFS)
def test_a_broken_policy_is_rejected(policy, test, reason):
    contract = type("Contract", (SchedulingPolicyContract,), {"policy": policy})()
    with pytest.raises(AssertionError, match=reason):
        getattr(contract, f"test_{test}")()


@pytest.mark.parametrize(
    ("policy", "test"), [(WritesToRequests, AGAIN), (ReadsTokens, KEYS), (SortsTheRunning, VICTIM)]
)
def test_a_policy_that_does_more_than_look_fails_where_it_does(policy, test):
    contract = type("Contract", (SchedulingPolicyContract,), {"policy": policy})()
    with pytest.raises(AttributeError):
        getattr(contract, f"test_{test}")()


def test_a_policy_without_a_key_for_a_request_is_rejected():
    contract = type("Contract", (SchedulingPolicyContract,), {"policy": NoOrderForSome})()
    with pytest.raises(ZeroDivisionError):
        contract.test_keys_can_be_compared_and_do_not_change()


def test_each_test_of_the_kit_has_a_policy_that_fails_it():
    tests = {name for name in dir(SchedulingPolicyContract) if name.startswith("test_")}
    assert tests == {f"test_{test}" for _, test, _ in PROOFS}
