import logging

import pytest
from engine_parts import InOrder, make_core, make_message, make_request, run_to_end

from quire.engine.scheduling.guarded_policy import GuardedPolicy
from quire.errors import RequestFailedError


class ByAnswer(InOrder):
    """Its keys compare with some others only."""

    def order(self, request):
        length = request.num_prompt_tokens
        return (request.priority, None if length < 3 else length)


class ByAdapter(InOrder):
    """Likewise."""

    def order(self, request):
        return (0, request.adapter_name)


class Meddles(InOrder):
    """Tries to change what it is shown."""

    def admits(self, request, running):
        running.clear()
        return True

    def victim(self, running):
        running.pop()
        return 0


class Keeps(InOrder):
    """Keeps an account of what runs."""

    def __init__(self):
        self.ids = []

    def began(self, request):
        self.ids.append(request.request_id)

    def ended(self, request):
        self.ids.remove(request.request_id)


class Broken(InOrder):
    """A package's policy that fails in some of its decisions."""

    def __init__(self, **broken):
        self.broken = broken

    def order(self, request):
        return self._decide("order", 0)

    def admits(self, request, running):
        return self._decide("admits", True)

    def victim(self, running):
        return self._decide("victim", 0)

    def _decide(self, name, usual):
        decision = self.broken.get(name, usual)
        if isinstance(decision, Exception):
            raise decision
        return decision


REQUESTS = [make_request(name) for name in "abc"]


@pytest.mark.parametrize("key", [ValueError("no key"), object(), float("nan"), (1, {2})])
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


def test_an_engine_with_a_broken_policy_serves_all_the_same():
    policy = Broken(admits=ValueError(), victim=ValueError())
    core, _, _ = make_core(num_blocks=9, policy=policy)
    for index in range(4):
        start = 100 * index + 5
        core.add(make_message(f"r{index}", prompt=range(start, start + 6), max_tokens=14))
    completions = run_to_end(core)
    assert core.scheduler.num_preemptions > 0
    assert all(len(completions[f"r{index}"]) == 14 for index in range(4))


def test_a_policy_without_an_order_fails_each_request_alone():
    core, _, _ = make_core(policy=Broken(order=ValueError()))
    core.add(make_message("a"))
    (output,) = core.step().outputs
    assert output.error.code == "request_failed"
    assert not core.has_work()


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("policy", [ByAnswer, ByAdapter])
def test_keys_that_compare_sometimes_fail_no_other_request(policy, async_scheduling):
    core, _, _ = make_core(num_blocks=9, policy=policy(), async_scheduling=async_scheduling)
    names = [f"r{index}" for index in range(8)]
    for index, name in enumerate(names):
        prompt = range(100 * index + 5, 100 * index + 6 + index)
        adapter = (None, "one")[index % 2]
        core.add(make_message(name, prompt=prompt, max_tokens=9, adapter=adapter))
    core.abort(["r5"])  # waits in the middle
    completions = run_to_end(core)
    assert core.scheduler.num_preemptions > 0
    assert {name: len(completions[name]) for name in completions} == dict.fromkeys(
        set(names) - {"r5"}, 9
    )
    assert not core.scheduler.requests


def test_a_key_that_is_no_number_fails_that_request_alone():
    class OddOnes(InOrder):
        def order(self, request):
            return float("nan") if request.num_prompt_tokens == 2 else 0

    core, _, _ = make_core(policy=OddOnes())
    for name, prompt in (("a", [7]), ("b", [8, 9]), ("c", [5, 6, 7])):
        core.add(make_message(name, prompt=prompt))
    assert list(core.scheduler.requests) == ["a", "c"]
    assert [said.error.code for said in core.step().outputs if said.error] == ["request_failed"]
    assert set(run_to_end(core)) == {"a", "c"}


def test_those_that_run_can_be_looked_at_only():
    running, policy = list(REQUESTS), GuardedPolicy(Meddles())
    assert policy.admits(REQUESTS[0], running)
    assert policy.victim(running) == 2, "it failed, so the last"
    assert running == REQUESTS


def test_those_that_run_are_a_sequence():
    class Looks(InOrder):
        def victim(self, running):
            assert [*running] == REQUESTS
            assert (running[0], running[-1], len(running)) == (*REQUESTS[::2], 3)
            assert running[1:] == (*REQUESTS[1:],)
            assert REQUESTS[1] in running
            return running.index(REQUESTS[1])

    assert GuardedPolicy(Looks()).victim(REQUESTS) == 1


def test_starts_and_ends_are_notified():
    policy = Keeps()
    guarded = GuardedPolicy(policy)
    guarded.began(REQUESTS[0])
    guarded.began(REQUESTS[1])
    assert policy.ids == ["a", "b"]
    guarded.ended(REQUESTS[0])
    assert policy.ids == ["b"]


@pytest.mark.parametrize("error", [ValueError("never began"), KeyError("a")])
def test_an_account_that_fails_is_logged_and_no_more(caplog, error):
    class Account(InOrder):
        def ended(self, request):
            raise error

    guarded = GuardedPolicy(Account())
    with caplog.at_level(logging.ERROR):
        guarded.ended(REQUESTS[0])
    assert len(caplog.records) == 1
