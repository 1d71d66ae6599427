"""Offline: all prompts in order, errors before anything runs, and a clean engine afterwards."""

import pytest

from quire.errors import (
    EngineDeadError,
    InvalidRequestError,
    OverloadedError,
    PromptTooLongError,
    RequestFailedError,
)
from quire.frontend.batch import BatchFrontend
from quire.messages import AdapterRef, ErrorReport
from quire.sampling_params import SamplingParams

WHOLE = SamplingParams(max_tokens=None)


def test_answers_come_in_the_order_of_the_prompts(make_core, echo_script, tokenizer, intake):
    frontend = BatchFrontend(make_core(echo_script), tokenizer, intake)
    prompts = ["the fox jumps", "dog", "the lazy dog 👩‍👩‍👧"]
    outputs = frontend.generate(prompts, WHOLE, use_progress=True)
    assert [output.outputs[0].text for output in outputs] == prompts
    assert all(output.finished for output in outputs)


def test_each_prompt_can_have_its_own_parameters(make_core, echo_script, tokenizer, intake):
    frontend = BatchFrontend(make_core(echo_script), tokenizer, intake)
    params = [SamplingParams(max_tokens=1), SamplingParams(n=2, max_tokens=None)]
    adapters = [None, AdapterRef("pirate", "path")]
    one, two = frontend.generate(["fox", "dog"], params, adapters=adapters)
    assert (len(one.outputs), len(one.outputs[0].token_ids), len(two.outputs)) == (1, 1, 2)
    assert (one.lora_request, two.lora_request.lora_name) == (None, "pirate")
    with pytest.raises(InvalidRequestError, match="1 entries for 2 prompts"):
        frontend.generate(["fox", "dog"], [WHOLE])


def test_nothing_runs_if_one_prompt_is_wrong(make_core, echo_script, tokenizer, intake):
    core = make_core(echo_script)
    with pytest.raises(PromptTooLongError):
        BatchFrontend(core, tokenizer, intake).generate(["fox", [1] * 999], WHOLE)
    assert core.num_steps == 0


def test_more_prompts_than_fit_wait_their_turn(make_core, echo_script, tokenizer, intake):
    core = NarrowCore(make_core(echo_script), 3)
    frontend = BatchFrontend(core, tokenizer, intake, max_in_flight=50)
    prompts = [f"fox {i}" for i in range(20)]
    outputs = frontend.generate(prompts, WHOLE)
    assert [output.outputs[0].text for output in outputs] == prompts
    assert core.num_refused > 0


def test_an_engine_that_takes_nothing_is_an_error(make_core, echo_script, tokenizer, intake):
    frontend = BatchFrontend(NarrowCore(make_core(echo_script), 0), tokenizer, intake)
    with pytest.raises(OverloadedError):
        frontend.generate(["fox"], WHOLE)


def test_a_stop_string_aborts_in_the_engine(make_core, echo_script, tokenizer, intake):
    core = make_core(echo_script)
    (output,) = BatchFrontend(core, tokenizer, intake).generate(
        ["the lazy dog"], SamplingParams(max_tokens=None, stop=["lazy"])
    )
    assert (output.outputs[0].text, output.outputs[0].stop_reason) == ("the ", "lazy")
    assert len(core.aborted) == 1


def test_a_failed_request_leaves_the_engine_clean(make_core, echo_script, tokenizer, intake):
    def script(request):
        is_bad = request.token_ids == tokenizer.encode("bad")
        return ErrorReport("x", "it broke") if is_bad else echo_script(request)

    core = make_core(script)
    frontend = BatchFrontend(core, tokenizer, intake)
    with pytest.raises(RequestFailedError, match="it broke"):
        frontend.generate(["the fox", "bad", "dog"], WHOLE)
    assert not core.has_work()
    assert frontend.generate(["fox"], WHOLE)[0].outputs[0].text == "fox"


def test_an_engine_that_forgets_a_request_is_dead(make_core, echo_script, tokenizer, intake):
    core = make_core(echo_script)
    core.has_work = lambda: False
    with pytest.raises(EngineDeadError, match="1 requests are not finished"):
        BatchFrontend(core, tokenizer, intake).generate(["fox"], WHOLE)


def test_no_prompts_are_no_work(make_core, echo_script, tokenizer, intake):
    assert BatchFrontend(make_core(echo_script), tokenizer, intake).generate([], WHOLE) == []


class NarrowCore:
    """A core with room for a few requests only."""

    def __init__(self, core, room):
        self.core = core
        self.room = room
        self.num_refused = 0

    def add(self, request):
        if len(self.core._running) >= self.room:
            self.num_refused += 1
            raise OverloadedError("full")
        self.core.add(request)

    def abort(self, request_ids):
        self.core.abort(request_ids)

    def step(self):
        return self.core.step()

    def has_work(self):
        return self.core.has_work()
