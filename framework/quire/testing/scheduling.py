"""The conformance kit of scheduling policies: whatever the order, everybody gets an answer.

    from quire.testing.scheduling import SchedulingPolicyContract

    class TestShortest(SchedulingPolicyContract):
        policy = ShortestFirst

pytest collects the tests of the contract with the class. They drive the engine's own scheduler with
a cache that is too small for all, and no model.
"""

import random
from typing import ClassVar

from quire.config import SchedulerSettings
from quire.engine.kv_cache import KVCacheManager
from quire.engine.kv_plan import fixed_plan
from quire.engine.request import Request
from quire.engine.scheduler import Scheduler
from quire.engine.sort_key import SortKey, sort_key
from quire.interfaces.kv_cache import KVLayer
from quire.interfaces.scheduling import SchedulingPolicy
from quire.messages import AdapterRef, EngineRequest, SlotResult, StepPlan, StepResult
from quire.sampling_params import SamplingParams
from quire.testing.whole_context import WholeContext

NUM_BLOCKS = 24
BLOCK_SIZE = 4
MAX_STEPS = 5000
MAX_ASKED = 100
ADAPTERS = [None, *(AdapterRef(name, name, content_hash=name) for name in ("one", "two", "three"))]


class SchedulingPolicyContract:
    """Inherit from it and name the policy; pytest does the rest.

    Attributes:
        policy: The class under test.
        num_requests: How many are scheduled in each run.
    """

    policy: ClassVar[type[SchedulingPolicy]]
    num_requests: ClassVar[int] = 40

    def test_keys_can_be_compared_and_do_not_change(self) -> None:
        """Each key is plain data, and a request asked twice has the same one."""
        policy, requests = self.policy(), _requests(self.num_requests, seed=1)
        keys = [_key(policy, request) for request in requests]
        again = [_key(policy, request) for request in requests]
        _expect(keys == again, "a key changed between two questions")

    def test_the_victim_is_one_of_those_that_run(self) -> None:
        """Whoever has to go is in the list."""
        policy, requests = self.policy(), _requests(self.num_requests, seed=2)
        for count in range(1, len(requests) + 1):
            index = policy.victim(requests[:count])
            _expect(0 <= index < count, f"victim {index} of {count} that run")

    def test_a_request_may_be_asked_about_again(self) -> None:
        """`admits` is asked in each step: asking does not wear the answer out, nor the order."""
        policy, requests = self.policy(), _requests(self.num_requests, seed=3)
        first, running = requests[0], tuple(requests[1:4])
        key, word = _key(policy, first), policy.admits(first, running)
        for _ in range(MAX_ASKED):
            _expect(
                policy.admits(first, running) == word, "admits changed its mind when asked again"
            )
        _expect(_key(policy, first) == key, "being asked changed a key")

    def test_everybody_gets_an_answer(self) -> None:
        """With too little memory for all, every request ends, and the pool is empty again."""
        for seed in range(5):
            requests = _requests(self.num_requests, seed)
            scheduler = _scheduler(self.policy())
            for request in requests:
                scheduler.add(request)
            finished = _run(scheduler)
            missing = {request.request_id for request in requests} - finished
            _expect(not missing, f"after {MAX_STEPS} steps {len(missing)} requests still wait")
            _expect(not scheduler.kv.pool.num_used, "blocks are still owned after the last answer")


def _key(policy: SchedulingPolicy, request: Request) -> SortKey:
    """Return a request's key as the queue has it."""
    key = policy.order(request)
    try:
        return sort_key(key)
    except (TypeError, ValueError) as error:
        raise AssertionError(
            f"the key {key!r} of {request.request_id} has no place: {error}"
        ) from None


def _requests(count: int, seed: int) -> list[Request]:
    """Make requests that differ in all that a policy may look at."""
    rng = random.Random(seed)
    return [
        Request(
            EngineRequest(
                request_id=f"{seed}-{index}",
                token_ids=[rng.randrange(1, 9) for _ in range(rng.randrange(1, 40))],
                params=SamplingParams(max_tokens=40),
                max_tokens=rng.randrange(1, 40),
                seed=index,
                priority=rng.randrange(-3, 4),
                arrival_s=float(index),
                adapter=rng.choice(ADAPTERS),
            ),
            num_groups=1,
        )
        for index in range(count)
    ]


def _scheduler(policy: SchedulingPolicy) -> Scheduler:
    layer = KVLayer("layers.0", "whole_context", num_kv_heads=1, head_dim=1)
    plan = fixed_plan([WholeContext(layer, BLOCK_SIZE, "float32")], NUM_BLOCKS)
    settings = SchedulerSettings(max_num_seqs=8, max_num_batched_tokens=16)
    return Scheduler(settings, KVCacheManager(plan), policy, max_adapters=2)


def _run(scheduler: Scheduler) -> set[str]:
    """Step until nobody is left, or for too long; returns those who finished."""
    finished: set[str] = set()
    for _ in range(MAX_STEPS):
        if not scheduler.requests:
            break
        plan = scheduler.schedule()
        outputs = scheduler.update(plan, _draw(plan)) if plan.requests else []
        finished |= {o.request_id for o in outputs if o.finish_reason is not None}
    return finished


def _draw(plan: StepPlan) -> StepResult:
    rows = [SlotResult(share.slot, [1]) for share in plan.requests if share.num_samples]
    return StepResult(plan_id=plan.plan_id, results=rows)


def _expect(is_true: bool, message: str) -> None:
    if not is_true:
        raise AssertionError(message)
