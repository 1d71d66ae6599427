"""Offline batches: an output or an error per prompt, in order; then the engine is clean."""

import pytest
from engine_parts import make_core
from scripted_core import Reply, ScriptedCore, echo

from quire.errors import (
    AdapterError,
    CauseError,
    EngineDeadError,
    GrammarError,
    InvalidRequestError,
    PromptsError,
    PromptTooLongError,
    RequestFailedError,
)
from quire.frontend import offline_frontend as batch_module
from quire.frontend.intake.intake import Intake
from quire.frontend.offline_frontend import OfflineFrontend
from quire.messages import AdapterRef, EngineOutput, EngineOutputs, ErrorReport
from quire.plugins.registry import Source
from quire.sampling_params import SamplingParams

WHOLE = SamplingParams(max_tokens=None)


def test_outputs_are_in_the_order_of_the_prompts(tokenizer, intake):
    frontend = OfflineFrontend(ScriptedCore(echo), tokenizer, intake)
    prompts = ["the fox jumps", "dog", "the lazy dog 👩‍👩‍👧"]
    outputs = frontend.generate(prompts, WHOLE, use_progress=True)
    assert [output.outputs[0].text for output in outputs] == prompts
    assert all(output.finished for output in outputs)


def test_each_prompt_can_have_its_own_parameters(tokenizer, intake):
    frontend = OfflineFrontend(ScriptedCore(echo), tokenizer, intake)
    params = [SamplingParams(max_tokens=1), SamplingParams(n=2, max_tokens=None)]
    adapters = [None, AdapterRef("pirate", "path")]
    one, two = frontend.generate(["fox", "dog"], params, adapters=adapters)
    assert (len(one.outputs), len(one.outputs[0].token_ids), len(two.outputs)) == (1, 1, 2)
    assert (one.lora_request, two.lora_request.lora_name) == (None, "pirate")
    for wrong in (1, 3):
        with pytest.raises(InvalidRequestError, match=f"{wrong} entries for 2 prompts"):
            frontend.generate(["fox", "dog"], [WHOLE] * wrong, return_errors=True)


def test_nothing_runs_if_one_prompt_is_wrong_and_every_wrong_one_is_named(tokenizer, intake):
    core = ScriptedCore(echo)
    prompts = ["fox", [1] * 999, "dog", ""]
    with pytest.raises(
        PromptsError, match=r"2 of 4 .* prompt 1: .* 999 tokens.* prompt 3: "
    ) as caught:
        OfflineFrontend(core, tokenizer, intake).generate(prompts, WHOLE)
    assert core.num_steps == 0
    assert caught.value.outputs == [None] * 4
    kinds = {index: type(error) for index, error in caught.value.errors.items()}
    assert kinds == {1: PromptTooLongError, 3: InvalidRequestError}
    assert caught.value.__cause__ is caught.value.errors[1]


def test_a_prompt_or_adapter_that_cannot_be_used_is_the_error_of_its_prompt(tokenizer, intake):
    frontend = OfflineFrontend(ScriptedCore(echo), tokenizer, intake)
    wrong, missing = GrammarError("no such constraint"), AdapterError("no such file")
    outcomes = frontend.generate(
        ["fox", wrong, "dog"], WHOLE, adapters=[None, None, missing], return_errors=True
    )
    assert outcomes[0].outputs[0].text == "fox"
    assert outcomes[1:] == [wrong, missing]
    assert wrong.output is missing.output is None


def test_an_exception_without_a_text_is_named_by_its_type(tokenizer, intake):
    class MuteError(Exception):
        def __str__(self):
            raise KeyError

    wrong = AdapterError("torn")
    wrong.__cause__ = MuteError()
    with pytest.raises(PromptsError, match=r"torn \(MuteError\)$"):
        OfflineFrontend(ScriptedCore(echo), tokenizer, intake).generate([wrong], WHOLE)


