import signal
import time

import msgspec
import pytest
from engine_parts import (
    VOCAB_SIZE,
    CountingExecutor,
    ScriptedGrammars,
    make_core,
    make_message,
    make_plan,
    make_scheduler,
    run_to_end,
)
from fickle_store import FickleStore
from thinking_parts import one_token

from quire.engine.core import EngineCore
from quire.engine.kv_cache.kv_cache_manager import KVCacheManager
from quire.engine.kv_store.kv_transfers import KVTransfers
from quire.engine.request import Status
from quire.errors import EngineDeadError, GrammarError, InvalidRequestError
from quire.messages import (
    AdapterRef,
    ErrorReport,
    LoadAdapter,
    MarkerTokens,
    ResetPrefixCache,
    SlotResult,
    StepResult,
)
from quire.sampling_params import StructuredOutputsParams

CHOICE = StructuredOutputsParams(choice=("yes", "no"))


def test_requests_of_any_length_finish_with_their_own_tokens():
    core, executor, _ = make_core(max_num_batched_tokens=7, max_num_seqs=3)
    for index in range(9):
        core.add(make_message(f"r{index}", prompt=[100 * index + 1] * (index + 1), max_tokens=5))
    completions = run_to_end(core)
    for index in range(9):
        assert completions[f"r{index}"] == [100 * index + 2 + i for i in range(5)]
    assert max(executor.num_tokens_per_step) <= 7


def test_a_request_that_can_never_fit_is_refused_with_the_numbers():
    core, _, _ = make_core(num_blocks=3)
    core.scheduler.kv.pool.allocate(1)  # what others hold is not among the numbers
    core.add(make_message("big", prompt=range(8), max_tokens=4))
    (output,) = core.step().outputs
    assert output.finish_reason == "error"
    assert output.error.code == "out_of_capacity"
    assert "12 tokens, which need 3 KV blocks; the engine has 2" in output.error.message


def test_the_queue_has_a_limit():
    core, _, _ = make_core(max_num_queued=1, max_num_seqs=1)
    for name in "abc":  # one can run, one may wait
        core.add(make_message(name))
    outputs = {output.request_id: output for output in core.step().outputs}
    assert outputs["c"].error.code == "overloaded"
    assert run_to_end(core).keys() >= {"a", "b"}


def test_a_request_that_fails_in_the_worker_ends_alone():
    core, _, _ = make_core(fail_on=52)
    core.add(make_message("bad", prompt=[50], max_tokens=9))
    core.add(make_message("good", prompt=[60], max_tokens=9))
    errors = {}
    completions = {}
    while core.has_work():
        for output in core.step().outputs:
            completions.setdefault(output.request_id, []).extend(output.token_ids)
            if output.error:
                errors[output.request_id] = output.error.message
    assert errors == {"bad": "token is cursed"}
    assert completions["good"] == list(range(61, 70))
    assert core.scheduler.kv.pool.num_used == 0


def test_an_aborted_request_has_no_further_output():
    core, _, _ = make_core()
    core.add(make_message("a", max_tokens=50))
    core.step()
    core.abort(["a", "unknown"])
    assert not core.has_work()
    assert core.scheduler.kv.pool.num_used == 0


def test_a_request_waits_for_its_grammar_while_others_run():
    core, executor, grammars = make_core()
    core.add(make_message("free", prompt=[10], max_tokens=6))
    core.add(make_message("bound", prompt=[20], max_tokens=2, structured_outputs=CHOICE))
    core.step()
    assert grammars.submitted == ["bound"]
    assert [request.request_id for request in core.scheduler.running] == ["free"]
    grammars.ready = [("bound", None)]
    core.step()
    assert [mask.slot for mask in executor.masks] == [1]
    run_to_end(core)
    assert grammars.accepted == {"bound": [21]}
    assert grammars.released == ["bound"]


def test_a_grammar_that_cannot_be_compiled_fails_its_request_only():
    core, _, grammars = make_core()
    core.add(make_message("bound", structured_outputs=CHOICE))
    core.add(make_message("free", max_tokens=1))
    grammars.ready = [("bound", GrammarError("it has no end"))]
    outputs = {output.request_id: output for output in core.step().outputs}
    assert outputs["bound"].error.message == "it has no end"
    assert outputs["bound"].error.code == "invalid_grammar"
    assert outputs["free"].finish_reason == "length"


