"""The calls, results and errors of `LLM` and `AsyncEngine`, without a model."""

import asyncio
import threading
from pathlib import Path

import msgspec
import pytest
from adapter_files import write_adapter
from scripted_core import Reply, echo
from scripted_engine import AdaptingCore, start_with

from quire import LLM, AsyncEngine, LoRARequest, SamplingParams
from quire.errors import (
    AdapterError,
    EngineDeadError,
    InvalidRequestError,
    PromptsError,
    PromptTooLongError,
    RequestFailedError,
    RequestTimeoutError,
    UnknownModelError,
)
from quire.frontend.chat.parsing.completion_parsers import CompletionParsers
from quire.frontend.chat.templates.chat_template import ChatTemplate
from quire.frontend.text.tokenizer import Tokenizer
from quire.messages import ErrorReport, ResetPrefixCache
from quire.testing.checkpoints import write_checkpoint

WHOLE = SamplingParams(max_tokens=None, temperature=0)
BOOM = ErrorReport("request_failed", "sampler 'x' of acme failed: ValueError", "ValueError: boom")
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(write_checkpoint(tmp_path_factory.mktemp("model"), "Qwen3ForCausalLM").folder)


@pytest.fixture(scope="module")
def ids(folder):
    return Tokenizer.load(Path(folder))


@pytest.fixture
def start(folder, monkeypatch):
    """Start an `LLM` or an `AsyncEngine` over a core."""

    def start(core, kind=LLM, max_model_len=128, **options):
        start_with(monkeypatch, core, max_model_len)
        return kind(folder, **options)

    return start


def replying(ids, text):
    return lambda request: Reply([*ids.encode(text), request.stop_token_ids[0]])


def failing(ids, part, report=BOOM):
    """A script that fails the prompts with a part after one token, and repeats the others."""

    def script(request):
        is_bad = part in ids.decode(request.token_ids)
        return Reply(request.token_ids[:1], report) if is_bad else echo(request)

    return script


def texts(outcomes):
    return [outcome.outputs[0].text for outcome in outcomes]


def test_a_failed_prompt_of_a_list_loses_no_other(start, ids):
    with start(AdaptingCore(failing(ids, "bad"))) as llm:
        with pytest.raises(PromptsError, match=r"prompt 1: .*\(ValueError: boom\)") as caught:
            llm.generate(["one", "bad", "two"], WHOLE)
        assert texts(caught.value.outputs[::2]) == ["one", "two"]
        assert caught.value.outputs[1] is None
        assert str(caught.value.errors[1].__cause__) == BOOM.cause
        outcomes = llm.generate(["one", "bad", "two"], WHOLE, return_errors=True)
        assert texts(outcomes[::2]) == ["one", "two"]
        assert type(outcomes[1]) is RequestFailedError


@pytest.mark.parametrize("prompt", ["bad", {"prompt": "bad"}, "ids"])
def test_a_prompt_that_is_not_in_a_list_raises_its_own_error(start, ids, prompt):
    prompt = ids.encode("bad") if prompt == "ids" else prompt
    with start(AdaptingCore(failing(ids, "bad"))) as llm:
        with pytest.raises(RequestFailedError, match="sampler 'x' of acme") as caught:
            llm.generate(prompt, WHOLE)
        assert str(caught.value.__cause__) == BOOM.cause
        assert len(caught.value.output.outputs[0].token_ids) == 1
        with pytest.raises(PromptsError):
            llm.generate([prompt], WHOLE)
        (outcome,) = llm.generate(prompt, WHOLE, return_errors=True)
        assert isinstance(outcome, RequestFailedError)


def test_a_conversation_that_cannot_be_rendered_or_fails_is_named(start, ids):
    conversations = [HI, "nonsense", [{"role": "user", "content": "bad"}]]
    with start(AdaptingCore(failing(ids, "bad"))) as llm:
        with pytest.raises(PromptsError, match=r"1 of 3 .* prompt 1: ") as caught:
            llm.chat(conversations, WHOLE)
        assert caught.value.outputs == [None] * 3, "nothing ran"
        assert isinstance(caught.value.errors[1], InvalidRequestError)
        fine, unclear, failed = llm.chat(conversations, WHOLE, return_errors=True)
        assert fine.finished
        assert isinstance(unclear, InvalidRequestError)
        assert isinstance(failed, RequestFailedError)
        with pytest.raises(RequestFailedError):
            llm.chat(conversations[2], WHOLE)
        assert llm.chat([], WHOLE) == llm.generate([], WHOLE) == []


