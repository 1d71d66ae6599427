"""A step that fails on several workers: the request that is the cause ends, and no other."""

from collections import deque

import pytest
from engine_parts import EOS, CountingExecutor, ScriptedGrammars, make_message, make_scheduler
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.engine.core import EngineCore
from quire.errors import StepFailedError
from quire.messages import AdapterRef, ErrorReport, LoadAdapter

CURSED = 500
REPORT = ErrorReport("request_failed", "the model failed")


class FailingSteps(CountingExecutor):
    """Workers whose whole step fails if a row of it knows a cursed token.

    Args:
        knows_slot: Whether the error names the slot.
        num_further: Number of steps of several requests that fail although no row is cursed.
        num_stages: Number of pipeline stages; the first knows only the tokens that it is sent.
    """

    def __init__(self, knows_slot=False, num_further=0, num_stages=1):
        super().__init__()
        self.num_stages = num_stages
        self.num_known = {}  # tokens of each slot that the first stage knows
        self.knows_slot = knows_slot
        self.num_further = num_further
        self.failed = []  # slots of each failed step
        self.steps = deque()

    def execute(self, plan):
        super().execute(plan)
        self._check_known(plan)
        self.steps.append(
            (plan, {entry.slot: self._is_cursed(entry.slot) for entry in plan.requests})
        )

    def _check_known(self, plan):
        for one in plan.assignments:
            self.num_known[one.slot] = len(one.token_ids)
        for patch in plan.token_patches:
            assert patch.position == self.num_known[patch.slot]
            self.num_known[patch.slot] += len(patch.token_ids)
        for entry in plan.requests if self.num_stages > 1 else ():
            assert self.computed[entry.slot] <= self.num_known[entry.slot], "an unknown token"

    def collect(self, plan_id):
        plan, cursed = self.steps.popleft()
        result = super().collect(plan_id)
        if not any(cursed.values()) and not (len(plan.requests) > 1 and self.num_further):
            return result
        if not any(cursed.values()):
            self.num_further -= 1
        self.failed.append([entry.slot for entry in plan.requests])
        self.steps.clear()
        self.plans.clear()
        self.results.clear()
        slots = {slot: REPORT for slot in cursed if cursed[slot] and self.knows_slot}
        raise StepFailedError("worker 1 failed", report=REPORT, slots=slots, plan_id=plan_id)

    def _is_cursed(self, slot):
        return CURSED in self.tokens[slot]


def core_of(executor, async_scheduling=False, **options):
    return EngineCore(
        make_scheduler(pipeline_parallel_size=executor.num_stages, **options),
        executor,
        executor,
        ScriptedGrammars(),
        async_scheduling=async_scheduling,
        pipeline_parallel_size=executor.num_stages,
    )


def finish(core, max_steps=2000):
    outputs = {}
    for _ in range(max_steps):
        if not core.has_work():
            return outputs
        for output in core.step().outputs:
            outputs.setdefault(output.request_id, []).append(output)
    raise AssertionError("still busy")


def tokens_of(outputs):
    return {
        request_id: [token for each in parts for token in each.token_ids]
        for request_id, parts in outputs.items()
    }


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("knows_slot", [False, True])
def test_the_cause_ends_with_the_error_and_the_others_complete(async_scheduling, knows_slot):
    executor = FailingSteps(knows_slot)
    core = core_of(executor, async_scheduling)
    core.add(make_message("first", prompt=[10]))
    core.add(make_message("cause", prompt=[CURSED - 2], max_tokens=9))
    core.add(make_message("last", prompt=[20, 21]))
    outputs = finish(core)
    assert outputs["cause"][-1].finish_reason == "error"
    assert outputs["cause"][-1].error == REPORT
    assert len(executor.failed) == 1 or not knows_slot
    expected = {"first": [11, 12, 13, 14], "cause": [499, 500], "last": [22, 23, 24, 25]}
    assert tokens_of(outputs) == expected


def test_a_request_that_fails_alone_is_the_cause_at_once():
    executor = FailingSteps()
    core = core_of(executor)
    core.add(make_message("cause", prompt=[CURSED]))
    assert finish(core)["cause"][-1].error == REPORT
    assert executor.failed == [[0]]


def test_suspects_are_computed_alone_until_each_has_a_token():
    executor = FailingSteps(num_further=1)
    core = core_of(executor)
    for number in range(3):
        core.add(make_message(str(number), prompt=[10 * number + 10], max_tokens=3))
    outputs = finish(core)
    assert tokens_of(outputs) == {"0": [11, 12, 13], "1": [21, 22, 23], "2": [31, 32, 33]}
    assert executor.num_tokens_per_step[:5] == [3, 1, 1, 1, 3]


def test_a_long_suspect_is_computed_alone_in_chunks():
    executor = FailingSteps(num_further=1)
    core = core_of(executor, max_num_batched_tokens=8, max_num_seqs=4)
    core.add(make_message("short", prompt=[100], max_tokens=1))
    core.add(make_message("long", prompt=list(range(10, 30)), max_tokens=1))
    assert tokens_of(finish(core)) == {"long": [30], "short": [101]}
    assert max(executor.num_tokens_per_step) == 8