def test_a_request_that_fails_in_a_chunk_releases_its_grammar():
    class FailsAtOnce(CountingExecutor):
        def collect(self, plan_id):
            slot = self.plans[0].requests[0].slot
            super().collect(plan_id)
            report = ErrorReport("request_failed", "the first chunk fails")
            return StepResult(plan_id=plan_id, results=[SlotResult(slot, [], None, report)])

    grammars = ScriptedGrammars()
    executor = FailsAtOnce()
    core = EngineCore(make_scheduler(max_num_batched_tokens=4), executor, executor, grammars)
    core.add(make_message("bound", prompt=range(1, 11), structured_outputs=CHOICE))
    grammars.ready = [("bound", None)]
    (output,) = core.step().outputs
    assert output.error.message == "the first chunk fails"
    assert grammars.released == ["bound"]


def test_an_aborted_grammar_is_released_and_its_late_result_ignored():
    core, _, grammars = make_core()
    for name in ("bound", "other"):
        core.add(make_message(name, structured_outputs=CHOICE))
    core.abort(["bound"])
    assert grammars.released == ["bound"]
    grammars.ready = [("bound", None), ("other", None)]
    assert run_to_end(core).keys() == {"other"}


def test_a_grammar_begins_after_the_token_that_ends_the_thinking():
    core, executor, grammars = make_core()
    message = make_message("bound", prompt=[20], max_tokens=5, structured_outputs=CHOICE)
    core.add(msgspec.structs.replace(message, thinking_end=one_token(22)))
    grammars.ready = [("bound", None)]
    masked = []
    while core.has_work():
        executor.masks = []
        core.step()
        masked.append([mask.slot for mask in executor.masks])
    assert masked == [[], [], [0], [0], [0]]  # 21 and 22 are thoughts
    assert grammars.accepted == {"bound": [23, 24]}
    assert grammars.released == ["bound"]


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_what_a_token_has_behind_the_end_of_the_thinking_is_not_sampled(async_scheduling):
    core, executor, grammars = make_core(async_scheduling=async_scheduling)
    pieces = {22: b"</", 23: b"t>", 24: b"t>{", 25: b"t>\n"}
    end = MarkerTokens((22, 23), (b"</t>",), pieces)
    message = make_message("bound", prompt=[20], max_tokens=5, structured_outputs=CHOICE)
    core.add(msgspec.structs.replace(message, thinking_end=end))
    grammars.ready = [("bound", None)]
    barred = []
    while core.has_work():
        executor.masks = []
        core.step()
        words = [int.from_bytes(mask.words, "little") for mask in executor.masks]
        barred.append([[i for i in range(VOCAB_SIZE) if not word >> i & 1] for word in words])
    assert next(filter(None, barred)) == [[24]], "22 begins the end"
    assert grammars.accepted == {"bound": [24]}


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_token_that_would_end_the_completion_in_its_thinking_is_followed_by_the_end_marker(
    async_scheduling,
):
    core, executor, grammars = make_core(async_scheduling=async_scheduling)
    end = MarkerTokens((23, 24), (b"</t>",), {23: b"</", 24: b"t>"})
    message = make_message(
        "bound", prompt=[20], max_tokens=6, structured_outputs=CHOICE, stop_token_ids=(22,)
    )
    core.add(msgspec.structs.replace(message, thinking_end=end))
    grammars.ready = [("bound", None)]
    outputs, masks = [], []
    while core.has_work():
        executor.masks = []
        outputs += core.step().outputs
        masks += [int.from_bytes(mask.words, "little") for mask in executor.masks]
    assert masks[:2] == [1 << 23, 1 << 24], "22 is a stop token"
    assert len(masks) == 4, "two of the end, two of the grammar"
    assert [each for output in outputs for each in output.token_ids] == [*range(21, 27)]
    assert outputs[-1].finish_reason == "length"
    assert grammars.accepted == {"bound": [25]}
    assert not core._budgets


def test_the_token_that_ends_the_thinking_is_one_like_others_in_the_completion():
    core, _, grammars = make_core()
    core.add(make_message("bound", prompt=[20], max_tokens=3, structured_outputs=CHOICE))
    grammars.ready = [("bound", None)]
    run_to_end(core)
    assert grammars.accepted == {"bound": [21, 22]}