def test_an_adapter_that_cannot_be_used_is_the_error_of_its_prompts(start, tmp_path):
    good, bad = (LoRARequest(n, 1, str(write_adapter(tmp_path / n))) for n in ("good", "bad"))
    missing = LoRARequest("missing", 2, str(tmp_path / "nowhere"))
    core = AdaptingCore(echo, broken=["bad"])
    with start(core, enable_lora=True) as llm:
        adapters = [good, bad, None, "nobody", missing, bad]
        outcomes = llm.generate(["x"] * 6, WHOLE, lora_request=adapters, return_errors=True)
        kinds = [type(outcome) for outcome in outcomes]
        assert kinds[1::2] == [AdapterError, UnknownModelError, AdapterError]
        assert kinds[4] is AdapterError
        assert outcomes[0].lora_request.lora_name == "good"
        assert outcomes[2].lora_request is None
        with pytest.raises(PromptsError, match="prompt 1: adapter 'bad' is broken"):
            llm.generate(["x"] * 2, WHOLE, lora_request=[good, bad])
        with pytest.raises(AdapterError, match="'bad' is broken"):
            llm.generate("x", WHOLE, lora_request=bad)
    assert core.loaded.count("good") == 1, "what could be loaded once is not tried again"


class Dying(AdaptingCore):
    """Its engine dies when it is to load an adapter."""

    def control(self, command):
        raise RuntimeError("out of smoke")


def test_an_engine_that_dies_while_an_adapter_loads_is_no_prompts_fault(start, tmp_path):
    adapter = LoRARequest("a", 1, str(write_adapter(tmp_path / "a")))
    with start(Dying(echo), enable_lora=True) as llm:
        for return_errors in (True, False):
            with pytest.raises(EngineDeadError, match="out of smoke"):
                llm.generate(["x"], WHOLE, lora_request=adapter, return_errors=return_errors)


def test_adapters_of_the_start_are_loaded_then_and_not_again(start, tmp_path):
    core, folder = AdaptingCore(echo), write_adapter(tmp_path / "a")
    with start(core, enable_lora=True, lora_modules=[f"one={folder}", f"two={folder}"]) as llm:
        assert (core.loaded, llm.adapters) == (["one", "two"], ["one", "two"])
        llm.generate(["x", "y"], WHOLE, lora_request=["one", "two"])
    assert core.loaded == ["one", "two"]
    assert [request.adapter.name for request in core.requests] == ["one", "two"]


def test_a_start_whose_adapter_cannot_be_used_ends_the_core(start, tmp_path):
    core, folder = AdaptingCore(echo, broken=["one"]), write_adapter(tmp_path / "a")
    with pytest.raises(AdapterError, match="'one' is broken"):
        start(core, enable_lora=True, lora_modules=[f"one={folder}"])
    assert core.is_shut_down


def test_no_more_requests_are_in_flight_than_the_queue_takes(start):
    core = AdaptingCore(echo, max_num_seqs=1, max_queued=2)
    with start(core, max_num_seqs=1, max_num_queued=2) as llm:
        assert texts(llm.generate([f"prompt {i}" for i in range(9)], WHOLE))[8] == "prompt 8"


def test_the_length_in_force_is_shown_and_kept(start):
    with start(AdaptingCore(echo), max_model_len=20) as llm:
        assert llm.max_model_len == llm.composition.max_model_len == 20
        with pytest.raises(PromptTooLongError, match="takes 20 tokens"):
            llm.generate([5] * 20, WHOLE)
        assert llm.generate([5] * 19, WHOLE)[0].outputs[0].finish_reason == "length"


def test_parameters_priorities_and_times_reach_the_engine(start):
    core = AdaptingCore(echo)
    with start(core, scheduling_policy="priority") as llm:
        params = [SamplingParams(max_tokens=n, seed=n) for n in (1, 2)]
        llm.generate(["a", "b"], params, priority=[3, -3], timeout_s=[None, 9.0])
        llm.chat([HI, HI], params, priority=4, timeout_s=5)
        llm.generate("a")
        llm.reset_prefix_cache()
    asked = [(r.max_tokens, r.seed, r.priority, r.timeout_s) for r in core.requests[:4]]
    assert asked == [(1, 1, 3, None), (2, 2, -3, 9.0), (1, 1, 4, 5), (2, 2, 4, 5)]
    params = core.requests[4].params
    assert msgspec.structs.replace(params, extra_args={}) == SamplingParams()
    assert core.controls == [ResetPrefixCache()]
    assert core.is_shut_down


