"""The conformance kit of scheduling policies: keys, admission and victims that an engine can use.

    from quire.testing.scheduling import SchedulingPolicyContract

    class TestShortest(SchedulingPolicyContract):
        policy = ShortestFirst

pytest collects the tests of the contract with the class. They ask the policy about requests of
many kinds, and drive the engine's own scheduler with it: a cache that is too small for all, and no
model.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from quire.config import SchedulerSettings
from quire.engine.kv_cache.kv_cache_manager import KVCacheManager
from quire.engine.kv_cache.kv_plan import fixed_plan
from quire.engine.request import Request
from quire.engine.scheduling.scheduler import Scheduler
from quire.engine.scheduling.sort_key import SortKey, sort_key
from quire.interfaces.kv_cache import KVLayer
from quire.interfaces.scheduling import ScheduledView, SchedulingPolicy
from quire.messages import AdapterRef, EngineRequest, SlotResult, StepPlan, StepResult
from quire.sampling_params import SamplingParams
from quire.testing.whole_context import WholeContext

NUM_BLOCKS = 24  # fewer than the requests that run at a time need
BLOCK_SIZE = 4
MAX_STEPS = 5000
MAX_ASKED = 100
ADAPTERS = [None, *(AdapterRef(name, name, content_hash=name) for name in ("one", "two", "three"))]


@dataclass(frozen=True, slots=True, eq=False)
class SeenRequest:
    """A request as a policy may see it: to be looked at, and without its tokens."""

    request_id: str
    priority: int
    arrival_s: float
    num_prompt_tokens: int
    num_generated_tokens: int
    num_pending_tokens: int
    max_total_tokens: int
    num_preemptions: int
    adapter_name: str | None


class SchedulingPolicyContract:
    """Inherit from it and name the policy; pytest does the rest.

    Attributes:
        policy: The class under test.
        num_requests: Number of requests that are scheduled in each run.
    """

    policy: ClassVar[type[SchedulingPolicy]]
    num_requests: ClassVar[int] = 40

    def test_keys_can_be_compared_and_do_not_change(self) -> None:
        """Each key is plain data, and a request asked twice has the same one."""
        policy, requests = self.policy(), _seen_requests(self.num_requests, seed=1)
        keys = [_key(policy, request) for request in requests]
        again = [_key(policy, request) for request in requests]
        _expect(keys == again, "order gives a request another key when it is asked again")

    def test_the_victim_is_one_of_those_that_run(self) -> None:
        """Its index is one of the list."""
        policy, requests = self.policy(), _seen_requests(self.num_requests, seed=2)
        for count in range(1, len(requests) + 1):
            index = policy.victim(tuple(requests[:count]))
            _expect(0 <= index < count, f"victim names index {index} of {count} requests that run")

    def test_a_request_may_be_asked_about_again(self) -> None:
        """`admits` is asked in each step: asking does not wear the answer out, nor the order."""
        policy, requests = self.policy(), _seen_requests(self.num_requests, seed=3)
        first, running = requests[0], tuple(requests[1:4])
        key, word = _key(policy, first), policy.admits(first, running)
        for _ in range(MAX_ASKED):
            _expect(
                policy.admits(first, running) == word, "admits changed its mind when asked again"
            )
        _expect(_key(policy, first) == key, "asking admits changed the key of the request")

    def test_it_raises_nothing_while_the_engine_runs(self) -> None:
        """The engine would go on without it; requests come, are preempted, run again and end."""
        for seed in range(5):
            witness = _Witness(self.policy())
            scheduler = _scheduler(witness)
            for request in _requests(self.num_requests, seed):
                scheduler.add(request)
            _run(scheduler)
            _expect(not witness.failures, f"the policy raised in {', '.join(witness.failures)}")


class _Witness(SchedulingPolicy):
    """Passes all questions on, and notes what the engine keeps to itself.

    Attributes:
        failures: Methods that raised, each with its error.
    """

    def __init__(self, policy: SchedulingPolicy) -> None:
        self._policy = policy
        self.failures: list[str] = []

    def order(self, request: ScheduledView) -> Any:
        return self._noted(self._policy.order, request)

    def admits(self, request: ScheduledView, running: Sequence[ScheduledView]) -> bool:
        return bool(self._noted(self._policy.admits, request, running))

    def victim(self, running: Sequence[ScheduledView]) -> int:
        return int(self._noted(self._policy.victim, running))

    def began(self, request: ScheduledView) -> None:
        self._noted(self._policy.began, request)

    def ended(self, request: ScheduledView) -> None:
        self._noted(self._policy.ended, request)

    def _noted(self, method: Callable[..., Any], *args: Any) -> Any:
        try:
            return method(*args)
        except Exception as error:
            self.failures.append(f"{method.__name__} ({error!r})")
            raise


def _key(policy: SchedulingPolicy, request: ScheduledView) -> SortKey:
    """Return a request's key as the queue has it."""
    key = policy.order(request)
    try:
        return sort_key(key)
    except (TypeError, ValueError) as error:
        raise AssertionError(
            f"order gives {request.request_id} the key {key!r}, which has no place: {error}"
        ) from None


def _seen_requests(count: int, seed: int) -> list[SeenRequest]:
    """Make requests of which some have run already."""
    rng = random.Random(seed)
    return [
        SeenRequest(
            request_id=request.request_id,
            priority=request.priority,
            arrival_s=request.arrival_s,
            num_prompt_tokens=request.num_prompt_tokens,
            num_generated_tokens=rng.randrange(20),
            num_pending_tokens=rng.randrange(1, 40),
            max_total_tokens=request.max_total_tokens,
            num_preemptions=rng.randrange(3),
            adapter_name=request.adapter_name,
        )
        for request in _requests(count, seed)
    ]


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


def _run(scheduler: Scheduler) -> None:
    """Step until no request is left."""
    for _ in range(MAX_STEPS):
        if not scheduler.requests:
            break
        plan = scheduler.schedule()
        if plan.requests:
            scheduler.update(plan, _draw(plan))


def _draw(plan: StepPlan) -> StepResult:
    rows = [SlotResult(share.slot, [1]) for share in plan.requests if share.num_samples]
    return StepResult(plan_id=plan.plan_id, results=rows)


def _expect(is_true: bool, message: str) -> None:
    if not is_true:
        raise AssertionError(message)