def test_an_id_that_is_in_use_does_not_affect_its_request():
    core, _, _ = make_core(num_blocks=9)
    core.add(make_message("twice"))
    for max_tokens in (4, 10_000):  # the second could never fit, and would end the first
        with pytest.raises(InvalidRequestError, match="'twice' is in use"):
            core.add(make_message("twice", max_tokens=max_tokens))
    completions = run_to_end(core)
    assert len(completions["twice"]) == 4


def test_an_adapter_without_content_fails_its_request_alone():
    core, _, _ = make_core(enable_prefix_caching=True)
    odd = msgspec.structs.replace(make_message("odd"), adapter=AdapterRef("x", "somewhere"))
    core.add(odd)
    core.add(make_message("other"))
    outputs = {output.request_id: output for output in core.step().outputs}
    assert "no content hash" in outputs["odd"].error.message
    assert outputs["other"].error is None
    assert list(core.scheduler.requests) == ["other"]


def said(core):
    """What the next step says, by request."""
    return {output.request_id: output for output in core.step().outputs}


# -- an interrupt ----------------------------------------------------------------------------------


class Interrupted(CountingExecutor):
    """Workers that are interrupted once, in one verb, and have lost what was in flight then."""

    def __init__(self, verb, call):
        super().__init__()
        self.verb, self.calls_left = verb, call

    def execute(self, plan):
        self._call("execute")
        super().execute(plan)

    def sample(self, plan_id, masks):
        self._call("sample")
        super().sample(plan_id, masks)

    def collect(self, plan_id):
        self._call("collect")
        return super().collect(plan_id)

    def _call(self, verb):
        if verb == self.verb:
            self.calls_left -= 1
            if not self.calls_left:
                self.plans.clear()
                self.results.clear()
                raise KeyboardInterrupt


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("call", [1, 2, 4])
@pytest.mark.parametrize("verb", ["execute", "sample", "collect"])
def test_after_an_interrupt_all_completions_are_the_same(verb, call, async_scheduling):
    scheduler = make_scheduler(enable_prefix_caching=True, max_num_batched_tokens=7)
    executor = Interrupted(verb, call)
    core = EngineCore(
        scheduler, executor, executor, ScriptedGrammars(), async_scheduling=async_scheduling
    )
    for index in range(3):
        prompt = range(100 * index + 1, 100 * index + 7)
        core.add(make_message(f"r{index}", prompt=prompt, max_tokens=5))
    completions = {f"r{index}": [] for index in range(3)}

    def go_on():
        while True:
            for name, output in said(core).items():
                completions[name] += output.token_ids

    with pytest.raises(KeyboardInterrupt):
        go_on()
    assert list(scheduler.running) == []
    assert scheduler.is_quiescent
    for name, tokens in run_to_end(core).items():
        completions[name] += tokens
    assert completions == {f"r{i}": list(range(100 * i + 7, 100 * i + 12)) for i in range(3)}
    assert scheduler.kv.pool.num_used == 0


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("name", ["schedule", "update"])
def test_an_interrupt_waits_until_the_engine_has_planned_or_applied_a_step(
    monkeypatch, name, async_scheduling
):
    core, executor, _ = make_core(async_scheduling=async_scheduling)
    core.add(make_message("a", prompt=[1, 2, 3], max_tokens=9))
    whole, execute, done = getattr(core.scheduler, name), executor.execute, []

    def pressed(*arguments):
        if len(done) == 2:
            signal.raise_signal(signal.SIGINT)
        result = whole(*arguments)
        done.append(name)
        return result

    def executed(plan):
        assert len(done) != 3, "it was interrupted before"
        execute(plan)

    monkeypatch.setattr(core.scheduler, name, pressed)
    monkeypatch.setattr(executor, "execute", executed)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    tokens = []

    def go_on():
        while True:
            tokens.extend(token for each in said(core).values() for token in each.token_ids)

    with pytest.raises(KeyboardInterrupt):
        go_on()
    signal.signal(signal.SIGINT, before)
    executor.plans.clear()  # in flight
    executor.results.clear()
    assert done == [name] * 3
    done.append("and the rest")
    tokens += run_to_end(core)["a"]
    assert tokens == list(range(4, 13))


