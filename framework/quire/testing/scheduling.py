"""Conformance kit of scheduling policies: sort keys, admission and preemption victims.

    from quire.testing.scheduling import SchedulingPolicyContract

    class TestShortest(SchedulingPolicyContract):
        policy = ShortestFirst

pytest collects the inherited tests. They call the policy with requests of many kinds, and run the
engine's scheduler with it, without a model and with a KV cache that is too small for all requests.
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
from quire.testing.expectation import expect
from quire.testing.whole_context import WholeContext

NUM_BLOCKS = 24  # fewer than the running requests need
BLOCK_SIZE = 4
MAX_STEPS = 5000
NUM_CALLS = 100
ADAPTERS = [None, *(AdapterRef(name, name, content_hash=name) for name in ("one", "two", "three"))]


@dataclass(frozen=True, slots=True, eq=False)
class RequestView:
    """A request as a policy sees it: read-only, and without its tokens."""

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
    """Tests that a scheduling policy must pass; subclass it and set the policy.

    Attributes:
        policy: Policy class under test.
        num_requests: Number of requests in each test.
    """

    policy: ClassVar[type[SchedulingPolicy]]
    num_requests: ClassVar[int] = 40

    def test_keys_can_be_compared_and_do_not_change(self) -> None:
        """Each key is plain data, and a second call for the same request returns the same key."""
        policy, requests = self.policy(), _request_views(self.num_requests, seed=1)
        keys = [_key(policy, request) for request in requests]
        again = [_key(policy, request) for request in requests]
        expect(keys == again, "order must return the same key for a request each time")

    def test_the_victim_is_a_running_request(self) -> None:
        """`victim` returns an index of the list of running requests."""
        policy, requests = self.policy(), _request_views(self.num_requests, seed=2)
        for count in range(1, len(requests) + 1):
            index = policy.victim(tuple(requests[:count]))
            expect(0 <= index < count, f"victim returned index {index} of {count} running requests")

    def test_repeated_calls_give_the_same_result(self) -> None:
        """`admits` is called in each step: repeated calls change neither its result nor `order`."""
        policy, requests = self.policy(), _request_views(self.num_requests, seed=3)
        first, running = requests[0], tuple(requests[1:4])
        key, is_admitted = _key(policy, first), policy.admits(first, running)
        for _ in range(NUM_CALLS):
            expect(
                policy.admits(first, running) == is_admitted,
                "admits must return the same result for the same requests each time",
            )
        expect(_key(policy, first) == key, "a call of admits changed the key of the request")

    def test_it_raises_nothing_while_the_engine_runs(self) -> None:
        """Run the scheduler: requests are admitted, preempted, resumed and finished."""
        for seed in range(5):
            recording = _RecordingPolicy(self.policy())
            scheduler = _scheduler(recording)
            for request in _requests(self.num_requests, seed):
                scheduler.add(request)
            _run(scheduler)
            expect(not recording.failures, f"the policy raised in {', '.join(recording.failures)}")


class _RecordingPolicy(SchedulingPolicy):
    """Policy that forwards all calls and records the errors, which the engine would suppress.

    Attributes:
        failures: Names of the methods that raised, each with its error.
    """

    def __init__(self, policy: SchedulingPolicy) -> None:
        self._policy = policy
        self.failures: list[str] = []

    def order(self, request: ScheduledView) -> Any:
        return self._recorded(self._policy.order, request)

    def admits(self, request: ScheduledView, running: Sequence[ScheduledView]) -> bool:
        return bool(self._recorded(self._policy.admits, request, running))

    def victim(self, running: Sequence[ScheduledView]) -> int:
        return int(self._recorded(self._policy.victim, running))

    def began(self, request: ScheduledView) -> None:
        self._recorded(self._policy.began, request)

    def ended(self, request: ScheduledView) -> None:
        self._recorded(self._policy.ended, request)

    def _recorded(self, method: Callable[..., Any], *args: Any) -> Any:
        try:
            return method(*args)
        except Exception as error:
            self.failures.append(f"{method.__name__} ({error!r})")
            raise


def _key(policy: SchedulingPolicy, request: ScheduledView) -> SortKey:
    """Return the key of a request as the queue uses it."""
    key = policy.order(request)
    try:
        return sort_key(key)
    except (TypeError, ValueError) as error:
        raise AssertionError(
            f"order returned an unsortable key {key!r} for {request.request_id}: {error}"
        ) from None


def _request_views(count: int, seed: int) -> list[RequestView]:
    """Return requests, some of which have run already."""
    rng = random.Random(seed)
    return [
        RequestView(
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
    """Return requests that differ in every field that a policy sees."""
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
            scheduler.update(plan, _sample(plan))


def _sample(plan: StepPlan) -> StepResult:
    rows = [SlotResult(share.slot, [1]) for share in plan.requests if share.num_samples]
    return StepResult(plan_id=plan.plan_id, results=rows)
