"""Offline: all prompts in order, errors before anything runs, and a clean engine afterwards."""

import pytest
from engine_parts import make_core
from scripted_core import Reply, ScriptedCore, echo

from quire.errors import (
    EngineDeadError,
    InvalidRequestError,
    PromptTooLongError,
    RequestFailedError,
)
from quire.frontend import batch as batch_module
from quire.frontend.batch import BatchFrontend
from quire.frontend.intake import Intake
from quire.messages import AdapterRef, EngineOutput, EngineOutputs, ErrorReport
from quire.registry import Source
from quire.sampling_params import SamplingParams

WHOLE = SamplingParams(max_tokens=None)


def test_answers_come_in_the_order_of_the_prompts(tokenizer, intake):
    frontend = BatchFrontend(ScriptedCore(echo), tokenizer, intake)
    prompts = ["the fox jumps", "dog", "the lazy dog 👩‍👩‍👧"]
    outputs = frontend.generate(prompts, WHOLE, use_progress=True)
    assert [output.outputs[0].text for output in outputs] == prompts
    assert all(output.finished for output in outputs)


def test_each_prompt_can_have_its_own_parameters(tokenizer, intake):
    frontend = BatchFrontend(ScriptedCore(echo), tokenizer, intake)
    params = [SamplingParams(max_tokens=1), SamplingParams(n=2, max_tokens=None)]
    adapters = [None, AdapterRef("pirate", "path")]
    one, two = frontend.generate(["fox", "dog"], params, adapters=adapters)
    assert (len(one.outputs), len(one.outputs[0].token_ids), len(two.outputs)) == (1, 1, 2)
    assert (one.lora_request, two.lora_request.lora_name) == (None, "pirate")
    with pytest.raises(InvalidRequestError, match="1 entries for 2 prompts"):
        frontend.generate(["fox", "dog"], [WHOLE])


def test_nothing_runs_if_one_prompt_is_wrong(tokenizer, intake):
    core = ScriptedCore(echo)
    with pytest.raises(PromptTooLongError):
        BatchFrontend(core, tokenizer, intake).generate(["fox", [1] * 999], WHOLE)
    assert core.num_steps == 0


@pytest.mark.parametrize("is_real", [False, True])
def test_more_prompts_than_the_queue_holds_wait_their_turn(tokenizer, intake, is_real):
    core = ScriptedCore(echo, max_num_seqs=2, max_queued=4)
    if is_real:
        core = make_core(max_num_seqs=2, max_num_queued=4)[0]
    frontend = BatchFrontend(core, tokenizer, intake, max_in_flight=4)
    params = SamplingParams(max_tokens=3, n=2)
    outputs = frontend.generate([f"fox {i}" for i in range(20)], params)
    assert [output.prompt for output in outputs] == [f"fox {i}" for i in range(20)]
    assert {len(answer.token_ids) for output in outputs for answer in output.outputs} == {3}
    assert not core.has_work()


def test_what_the_engine_refuses_is_an_error(tokenizer, intake):
    frontend = BatchFrontend(make_core(num_blocks=3)[0], tokenizer, intake)
    with pytest.raises(PromptTooLongError, match="KV blocks"):
        frontend.generate(["fox"], SamplingParams(max_tokens=100))


def test_a_stop_string_aborts_in_the_engine(tokenizer, intake):
    core = ScriptedCore(echo)
    (output,) = BatchFrontend(core, tokenizer, intake).generate(
        ["the lazy dog"], SamplingParams(max_tokens=None, stop=["lazy"])
    )
    assert (output.outputs[0].text, output.outputs[0].stop_reason) == ("the ", "lazy")
    assert len(core.aborted) == 1


def test_a_failed_request_leaves_the_engine_clean(tokenizer, intake):
    def script(request):
        is_bad = request.token_ids == tokenizer.encode("bad")
        return Reply([], ErrorReport("x", "it broke")) if is_bad else echo(request)

    core = ScriptedCore(script)
    frontend = BatchFrontend(core, tokenizer, intake)
    with pytest.raises(RequestFailedError, match="it broke"):
        frontend.generate(["the fox", "bad", "dog"], WHOLE)
    assert not core.has_work()
    assert frontend.generate(["fox"], WHOLE)[0].outputs[0].text == "fox"


def test_an_engine_that_forgets_a_request_is_dead(tokenizer, intake):
    core = ScriptedCore(echo)
    core.has_work = lambda: False
    with pytest.raises(EngineDeadError, match="1 requests are not finished"):
        BatchFrontend(core, tokenizer, intake).generate(["fox"], WHOLE)


def test_no_prompts_are_no_work(tokenizer, intake):
    assert BatchFrontend(ScriptedCore(echo), tokenizer, intake).generate([], WHOLE) == []


class Watched(ScriptedCore):
    """Notes the most requests that it had at a time."""

    most = 0

    def add(self, request):
        super().add(request)
        self.most = max(self.most, len(self.waiting) + len(self.running))


@pytest.mark.parametrize("max_in_flight", [1, 3, 100])
def test_the_engine_has_so_many_requests_at_a_time_and_no_more(tokenizer, intake, max_in_flight):
    core = Watched(echo)
    frontend = BatchFrontend(core, tokenizer, intake, max_in_flight=max_in_flight)
    frontend.generate(["the fox"] * 5, SamplingParams(n=2, max_tokens=2))
    assert core.most == min(max_in_flight, 10)
    assert [request.child for request in core.requests] == [0, 1] * 5


def test_each_prompt_has_its_priority_and_its_time(tokenizer):
    intake = Intake(
        tokenizer, max_model_len=256, vocab_size=tokenizer.vocab_size, has_priorities=True
    )
    core = ScriptedCore(echo)
    frontend = BatchFrontend(core, tokenizer, intake)
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
    frontend = BatchFrontend(core := ScriptedCore(echo), tokenizer, intake)
    with pytest.raises(InvalidRequestError, match="entries for 2 prompts") as caught:
        frontend.generate(["a", "b"], **{"params": WHOLE} | fields)
    assert caught.value.param == param
    assert core.num_steps == 0


def test_plugins_hear_of_each_end(tokenizer, intake):
    heard = []

    def hook(*, request, output):
        heard.append((request.child, output.finish_reason))

    hooks = [(Source("acme", "acme-quire", "1.0"), hook)]
    frontend = BatchFrontend(ScriptedCore(echo), tokenizer, intake, finished_hooks=hooks)
    frontend.generate(["fox"], SamplingParams(n=2, max_tokens=None))
    assert heard == [(0, "stop"), (1, "stop")]


def test_progress_counts_prompts(tokenizer, intake, monkeypatch):
    counted = []
    monkeypatch.setattr(
        batch_module.Progress, "advance", lambda self, task, num: counted.append(num)
    )
    frontend = BatchFrontend(ScriptedCore(echo), tokenizer, intake)
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
    (output,) = BatchFrontend(core, tokenizer, intake).generate(["the fox jumps"], params)
    assert (output.outputs[0].text, output.outputs[0].stop_reason) == ("the ", "fox")
    assert not core.has_work()


def test_a_step_that_said_nothing_is_followed_by_another(tokenizer, intake):
    class Silent(ScriptedCore):
        """Was woken before the first step ended."""

        silences = 2

        def step(self):
            self.silences -= 1
            return super().step() if self.silences < 0 else None

    (output,) = BatchFrontend(Silent(echo), tokenizer, intake).generate(["fox"], WHOLE)
    assert output.outputs[0].text == "fox"