@pytest.mark.parametrize("verb", ["execute", "sample", "collect"])
def test_an_interrupt_does_not_wait_for_the_workers(monkeypatch, verb):
    core, executor, _ = make_core()
    core.add(make_message("a", prompt=[1, 2, 3], max_tokens=9))
    whole, ended = getattr(executor, verb), []

    def pressed(*arguments):
        result = whole(*arguments)
        signal.raise_signal(signal.SIGINT)
        ended.append(verb)
        return result

    monkeypatch.setattr(executor, verb, pressed)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):
        core.step()
    signal.signal(signal.SIGINT, before)
    assert ended == []


def test_what_was_to_be_said_before_an_interrupt_is_said_after_it():
    executor = Interrupted("execute", 1)
    core = EngineCore(make_scheduler(num_blocks=9), executor, executor, ScriptedGrammars())
    core.add(make_message("a"))
    core.add(make_message("big", max_tokens=10_000))
    with pytest.raises(KeyboardInterrupt):
        core.step()
    outputs = said(core)
    assert outputs["big"].error.code == "out_of_capacity"
    assert outputs["a"].token_ids == [13]
    assert said(core).keys() == {"a"}, "and said once"


def test_a_token_that_was_taken_in_before_an_interrupt_is_said_after_it():
    executor, grammars = Interrupted("sample", 2), ScriptedGrammars()
    core = EngineCore(make_scheduler(), executor, executor, grammars, async_scheduling=True)
    core.add(make_message("bound", prompt=[20], max_tokens=3, structured_outputs=CHOICE))
    grammars.ready = [("bound", None)]
    core.step()
    with pytest.raises(KeyboardInterrupt):
        core.step()  # the first token is taken in, as the second one's mask follows from it
    assert run_to_end(core) == {"bound": [21, 22, 23]}
    assert grammars.accepted == {"bound": [21, 22]}


# -- what is said and counted ----------------------------------------------------------------------


def test_there_is_work_as_long_as_something_is_to_be_said_or_in_flight():
    core, _, _ = make_core(num_blocks=3)
    assert not core.has_work()
    core.add(make_message("big", max_tokens=100))
    assert core.has_work()
    assert said(core).keys() == {"big"}
    assert not core.has_work()
    assert said(core) == {}


def test_a_refusal_of_an_aborted_request_is_not_said():
    core, _, _ = make_core(num_blocks=3)
    for name in ("a", "b"):
        core.add(make_message(name, max_tokens=100))
    core.abort(["a", "unknown"])
    assert said(core).keys() == {"b"}


def test_a_step_reports_its_number_of_tokens():
    core, _, _ = make_core(max_num_batched_tokens=8)
    for name in "ab":
        core.add(make_message(name, prompt=range(1, 7)))
    assert [core.step().stats.num_scheduled_tokens for _ in range(3)] == [8, 5, 2]
    assert core.stats().num_scheduled_tokens == 0
    assert core.stats().num_running == 2


def test_the_queue_takes_as_many_as_it_may():
    core, _, _ = make_core(max_num_queued=2, max_num_seqs=1)
    for name in "abcd":
        core.add(make_message(name))
    outputs = said(core)
    assert outputs["d"].error.code == "overloaded"
    assert "2 requests are queued" in outputs["d"].error.message
    assert run_to_end(core).keys() == {"a", "b", "c"}


def test_a_reset_is_the_engine_s_and_other_controls_are_the_workers():
    core, _, _ = make_core(enable_prefix_caching=True)
    core.add(make_message("a", prompt=range(1, 10), max_tokens=1))
    run_to_end(core)
    assert core.stats().num_cached_blocks == 2
    assert core.control(ResetPrefixCache()) is None
    assert core.stats().num_cached_blocks == 0
    message = LoadAdapter(AdapterRef("one", "somewhere"))
    assert core.control(message) is message


def test_workers_are_asked_for_their_health_and_stopped():
    core, executor, grammars = make_core()
    core.check_health()
    assert executor.num_checks == 1
    core.shutdown()
    assert executor.is_shut_down
    assert grammars.is_shut_down