def test_a_request_that_came_after_the_failed_step_is_no_suspect():
    executor = FailingSteps(num_further=1)
    core = core_of(executor, async_scheduling=True)
    core.add(make_message("a", prompt=[10], max_tokens=6))
    core.add(make_message("b", prompt=[20], max_tokens=6))
    core.step()
    core.add(make_message("c", prompt=[30], max_tokens=6))
    finish(core)
    assert executor.failed == [[0, 1]]
    assert executor.num_tokens_per_step[:5] == [2, 3, 1, 1, 3]


def test_an_aborted_suspect_holds_up_nothing():
    executor = FailingSteps(num_further=1)
    core = core_of(executor)
    for name in ("a", "b", "c"):
        core.add(make_message(name))
    core.step()
    core.abort(["a", "b"])
    assert tokens_of(finish(core)) == {"c": [13, 14, 15, 16]}


def test_the_cause_is_found_behind_aborted_suspects():
    core = core_of(FailingSteps())
    for name, start in (("a", 10), ("b", 20), ("cause", CURSED), ("d", 30)):
        core.add(make_message(name, prompt=[start]))
    core.step()
    core.abort(["a", "b"])
    outputs = finish(core, max_steps=50)
    assert tokens_of(outputs) == {"cause": [], "d": [31, 32, 33, 34]}
    assert outputs["cause"][-1].error == REPORT


def test_a_suspect_without_room_waits_and_others_go_on():
    executor = FailingSteps(num_further=1)
    core = core_of(executor, num_blocks=4, max_num_seqs=4)
    for number in range(3):
        core.add(make_message(str(number), prompt=[10] * 6, max_tokens=4))
    assert set(tokens_of(finish(core))) == {"0", "1", "2"}


def test_a_suspect_of_two_failed_steps_is_computed_alone_once():
    executor = FailingSteps(num_further=2)
    core = core_of(executor)
    for number in range(3):
        core.add(make_message(str(number), prompt=[10 * number + 10], max_tokens=3))
    core.step()
    assert executor.failed == [[0, 1, 2]]
    executor.num_further = 0
    core.scheduler.isolate(list(core.scheduler.requests.values()))
    finish(core)
    assert executor.num_tokens_per_step[:5] == [3, 1, 1, 1, 3]


def test_a_command_is_run_after_a_failed_step_in_flight():
    class FailsInControl(FailingSteps):
        num_controls = 0

        def control(self, message):
            self.num_controls += 1
            if self.num_controls == 1:
                plan = self.steps[-1][0]
                raise StepFailedError("x", report=REPORT, slots={}, plan_id=plan.plan_id)
            return message

    executor = FailsInControl()
    core = core_of(executor, async_scheduling=True)
    core.add(make_message("a"))
    core.add(make_message("b"))
    core.step()
    command = LoadAdapter(AdapterRef("a", "b"))
    assert core.control(command) == command
    executor.steps.clear()
    executor.plans.clear()
    executor.results.clear()
    outputs = finish(core)
    assert {name: parts[-1].finish_reason for name, parts in outputs.items()} == {
        "a": "length",
        "b": "length",
    }


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_every_request_ends_once_with_its_own_tokens(data):
    executor = FailingSteps(
        knows_slot=data.draw(st.booleans()),
        num_further=data.draw(st.integers(0, 4)),
        num_stages=data.draw(st.integers(1, 3)),
    )
    core = core_of(
        executor,
        async_scheduling=data.draw(st.booleans()),
        num_blocks=data.draw(st.integers(12, 40)),
        max_num_seqs=data.draw(st.integers(1, 5)),
        max_num_batched_tokens=data.draw(st.integers(5, 20)),
        enable_prefix_caching=data.draw(st.booleans()),
    )
    starts, ended = {}, {}
    for number in range(data.draw(st.integers(1, 6))):
        start = data.draw(st.sampled_from([10, 100, CURSED - 3, CURSED]))
        length = data.draw(st.integers(1, 12))
        prompt = [start] * length
        starts[str(number)] = start
        core.add(make_message(str(number), prompt=prompt, max_tokens=6))
    for request_id, parts in finish(core).items():
        finals = [part for part in parts if part.finish_reason is not None]
        assert len(finals) == 1, f"{request_id} ended {len(finals)} times"
        ended[request_id] = finals[0].finish_reason
        found = [token for part in parts for token in part.token_ids]
        start = starts[request_id]
        assert found == [start + 1 + index for index in range(len(found))]
        is_cursed = CURSED - 6 < start <= CURSED
        assert ended[request_id] == ("error" if is_cursed else "length")
        assert len(found) == (6 if not is_cursed else CURSED - start)
    assert set(ended) == set(starts)
    assert EOS not in starts.values()
