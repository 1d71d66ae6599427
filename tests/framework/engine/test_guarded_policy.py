import logging

import pytest
from engine_parts import InOrder, make_core, make_message, make_request, run_to_end

from quire.engine.guarded_policy import GuardedPolicy
from quire.errors import RequestFailedError


class Broken(InOrder):
    """A package's policy that fails in some of its answers."""

    def __init__(self, **broken):
        self.broken = broken

    def order(self, request):
        return self._answer("order", 0)

    def admits(self, request, running):
        return self._answer("admits", True)

    def victim(self, running):
        return self._answer("victim", 0)

    def _answer(self, name, usual):
        answer = self.broken.get(name, usual)
        if isinstance(answer, Exception):
            raise answer
        return answer


REQUESTS = [make_request(name) for name in "abc"]


@pytest.mark.parametrize("key", [ValueError("no key"), object()])
def test_a_request_without_a_place_in_the_queue_fails(key):
    with pytest.raises(RequestFailedError, match=r"test_guarded_policy\.Broken failed"):
        GuardedPolicy(Broken(order=key)).order(REQUESTS[0])


def test_admission_that_fails_admits():
    assert GuardedPolicy(Broken(admits=ValueError())).admits(REQUESTS[0], REQUESTS[1:])


@pytest.mark.parametrize("victim", [ValueError(), 7, "nobody", None])
def test_a_victim_that_is_not_there_is_the_last(victim):
    assert GuardedPolicy(Broken(victim=victim)).victim(REQUESTS) == 2


def test_a_victim_is_an_index_from_either_end():
    assert GuardedPolicy(Broken(victim=0)).victim(REQUESTS) == 0
    assert GuardedPolicy(Broken(victim=-1)).victim(REQUESTS) == 2


def test_the_log_has_the_error_once(caplog):
    policy = GuardedPolicy(Broken(victim=ValueError("odd")))
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            policy.victim(REQUESTS)
    assert len(caplog.records) == 1


def test_an_engine_with_a_broken_policy_answers_all_the_same():
    policy = Broken(admits=ValueError(), victim=ValueError())
    core, _, _ = make_core(num_blocks=9, policy=policy)
    for index in range(4):
        start = 100 * index + 5
        core.add(make_message(f"r{index}", prompt=range(start, start + 6), max_tokens=14))
    answers = run_to_end(core)
    assert core.scheduler.num_preemptions > 0
    assert all(len(answers[f"r{index}"]) == 14 for index in range(4))


def test_a_policy_without_an_order_fails_each_request_alone():
    core, _, _ = make_core(policy=Broken(order=ValueError()))
    core.add(make_message("a"))
    (output,) = core.step().outputs
    assert output.error.code == "request_failed"
    assert not core.has_work()