def test_an_engine_that_was_shut_down_holds_no_runner_and_refuses_calls():
    core, executor, _ = make_core()
    core.shutdown()
    core.shutdown()
    assert core.runner is not executor
    with pytest.raises(EngineDeadError, match="the engine was shut down"):
        core.control(LoadAdapter(AdapterRef("an adapter", "a/folder")))


def test_the_kv_store_is_shut_down_with_the_engine():
    class Closed(FickleStore):
        num_shutdowns = 0

        def shutdown(self):
            self.num_shutdowns += 1

    plan = make_plan(9)
    kv, store = KVCacheManager(plan), Closed({}, plan)
    core, _, _ = make_core(kv=kv, transfers=KVTransfers(store, kv, 1.0, "the store"))
    core.shutdown()
    assert store.num_shutdowns == 1


# -- grammars --------------------------------------------------------------------------------------


def bound_core(*names, **options):
    core, executor, grammars = make_core(**options)
    for name in names:
        core.add(make_message(name, prompt=[20], max_tokens=3, structured_outputs=CHOICE))
    return core, executor, grammars


def test_an_engine_waits_for_a_grammar_if_there_is_nothing_else():
    core, _, grammars = bound_core("bound")
    core.step()
    assert grammars.num_waits == 1
    core.add(make_message("big", max_tokens=10_000))
    core.step()
    assert grammars.num_waits == 1, "there is something to say"
    core.add(make_message("free", max_tokens=9))
    core.step()
    assert grammars.num_waits == 1, "another one runs"
    core.abort(["free"])
    core.step()
    assert grammars.num_waits == 2
    core.abort(["bound"])
    core.step()
    assert grammars.num_waits == 2, "no step waits for one"
    assert not core.has_work()


def test_a_request_with_a_grammar_does_not_run_before_it_is_ready():
    core, executor, _ = bound_core("bound")
    for _ in range(3):
        core.step()
    assert executor.num_tokens_per_step == []
    assert core.scheduler.requests["bound"].status is Status.WAITING_FOR_GRAMMAR


def test_rows_that_do_not_sample_have_no_mask():
    core, _, grammars = make_core(max_num_batched_tokens=4)
    core.add(make_message("bound", prompt=range(1, 7), max_tokens=2, structured_outputs=CHOICE))
    grammars.ready = [("bound", None)]
    asked = []
    ask = grammars.request_masks
    grammars.request_masks = lambda rows: asked.append(list(rows)) or ask(rows)
    while core.has_work():
        core.step()
    assert asked == [[(0, "bound")], [(0, "bound")]], "of the end of the prompt, and a token"


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_grammar_that_fails_while_masks_are_filled_gives_an_error_and_no_token(async_scheduling):
    core, _, grammars = bound_core("bad", "good", async_scheduling=async_scheduling)
    grammars.ready = [("bad", None), ("good", None)]
    emitted = {"bad": [], "good": []}
    for name, output in said(core).items():
        emitted[name] += output.token_ids
    collect = grammars.collect_masks

    def fail():
        grammars.ready = [("bad", GrammarError("not so"))]
        grammars.collect_masks = collect
        return collect()

    grammars.collect_masks = fail
    errors = {}
    while core.has_work():
        for name, output in said(core).items():
            emitted[name] += output.token_ids
            if output.error is not None:
                errors[name] = output.error.message
    assert errors == {"bad": "not so"}
    assert emitted == {"bad": [21], "good": [21, 22, 23]}
    assert grammars.released == ["bad", "good"]
    assert core._num_grammars == 0


def test_async_scheduling_samples_with_the_masks_of_the_tokens_before():
    core, executor, grammars = bound_core("bound", async_scheduling=True)
    grammars.ready = [("bound", None)]
    counts = []
    collect = grammars.collect_masks
    grammars.collect_masks = lambda: (
        counts.append(len(grammars.accepted.get("bound", []))) or (collect())
    )
    slots = []
    while core.has_work():
        core.step()
        slots.append([mask.slot for mask in executor.masks])
    assert counts == [0, 1, 2], "each mask follows all tokens before it"
    assert slots[:3] == [[0], [0], [0]]