def test_a_priority_that_no_policy_reads_is_refused(start):
    refused = pytest.raises(InvalidRequestError, match="priority is 1")
    with start(AdaptingCore(echo)) as llm, refused:
        llm.generate("a", WHOLE, priority=1)


def test_a_users_file_that_fails_is_logged_with_its_path(start, ids, tmp_path, caplog):
    path = tmp_path / "bad.py"
    path.write_text(
        "from quire.interfaces.tool_parsing import TextDelta, ToolParser\n\n\n"
        "class Bad(ToolParser):\n"
        "    def feed(self, delta):\n        return [TextDelta(None)]\n\n"
        "    def close(self):\n        return []\n"
    )
    failure = pytest.raises(RequestFailedError, match=r"^plugin bad\.py \(file \w+\) failed while")
    with start(AdaptingCore(replying(ids, "a")), tool_call_parser=str(path)) as llm, failure:
        llm.chat(HI, WHOLE, tools=[TOOL])
    assert f"tool-call parser {str(path)!r} of plugin bad.py (file" in caplog.text
    assert "the text of an event is a str, not None" in caplog.text


def test_tools_are_for_all_conversations_or_one_list_for_each(start, ids):
    with start(AdaptingCore(replying(ids, CALL)), tool_call_parser="hermes") as llm:

        def num_calls(tools, messages=(HI, HI)):
            outputs = llm.chat(list(messages), WHOLE, tools=tools)
            return [len(output.outputs[0].tool_calls) for output in outputs]

        assert num_calls([TOOL]) == [1, 1]
        assert num_calls([[TOOL], []]) == [1, 0]
        assert num_calls(None) == [0, 0]
        assert num_calls([TOOL], HI) == [1]
        for wrong in ([[TOOL]], [[TOOL]] * 3):
            with pytest.raises(InvalidRequestError, match=r"lists for 2 conv") as caught:
                num_calls(wrong)
            assert caught.value.param == "tools"


def test_a_list_of_tools_is_read_once_for_all_conversations(start, ids, monkeypatch):
    num_grammars = []
    make = CompletionParsers.call_grammar
    monkeypatch.setattr(
        CompletionParsers,
        "call_grammar",
        lambda self, *given, **options: num_grammars.append(1) or make(self, *given, **options),
    )
    strict = {"type": "function", "function": TOOL["function"] | {"strict": True}}
    broken = {"type": "function", "function": {"name": "a b"}}
    with start(AdaptingCore(replying(ids, CALL)), tool_call_parser="hermes") as llm:
        outputs = llm.chat([HI] * 3, WHOLE, tools=[strict])
        assert [len(output.outputs[0].tool_calls) for output in outputs] == [1, 1, 1]
        assert len(num_grammars) == 1
        lists = [[strict], [broken], [strict]]
        outcomes = llm.chat([HI] * 3, WHOLE, tools=lists, return_errors=True)
        assert [isinstance(each, InvalidRequestError) for each in outcomes] == [False, True, False]
        assert len(num_grammars) == 3


def test_a_chat_prompt_gets_no_special_tokens_but_the_templates(start, ids, monkeypatch):
    seen = []
    encode = Tokenizer.encode

    def noted(self, text, add_special_tokens=True):
        seen.append(add_special_tokens)
        return encode(self, text, add_special_tokens)

    core = AdaptingCore(echo)
    with start(core) as llm:
        monkeypatch.setattr(Tokenizer, "encode", noted)
        llm.chat(HI, WHOLE)
        llm.generate("hi", WHOLE)
    asyncio.run(chat(start(AdaptingCore(echo), AsyncEngine)))
    of_prompts = [seen[0], seen[1], seen[-1]]  # between them the texts of samplers are encoded
    assert of_prompts == [False, True, False]