@pytest.mark.parametrize("is_real", [False, True])
def test_more_prompts_than_the_queue_holds_wait_their_turn(tokenizer, intake, is_real):
    core = ScriptedCore(echo, max_num_seqs=1, max_queued=3)
    if is_real:
        core = make_core(max_num_seqs=2, max_num_queued=4)[0]
    frontend = OfflineFrontend(core, tokenizer, intake, max_in_flight=4)
    params = SamplingParams(max_tokens=3, n=2)
    outputs = frontend.generate([f"fox {i}" for i in range(20)], params)
    assert [output.prompt for output in outputs] == [f"fox {i}" for i in range(20)]
    assert {len(completion.token_ids) for output in outputs for completion in output.outputs} == {3}
    assert not core.has_work()


def test_what_the_engine_refuses_is_an_error(tokenizer, intake):
    frontend = OfflineFrontend(make_core(num_blocks=3)[0], tokenizer, intake)
    params = [SamplingParams(max_tokens=1), SamplingParams(max_tokens=100)]
    with pytest.raises(PromptsError, match=r"prompt 1: .* KV blocks") as caught:
        frontend.generate(["fox", "fox"], params)
    assert type(caught.value.errors[1]) is PromptTooLongError
    assert caught.value.outputs[0].finished


def test_a_stop_string_aborts_in_the_engine(tokenizer, intake):
    core = ScriptedCore(echo)
    (output,) = OfflineFrontend(core, tokenizer, intake).generate(
        ["the lazy dog"], SamplingParams(max_tokens=None, stop=["lazy"])
    )
    assert (output.outputs[0].text, output.outputs[0].stop_reason) == ("the ", "lazy")
    assert len(core.aborted) == 1


def fails_on(tokenizer, text, report, child=None, num_tokens=0):
    """A script that fails a prompt, or one of its completions, after some tokens."""
    token_ids = tokenizer.encode(text)

    def script(request):
        if request.token_ids == token_ids and child in (None, request.child):
            return Reply(token_ids[:num_tokens], report)
        return echo(request)

    return ScriptedCore(script)


TEXT = "Traceback ...\nTypeError: no such thing"
BROKEN = ErrorReport("x", "sampler 'y' of acme failed: TypeError", TEXT)


def test_a_failed_prompt_loses_no_other_and_is_named_with_its_cause(tokenizer, intake):
    core = fails_on(tokenizer, "bad fox", BROKEN, num_tokens=1)
    frontend = OfflineFrontend(core, tokenizer, intake)
    with pytest.raises(PromptsError) as caught:
        frontend.generate(["the fox", "bad fox", "dog"], WHOLE)
    listed = "prompt 1: sampler 'y' of acme failed: TypeError (TypeError: no such thing)"
    assert str(caught.value) == f"1 of 3 prompt(s) failed: {listed}"
    first, none, last = caught.value.outputs
    assert (first.outputs[0].text, none, last.outputs[0].text) == ("the fox", None, "dog")
    error = caught.value.errors[1]
    assert caught.value.__cause__ is error
    assert (type(error.__cause__), str(error.__cause__)) == (CauseError, TEXT)
    assert error.output.outputs[0].token_ids == tokenizer.encode("bad fox")[:1]
    assert error.output.outputs[0].finish_reason == "error"
    assert not core.has_work()
    assert frontend.generate(["fox"], WHOLE)[0].outputs[0].text == "fox"


def test_errors_come_back_in_the_places_of_their_prompts(tokenizer, intake):
    core = fails_on(tokenizer, "bad", BROKEN)
    prompts = ["bad", "the fox", [1] * 999, "dog"]
    outcomes = OfflineFrontend(core, tokenizer, intake).generate(prompts, WHOLE, return_errors=True)
    assert [type(outcomes[0]), type(outcomes[2])] == [RequestFailedError, PromptTooLongError]
    assert [outcomes[i].outputs[0].text for i in (1, 3)] == ["the fox", "dog"]


def test_the_other_completions_of_a_failed_prompt_stand_in_its_error(tokenizer, intake):
    core = fails_on(tokenizer, "the fox", BROKEN, child=1)
    frontend = OfflineFrontend(core, tokenizer, intake)
    params = SamplingParams(n=3, max_tokens=None)
    (error,) = frontend.generate(["the fox"], params, return_errors=True)
    assert type(error) is RequestFailedError
    assert [c.finish_reason for c in error.output.outputs] == ["stop", "error", "stop"]
    assert [c.text for c in error.output.outputs] == ["the fox", "", "the fox"]