def test_masks_are_not_asked_for_a_request_that_had_to_go():
    core, _, grammars = bound_core("bound", async_scheduling=True)
    grammars.ready = [("bound", None)]
    core.step()
    plan = core.scheduler.schedule()
    assert core._request_masks(plan)
    core.scheduler.requests["bound"].status = Status.WAITING
    assert not core._request_masks(plan)


def test_without_grammars_no_masks_are_requested():
    core, _, grammars = make_core()
    grammars.request_masks = None
    core.add(make_message("free"))
    assert len(run_to_end(core)["free"]) == 4
    core.add(make_message("bound", structured_outputs=CHOICE))
    core.abort(["bound"])
    core.add(make_message("free"))
    assert len(run_to_end(core)["free"]) == 4


def test_an_expired_request_releases_its_grammar():
    core, _, grammars = make_core()
    late = make_message("late", structured_outputs=CHOICE)
    core.add(msgspec.structs.replace(late, arrival_s=time.monotonic(), timeout_s=0.05))
    outputs = {}
    while "late" not in outputs:
        outputs |= said(core)
    assert outputs["late"].error.code == "request_timeout"
    assert grammars.released == ["late"]
    assert (core._num_grammars, core._preparing) == (0, set())
    assert not core.has_work()


def test_a_request_that_comes_too_late_starts_no_grammar():
    core, _, grammars = make_core()
    late = make_message("late", structured_outputs=CHOICE)
    core.add(msgspec.structs.replace(late, arrival_s=-1e6, timeout_s=1.0))
    assert said(core)["late"].error.code == "request_timeout"
    assert grammars.submitted == []
    assert grammars.released == []
    assert not core.has_work()


def test_the_time_of_grammars_is_counted_by_sender_and_not_by_salt():
    core, _, grammars = make_core()
    message = make_message("a", structured_outputs=CHOICE)
    core.add(msgspec.structs.replace(message, cache_salt="salt"))  # which a client may choose
    known = msgspec.structs.replace(message, request_id="b", cache_salt="salt", client="acme")
    core.add(known)
    assert grammars.clients == {"a": "", "b": "acme"}


def test_only_the_token_that_ends_the_thinking_activates_the_grammar():
    core, _, grammars = make_core()
    message = make_message("bound", prompt=[20], max_tokens=5, structured_outputs=CHOICE)
    core.add(msgspec.structs.replace(message, thinking_end=one_token(23)))
    assert grammars.inactive == {"bound"}
    grammars.ready = [("bound", None)]
    core.step()
    core.step()
    assert grammars.inactive == {"bound"}
    core.step()
    assert grammars.inactive == set()
    run_to_end(core)
    assert grammars.accepted == {"bound": [24]}


def test_the_first_output_of_a_request_says_when_it_started():
    core, _, _ = make_core(max_num_seqs=1)
    core.add(make_message("a", max_tokens=3))
    core.add(make_message("b", max_tokens=2))
    before_s, started = time.monotonic(), {"a": [], "b": []}
    while core.has_work():
        for output in core.step().outputs:
            started[output.request_id].append(output.started_s)
    assert [bool(each) for each in started["a"]] == [True, False, False]
    assert [bool(each) for each in started["b"]] == [True, False]
    assert before_s <= started["a"][0] <= started["b"][0] <= time.monotonic()


def test_each_step_that_computes_is_reported_with_its_size():
    core, _, _ = make_core(max_num_batched_tokens=100)
    core.add(make_message("a", prompt=[1, 2, 3], max_tokens=2))
    core.add(make_message("b", prompt=[1, 2], max_tokens=2))
    steps = []
    while core.has_work():
        steps += core.step().steps
    assert (steps[0].num_requests, steps[0].num_tokens) == (2, 5)
    assert sum(step.num_tokens for step in steps) == 7
    assert all(step.duration_s > 0 for step in steps)


def test_requests_that_wait_for_a_grammar_are_counted_until_it_is_ready():
    core, _, grammars = make_core()
    core.add(make_message("a", structured_outputs=CHOICE, max_tokens=2))
    stats = core.stats()
    assert (stats.num_grammars_waiting, stats.num_grammars_compiled) == (1, 0)
    grammars.ready.append(("a", None))
    while core.has_work():
        core.step()
    stats = core.stats()
    assert (stats.num_grammars_waiting, stats.num_grammars_compiled) == (0, 1)
    assert stats.grammar_wait_s > 0