@pytest.mark.parametrize("tools", [None, [TOOL]])
def test_the_template_of_an_async_chat_is_given_its_tools(start, monkeypatch, tools):
    seen = []
    render = ChatTemplate.render
    monkeypatch.setattr(
        ChatTemplate,
        "render",
        lambda self, messages, given=None, **options: (
            seen.append(given) or render(self, messages, given, **options)
        ),
    )
    asyncio.run(chat(start(AdaptingCore(echo), AsyncEngine), tools=tools))
    assert seen == [tools]


def test_an_async_chat_is_prepared_beside_the_event_loop(start, monkeypatch):
    threads = []
    render = ChatTemplate.render
    monkeypatch.setattr(
        ChatTemplate,
        "render",
        lambda *given, **options: (
            threads.append(threading.current_thread()) or render(*given, **options)
        ),
    )
    asyncio.run(chat(start(AdaptingCore(echo), AsyncEngine)))
    assert len(threads) == 1
    assert threading.current_thread() not in threads


async def chat(engine, **options):
    try:
        return await engine.chat(HI, WHOLE, **options)
    finally:
        await engine.shutdown()


def test_async_requests_carry_all_that_is_asked(start, ids, tmp_path):
    core = AdaptingCore(replying(ids, CALL))
    adapter = f"one={write_adapter(tmp_path / 'a')}"
    options = {"scheduling_policy": "priority", "enable_lora": True, "lora_modules": [adapter]}
    options["served_model_name"] = "served"

    async def main(engine):
        wanted = {"lora_request": "one", "priority": 3, "timeout_s": 9.0}
        try:
            async for _ in engine.generate("x", WHOLE, **wanted):
                pass
            completion = await engine.chat(HI, WHOLE, tools=[TOOL], **wanted)
            plain = await engine.chat(HI, WHOLE)
            assert engine.max_model_len == 128
            assert engine.frontend.model_name == "served"
            await engine.reset_prefix_cache()
            return completion, plain
        finally:
            await engine.shutdown()

    completion, plain = asyncio.run(
        main(start(core, AsyncEngine, tool_call_parser="hermes", **options))
    )
    asked = [(r.adapter.name, r.priority, r.timeout_s) for r in core.requests[:2]]
    assert asked == [("one", 3, 9.0)] * 2
    assert [len(a.outputs[0].tool_calls) for a in (completion, plain)] == [1, 0]
    assert core.controls[1:] == [ResetPrefixCache()]


@pytest.mark.parametrize("given", [(5,), (None,), (["a"], "x")])
def test_arguments_of_a_wrong_type_are_invalid_and_nothing_runs(start, given):
    core = AdaptingCore(echo)
    with start(core) as llm, pytest.raises(InvalidRequestError):
        llm.generate(*given)
    assert core.num_steps == 0


def test_an_async_failure_has_its_cause_and_what_was_generated(start, ids):
    async def fail(engine):
        try:
            with pytest.raises(RequestFailedError, match="sampler 'x'") as streamed:
                async for _ in engine.generate("bad", WHOLE):
                    pass
            with pytest.raises(RequestFailedError) as whole:
                await engine.chat([{"role": "user", "content": "bad"}], WHOLE)
            return streamed.value, whole.value
        finally:
            await engine.shutdown()

    streamed, whole = asyncio.run(fail(start(AdaptingCore(failing(ids, "bad")), AsyncEngine)))
    assert str(streamed.__cause__) == str(whole.__cause__) == BOOM.cause
    assert len(whole.output.outputs[0].token_ids) == 1


def test_a_shutdown_lets_running_requests_finish(start):
    async def main(engine):
        async def generate():
            return [delta.finish_reason async for delta in engine.generate("x" * 30, WHOLE)]

        running = asyncio.create_task(generate())
        while not engine.stats.num_running:
            await asyncio.sleep(0.001)
        await engine.shutdown(10)
        return (await running)[-1]

    assert asyncio.run(main(start(AdaptingCore(echo, step_s=0.005), AsyncEngine))) == "stop"


def test_a_step_that_hangs_is_not_waited_for_beyond_the_engines_limit(start, monkeypatch):
    monkeypatch.setattr("quire.frontend.dispatch.dispatcher.OVERDUE_S", 0.0)
    core = AdaptingCore(echo, step_s=0.3)
    with pytest.raises(RequestTimeoutError, match="does not answer"):
        asyncio.run(chat(start(core, AsyncEngine, request_timeout_s=0.05)))
