import msgspec
import pytest
from engine_parts import (
    CountingExecutor,
    ScriptedGrammars,
    make_core,
    make_message,
    make_scheduler,
    run_to_end,
)

from quire.engine.core import EngineCore
from quire.errors import GrammarError, InvalidRequestError
from quire.messages import AdapterRef, ErrorReport, SlotResult, StepResult
from quire.sampling_params import StructuredOutputsParams

CHOICE = StructuredOutputsParams(choice=("yes", "no"))


def test_requests_of_any_length_finish_with_their_own_tokens():
    core, executor, _ = make_core(max_num_batched_tokens=7, max_num_seqs=3)
    for index in range(9):
        core.add(make_message(f"r{index}", prompt=[100 * index + 1] * (index + 1), max_tokens=5))
    answers = run_to_end(core)
    for index in range(9):
        assert answers[f"r{index}"] == [100 * index + 2 + i for i in range(5)]
    assert max(executor.num_tokens_per_step) <= 7


def test_a_request_that_can_never_fit_is_refused_with_the_numbers():
    core, _, _ = make_core(num_blocks=3)
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
    answers = {}
    while core.has_work():
        for output in core.step().outputs:
            answers.setdefault(output.request_id, []).extend(output.token_ids)
            if output.error:
                errors[output.request_id] = output.error.message
    assert errors == {"bad": "token is cursed"}
    assert answers["good"] == list(range(61, 70))
    assert core.scheduler.kv.pool.num_used == 0


def test_an_aborted_request_is_heard_of_no_more():
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


def test_a_request_that_fails_in_a_chunk_gives_its_grammar_back():
    class FailsAtOnce(CountingExecutor):
        def collect(self, plan_id):
            slot = self.plans[0].requests[0].slot
            super().collect(plan_id)
            report = ErrorReport("request_failed", "the first chunk fails")
            return StepResult(plan_id=plan_id, results=[SlotResult(slot, [], None, report)])

    grammars = ScriptedGrammars()
    core = EngineCore(make_scheduler(max_num_batched_tokens=4), FailsAtOnce(), grammars)
    core.add(make_message("bound", prompt=range(1, 11), structured_outputs=CHOICE))
    grammars.ready = [("bound", None)]
    (output,) = core.step().outputs
    assert output.error.message == "the first chunk fails"
    assert grammars.released == ["bound"]


def test_an_aborted_grammar_is_released_and_its_late_answer_ignored():
    core, _, grammars = make_core()
    core.add(make_message("bound", structured_outputs=CHOICE))
    core.abort(["bound"])
    assert grammars.released == ["bound"]
    grammars.ready = [("bound", None)]
    assert core.step().outputs == []


def test_a_form_begins_behind_the_token_that_ends_the_thinking():
    core, executor, grammars = make_core()
    message = make_message("bound", prompt=[20], max_tokens=5, structured_outputs=CHOICE)
    core.add(msgspec.structs.replace(message, thinking_end_token_id=22))
    grammars.ready = [("bound", None)]
    masked = []
    while core.has_work():
        executor.masks = []
        core.step()
        masked.append([mask.slot for mask in executor.masks])
    assert masked == [[], [], [0], [0], [0]]  # 21 and 22 are thoughts
    assert grammars.accepted == {"bound": [23, 24]}
    assert grammars.released == ["bound"]


def test_the_token_that_ends_the_thinking_is_one_like_others_in_the_answer():
    core, _, grammars = make_core()
    core.add(make_message("bound", prompt=[20], max_tokens=3, structured_outputs=CHOICE))
    grammars.ready = [("bound", None)]
    run_to_end(core)
    assert grammars.accepted == {"bound": [21, 22]}


def test_an_id_that_is_in_use_is_no_answer_to_whoever_has_it():
    core, _, _ = make_core(num_blocks=9)
    core.add(make_message("twice"))
    for max_tokens in (4, 10_000):  # the second could never fit, and would end the first
        with pytest.raises(InvalidRequestError, match="'twice' is in use"):
            core.add(make_message("twice", max_tokens=max_tokens))
    answers = run_to_end(core)
    assert len(answers["twice"]) == 4


def test_an_adapter_without_content_fails_its_request_alone():
    core, _, _ = make_core(enable_prefix_caching=True)
    odd = msgspec.structs.replace(make_message("odd"), adapter=AdapterRef("x", "somewhere"))
    core.add(odd)
    core.add(make_message("other"))
    outputs = {output.request_id: output for output in core.step().outputs}
    assert "no content hash" in outputs["odd"].error.message
    assert outputs["other"].error is None
    assert list(core.scheduler.requests) == ["other"]
