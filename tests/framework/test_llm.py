import asyncio

import pytest
from kernel_options import OWN_BACKEND

from quire import LLM, AsyncEngine, LoRARequest, SamplingParams, StructuredOutputsParams
from quire.errors import (
    EngineDeadError,
    GrammarError,
    InvalidRequestError,
    PromptsError,
    UnknownModelError,
)
from quire.testing.checkpoints import write_checkpoint

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(write_checkpoint(tmp_path_factory.mktemp("model"), "Qwen3ForCausalLM").folder)


@pytest.fixture(scope="module", params=["thread", "process"])
def llm(folder, request):
    with LLM(folder, max_model_len=128, engine_process=request.param == "process") as llm:
        yield llm


def test_one_prompt_of_any_kind_gives_one_output(llm):
    ids = llm.get_tokenizer().encode("hello")
    for prompt in ("hello", ids, {"prompt": "hello"}, {"prompt_token_ids": ids}):
        (output,) = llm.generate(prompt, GREEDY)
        assert output.prompt_token_ids == ids
        assert len(output.outputs[0].token_ids) == 12
        assert output.finished


def test_outputs_come_in_the_order_of_the_prompts(llm):
    prompts = ["a", "a longer prompt than the others", "b"]
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (9, 3, 6)]
    outputs = llm.generate(prompts, params)
    assert [output.prompt for output in outputs] == prompts
    assert [len(output.outputs[0].token_ids) for output in outputs] == [9, 3, 6]
    assert {output.outputs[0].finish_reason for output in outputs} == {"length"}


def test_chat_renders_the_template(llm):
    (output,) = llm.chat([{"role": "user", "content": "hi"}], GREEDY)
    assert output.prompt == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    several = llm.chat([[{"role": "user", "content": text}] for text in ("hi", "ho")], GREEDY)
    assert several[0].outputs[0].text == output.outputs[0].text


def test_a_stop_string_ends_the_completion_before_it(llm):
    (whole,) = llm.generate("hello", GREEDY)
    text = whole.outputs[0].text
    stop = text[4:6]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, stop=(stop,))
    (cut,) = llm.generate("hello", params)
    assert cut.outputs[0].text == text[: text.index(stop)]
    assert (cut.outputs[0].finish_reason, cut.outputs[0].stop_reason) == ("stop", stop)
    assert llm.stats().num_used_blocks == 0


def test_a_choice_is_one_of_the_choices_whatever_the_temperature(llm):
    constraint = StructuredOutputsParams(choice=("yes", "no", "perhaps"))
    params = [
        SamplingParams(temperature=2.0, seed=seed, max_tokens=20, structured_outputs=constraint)
        for seed in range(8)
    ]
    outputs = llm.generate(["q"] * 8, params)
    assert {output.outputs[0].text for output in outputs} <= {"yes", "no", "perhaps"}
    assert {output.outputs[0].finish_reason for output in outputs} == {"stop"}


def test_a_constraint_and_free_text_share_a_batch(llm):
    constraint = StructuredOutputsParams(regex="[0-9]{4}")
    bound = SamplingParams(temperature=0, max_tokens=20, structured_outputs=constraint)
    free, number = llm.generate(["hello", "hello"], [GREEDY, bound])
    assert free.outputs[0].text == llm.generate("hello", GREEDY)[0].outputs[0].text
    assert number.outputs[0].text.isdigit()
    assert len(number.outputs[0].text) == 4


def test_an_unsupported_constraint_is_refused_before_anything_runs(llm):
    constraint = StructuredOutputsParams(json={"type": "integer", "divisibleBy": 3})
    before = llm.get_tokenizer().encode("x")
    with pytest.raises(PromptsError, match="'divisibleBy'") as caught:
        llm.generate(["x", "y"], [GREEDY, SamplingParams(structured_outputs=constraint)])
    assert caught.value.errors[1].param == "structured_outputs"  # the intake's, not the engine's
    assert llm.stats().num_running == llm.stats().num_waiting == 0
    assert llm.generate({"prompt_token_ids": before}, GREEDY)[0].finished


def test_structured_output_can_be_off(folder):
    params = SamplingParams(structured_outputs=StructuredOutputsParams(regex="a"))
    off = pytest.raises(GrammarError, match="structured output is off")
    with LLM(folder, structured_output="none") as llm, off:
        llm.generate("x", params)


def test_an_unknown_backend_fails_the_request_only(llm):
    constraint = StructuredOutputsParams(regex="a", backend="unknown")
    with pytest.raises(GrammarError, match="'unknown'"):
        llm.generate("x", SamplingParams(structured_outputs=constraint))
    assert llm.generate("x", GREEDY)[0].finished


def test_logprobs_name_the_chosen_token_first(llm):
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, logprobs=2)
    completion = llm.generate("hello", params)[0].outputs[0]
    for token_id, row in zip(completion.token_ids, completion.logprobs, strict=True):
        assert next(iter(row)) == token_id
        assert row[token_id].rank == 1
        assert all(candidate.logprob <= 0 for candidate in row.values())


def test_without_lora_an_adapter_is_refused(llm, tmp_path):
    with pytest.raises(UnknownModelError, match="LoRA is off"):
        llm.generate("x", GREEDY, lora_request=LoRARequest("a", 1, str(tmp_path)))


def test_params_for_another_number_of_prompts_are_refused(llm):
    with pytest.raises(InvalidRequestError, match="2 entries for 1 prompts"):
        llm.generate(["x"], [GREEDY, GREEDY])


def test_a_closed_engine_says_so(folder):
    llm = LLM(folder)
    llm.close()
    llm.close()
    with pytest.raises(EngineDeadError, match="closed"):
        llm.generate("x")


def test_the_composition_lists_the_plugin_of_each_part(llm):
    parts = {choice.role: choice.name for choice in llm.composition.choices}
    assert parts["model"] == "Qwen3ForCausalLM"
    assert parts["attention backend"] == OWN_BACKEND


def test_a_prefix_that_was_forgotten_is_computed_again(llm):
    prompt = list(range(100, 164))
    hits = []
    for is_fresh in (True, False, True):
        if is_fresh:
            llm.reset_prefix_cache()
        before = llm.stats().num_prefix_hits
        llm.generate(prompt, GREEDY)
        hits.append(llm.stats().num_prefix_hits - before)
    assert hits[0] == hits[2] == 0
    assert hits[1] > 0


@pytest.mark.parametrize("engine_process", [False, True])
def test_async_engine_streams_what_llm_returns(folder, llm, engine_process):
    async def collect():
        engine = AsyncEngine(folder, max_model_len=128, engine_process=engine_process)
        try:
            streams = [stream(engine, text) for text in ("hello", "world")]
            chat = engine.chat([{"role": "user", "content": "hi"}], GREEDY)
            completions = await asyncio.gather(*streams, chat)
            await engine.reset_prefix_cache()
            assert engine.stats.num_running == 0
            return completions
        finally:
            await engine.shutdown()

    async def stream(engine, text):
        return "".join([delta.text async for delta in engine.generate(text, GREEDY)])

    hello, world, chat = asyncio.run(collect())
    assert [hello, world] == [o.outputs[0].text for o in llm.generate(["hello", "world"], GREEDY)]
    expected = llm.chat([{"role": "user", "content": "hi"}], GREEDY)[0].outputs[0].text
    assert chat.outputs[0].text == expected
