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
from quire.frontend.batch import BatchFrontend
from quire.messages import AdapterRef, ErrorReport
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