def test_the_first_failure_of_a_prompts_completions_is_its_error(tokenizer, intake):
    def script(request):
        return Reply([5] * (3 - request.child), ErrorReport("x", f"completion {request.child}"))

    frontend = OfflineFrontend(ScriptedCore(script), tokenizer, intake)
    (error,) = frontend.generate(["fox"], SamplingParams(n=3), return_errors=True)
    assert str(error) == "completion 2"


def test_a_message_names_a_few_of_many_failures(tokenizer, intake):
    frontend = OfflineFrontend(ScriptedCore(echo), tokenizer, intake)
    with pytest.raises(PromptsError, match=r"20 of 20 .*prompt 7: [^;]*; and 12 more$") as caught:
        frontend.generate([""] * 20, WHOLE)
    assert sorted(caught.value.errors) == list(range(20))


def test_what_is_done_with_an_output_may_fail_for_its_prompt_alone(tokenizer, intake):
    frontend = OfflineFrontend(ScriptedCore(echo), tokenizer, intake)

    def finish(index, output):
        if index == 1:
            raise RequestFailedError(f"parser failed on {output.outputs[0].text}")
        output.outputs[0].text += "!"

    with pytest.raises(PromptsError, match="prompt 1: parser failed on dog") as caught:
        frontend.generate(["fox", "dog"], WHOLE, finish=finish)
    assert caught.value.outputs[0].outputs[0].text == "fox!"
    assert caught.value.errors[1].output.outputs[0].text == "dog"


def test_a_completion_that_cannot_be_decoded_fails_its_prompt_alone(tokenizer, intake, caplog):
    core = ScriptedCore(lambda request: Reply([-1] if len(request.token_ids) > 2 else [5, 6]))
    params = [SamplingParams(max_tokens=n, ignore_eos=True, stop=["never"]) for n in (2, 100)]
    fine, error = OfflineFrontend(core, tokenizer, intake).generate(
        [[5, 6], [5, 6, 7]], params, return_errors=True
    )
    assert len(core.aborted) == 1
    assert len(fine.outputs[0].token_ids) == 2
    assert str(error) == "the completion could not be decoded; see the log"
    assert error.__cause__ is not None
    (request_id,) = core.aborted
    said = f"the completion of prompt 1 (request {request_id}) could not be turned into text"
    assert [record.getMessage() for record in caplog.records] == [said]
    assert not core.has_work()


class Interrupting(ScriptedCore):
    """Ctrl-C comes in its second step."""

    def step(self):
        outputs = super().step()
        if self.num_steps == 2:
            raise KeyboardInterrupt
        return outputs


def test_an_interrupt_ends_the_call_and_leaves_nothing_in_the_engine(tokenizer, intake):
    core = Interrupting(echo)
    frontend = OfflineFrontend(core, tokenizer, intake)
    with pytest.raises(KeyboardInterrupt):
        frontend.generate(["the lazy dog", ""], WHOLE, return_errors=True)
    assert not core.has_work()
    assert frontend.generate(["fox"], WHOLE)[0].outputs[0].text == "fox"


def test_an_engine_that_dies_is_no_fault_of_any_prompt(tokenizer, intake):
    core = ScriptedCore(lambda request: Reply(request.token_ids[:1], RuntimeError("smoke")))
    with pytest.raises(EngineDeadError, match="smoke"):
        OfflineFrontend(core, tokenizer, intake).generate(["fox", ""], WHOLE, return_errors=True)


def test_an_engine_that_forgets_a_request_is_dead(tokenizer, intake):
    core = ScriptedCore(echo)
    core.has_work = lambda: False
    with pytest.raises(EngineDeadError, match="1 requests are unfinished"):
        OfflineFrontend(core, tokenizer, intake).generate(["fox"], WHOLE)


def test_no_prompts_are_no_work(tokenizer, intake):
    assert OfflineFrontend(ScriptedCore(echo), tokenizer, intake).generate([], WHOLE) == []


class Watched(ScriptedCore):
    """Notes the most requests that it had at a time."""

    most = 0

    def add(self, request):
        super().add(request)
        self.most = max(self.most, len(self.waiting) + len(self.running))


