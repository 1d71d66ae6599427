"""Pipeline stages that take virtual time, to count how busy each of them is."""

from collections import deque
from collections.abc import Sequence
from typing import Any

from engine_parts import ScriptedGrammars, make_scheduler

from quire.engine.core import EngineCore
from quire.interfaces.executor import StepRunner, Worker
from quire.interfaces.kv_cache import KVPlan
from quire.messages import RowBitmask, SlotResult, StepPlan, StepResult, WorkerControl

SAMPLED = 7
STAGE_S = 1.0  # of any step in any stage


class StageClock(Worker, StepRunner):
    """Stages that compute one step after the other, on a clock of their own.

    Args:
        num_stages: Number of stages.
        host_s: Time that the host needs to plan and launch a step, when it does nothing else.

    Attributes:
        now_s: Time of the host.
        busy_s: For each stage, the time that the steps launched so far take there.
        launched: Plans that were launched and not collected, with the times of their results.
        num_in_flight: For each plan the number of steps in flight with it, itself included.
    """

    def __init__(self, num_stages: int, host_s: float = 0.0) -> None:
        self.now_s = 0.0
        self.busy_s = [0.0] * num_stages
        self.launched: deque[tuple[StepPlan, float]] = deque()
        self.num_in_flight: list[int] = []
        self._host_s = host_s
        self._free_s = [0.0] * num_stages

    def load(self) -> Any:
        raise NotImplementedError

    def allocate(self, plans: Sequence[KVPlan]) -> StepRunner:
        raise NotImplementedError

    def execute(self, plan: StepPlan) -> None:
        self.now_s += self._host_s
        at_s = self.now_s
        for stage, free_s in enumerate(self._free_s):
            at_s = self._free_s[stage] = max(at_s, free_s) + STAGE_S
            self.busy_s[stage] += STAGE_S
        self.launched.append((plan, at_s))
        self.num_in_flight.append(len(self.launched))

    def sample(self, plan_id: int, masks: Sequence[RowBitmask]) -> None: ...

    def collect(self, plan_id: int) -> StepResult:
        plan, at_s = self.launched.popleft()
        self.now_s = max(self.now_s, at_s)
        rows = [SlotResult(entry.slot, [SAMPLED]) for entry in plan.requests if entry.num_samples]
        return StepResult(plan_id=plan_id, results=rows)

    def control(self, command: WorkerControl) -> None: ...

    def check_health(self) -> None: ...

    def shutdown(self) -> None: ...


def make_pipeline(
    num_stages: int, host_s: float = 0.0, **settings: Any
) -> tuple[EngineCore, StageClock, ScriptedGrammars]:
    """Build an engine whose workers are stages on a clock."""
    clock, grammars = StageClock(num_stages, host_s=host_s), ScriptedGrammars()
    settings = {"num_blocks": 10_000, "max_num_seqs": 256, **settings}
    scheduler = make_scheduler(pipeline_parallel_size=num_stages, **settings)
    core = EngineCore(scheduler, clock, clock, grammars, pipeline_parallel_size=num_stages)
    return core, clock, grammars


def step_until(core: EngineCore, clock: StageClock, time_s: float) -> float:
    """Step to a time; the fraction of the time in which the least busy stage computed."""
    before_s, began_s = list(clock.busy_s), clock.now_s
    while clock.now_s < time_s:
        if not core.has_work():
            raise AssertionError("the engine is idle, and time stands still")
        core.step()
    elapsed_s = clock.now_s - began_s
    pairs = zip(clock.busy_s, before_s, strict=True)
    return min(after_s - old_s for after_s, old_s in pairs) / elapsed_s