@pytest.mark.parametrize("max_in_flight", [1, 3, 100])
def test_the_engine_has_so_many_requests_at_a_time_and_no_more(tokenizer, intake, max_in_flight):
    core = Watched(echo)
    frontend = OfflineFrontend(core, tokenizer, intake, max_in_flight=max_in_flight)
    frontend.generate(["the fox"] * 5, SamplingParams(n=2, max_tokens=2))
    assert core.most == min(max_in_flight, 10)
    assert [request.child for request in core.requests] == [0, 1] * 5


def test_each_prompt_has_its_priority_and_its_time(tokenizer):
    intake = Intake(
        tokenizer, max_model_len=256, vocab_size=tokenizer.vocab_size, has_priorities=True
    )
    core = ScriptedCore(echo)
    frontend = OfflineFrontend(core, tokenizer, intake)
    frontend.generate(["a", "b"], (WHOLE, WHOLE), priority=(-3, 4), timeout_s=[2.5, None])
    assert [(r.priority, r.timeout_s) for r in core.requests] == [(-3, 2.5), (4, None)]
    frontend.generate(["a", "b"], WHOLE, priority=5, timeout_s=9)
    assert [(r.priority, r.timeout_s) for r in core.requests[2:]] == [(5, 9)] * 2
    adapter = AdapterRef("pirate", "path")
    frontend.generate(["a", "b"], WHOLE, adapters=adapter)
    assert [r.adapter for r in core.requests[4:]] == [adapter] * 2


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"params": [WHOLE] * 3}, "sampling_params"),
        ({"adapters": [None]}, "lora_request"),
        ({"priority": [0]}, "priority"),
        ({"timeout_s": []}, "timeout_s"),
    ],
)
def test_a_list_has_an_entry_for_each_prompt(tokenizer, intake, fields, param):
    frontend = OfflineFrontend(core := ScriptedCore(echo), tokenizer, intake)
    with pytest.raises(InvalidRequestError, match="entries for 2 prompts") as caught:
        frontend.generate(["a", "b"], **{"params": WHOLE} | fields)
    assert caught.value.param == param
    assert core.num_steps == 0


def test_plugins_hear_of_each_end(tokenizer, intake):
    heard = []

    def hook(*, request, output):
        heard.append((request.child, output.finish_reason))

    hooks = [(Source("acme", "acme-quire", "1.0"), hook)]
    frontend = OfflineFrontend(ScriptedCore(echo), tokenizer, intake, finished_hooks=hooks)
    frontend.generate(["fox"], SamplingParams(n=2, max_tokens=None))
    assert heard == [(0, "stop"), (1, "stop")]


def test_progress_counts_prompts(tokenizer, intake, monkeypatch):
    counted = []
    monkeypatch.setattr(
        batch_module.Progress, "advance", lambda self, task, num: counted.append(num)
    )
    frontend = OfflineFrontend(ScriptedCore(echo), tokenizer, intake)
    frontend.generate(["fox", "the lazy dog"], SamplingParams(n=3, max_tokens=None))
    assert counted == [1, 1]


def test_an_output_behind_a_stop_string_is_dropped(tokenizer, intake):
    class Surplus(ScriptedCore):
        """Says more of a request that the frontend has ended."""

        def step(self):
            outputs = super().step()
            more = [
                EngineOutput(request_id=output.request_id, token_ids=[21])
                for output in outputs.outputs
            ]
            return EngineOutputs([*outputs.outputs, *more], outputs.stats)

    core = Surplus(echo, tokens_per_step=100)
    params = SamplingParams(max_tokens=None, stop=["fox"])
    (output,) = OfflineFrontend(core, tokenizer, intake).generate(["the fox jumps"], params)
    assert (output.outputs[0].text, output.outputs[0].stop_reason) == ("the ", "fox")
    assert not core.has_work()


def test_a_step_that_said_nothing_is_followed_by_another(tokenizer, intake):
    class Silent(ScriptedCore):
        """Was woken before the first step ended."""

        silences = 2

        def step(self):
            self.silences -= 1
            return super().step() if self.silences < 0 else None

    (output,) = OfflineFrontend(Silent(echo), tokenizer, intake).generate(["fox"], WHOLE)
    assert output.outputs[0].text == "fox"
