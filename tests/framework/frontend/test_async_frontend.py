"""Streams from the engine's thread: whole, typed, aborted in time, and never left hanging."""

import asyncio
import contextlib
import gc
import os
import threading
import time
import weakref

import pytest
from processes import WAIT_S
from scripted_core import Reply, ScriptedCore, echo

from quire.errors import (
    AdapterError,
    EngineDeadError,
    GrammarError,
    InvalidRequestError,
    OverloadedError,
    PromptTooLongError,
    RequestFailedError,
    RequestTimeoutError,
    UnknownModelError,
)
from quire.frontend.async_frontend import AsyncFrontend
from quire.frontend.chat.parsing.completion_parsers import CompletionParsers
from quire.frontend.chat.templates.chat_template import ChatTemplate
from quire.frontend.intake.companions import Companions
from quire.frontend.intake.intake import Intake
from quire.interfaces.companion_prompt import CompanionPrompt
from quire.interfaces.sampling import RequestField
from quire.messages import AdapterRef, ErrorReport, LoadAdapter, ResetPrefixCache
from quire.plugins.registry import Source
from quire.sampling_params import SamplingParams, StructuredOutputsParams

WHOLE = SamplingParams(max_tokens=None)
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


def make(core, tokenizer, intake, **options):
    return AsyncFrontend(
        core, tokenizer, intake, ChatTemplate(TEMPLATE), CompletionParsers(), "demo",
        {"pirate": AdapterRef("pirate", "path")}, 256, **options,
    )  # fmt: skip


@pytest.fixture
def serve(tokenizer, intake):
    """Run a test's coroutine against a frontend over a scripted core."""

    def run(test, script=None, stall_limit_s=60.0, **options):
        core = ScriptedCore(script or echo, **options)

        async def main():
            frontend = make(core, tokenizer, intake, stall_limit_s=stall_limit_s)
            try:
                await asyncio.wait_for(test(frontend, core), 20)
            finally:
                await frontend.shutdown()

        asyncio.run(main())
        assert core.is_shut_down
        return core

    return run


async def eventually(condition, what):
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        await asyncio.sleep(0.002)


def hearing(heard):
    def hook(*, request, output):
        heard.append((request.child, output.finish_reason))

    return [(Source("acme", "acme-quire", "1.0"), hook)]


def test_what_is_asked_of_a_request_reaches_the_engine(tokenizer):
    intake = Intake(
        tokenizer, max_model_len=256, vocab_size=tokenizer.vocab_size, has_priorities=True
    )
    core, heard = ScriptedCore(echo), []

    async def main():
        frontend = make(core, tokenizer, intake, finished_hooks=hearing(heard))
        asked = {"priority": -3, "timeout_s": 7.5, "adapter": "pirate"}
        adapter = frontend.resolve_adapter("pirate")
        async with await frontend.submit("fox", WHOLE, **asked | {"adapter": adapter}) as stream:
            async for _ in stream:
                pass
        async for _ in frontend.generate("fox", WHOLE, **asked):
            pass
        await frontend.generate_whole("fox", WHOLE, **asked)
        await frontend.generate_whole("fox", WHOLE, adapter="demo")
        await frontend.shutdown()

    asyncio.run(main())
    *asked, plain = core.requests
    for request in asked:
        assert (request.priority, request.timeout_s) == (-3, 7.5)
        assert request.adapter == AdapterRef("pirate", "path")
    assert (plain.priority, plain.timeout_s, plain.adapter) == (0, None, None)
    assert heard == [(0, "stop")] * 4


def test_names_of_the_model_and_its_adapters_are_known(serve):
    async def test(frontend, core):
        assert frontend.resolve_adapter(None) is frontend.resolve_adapter("demo") is None
        assert frontend.resolve_adapter("pirate") == AdapterRef("pirate", "path")
        for name in ("", "Demo", "ghost"):
            with pytest.raises(UnknownModelError, match="served: demo, pirate") as caught:
                frontend.resolve_adapter(name)
            assert caught.value.param == "model"
        with pytest.raises(UnknownModelError) as caught:
            frontend.resolve_adapter("x" * 10_000)
        assert len(str(caught.value)) < 400
        frontend.adapters["new"] = AdapterRef("new", "path")  # it may grow
        assert frontend.resolve_adapter("new").name == "new"

    serve(test)


def test_an_abort_ends_the_one_request_that_it_names(serve):
    async def test(frontend, core):
        prompt = "the lazy dog jumps over the fox " * 5
        streams = [await frontend.submit(prompt, WHOLE) for _ in range(3)]
        await anext(streams[0])
        frontend.abort(streams[1].request_id)
        ends = [[delta async for delta in stream][-1].finish_reason for stream in streams]
        assert ends == ["stop", "abort", "stop"]

    serve(test, step_s=0.005)


def test_a_shutdown_of_an_idle_engine_takes_no_time(tokenizer, intake):
    async def main():
        frontend = make(ScriptedCore(echo), tokenizer, intake)
        started = time.monotonic()
        await frontend.shutdown(30.0)
        assert time.monotonic() - started < 10
        assert not frontend.is_ready()

    asyncio.run(main())


def test_a_frontend_that_drains_is_not_ready_and_refuses_before_it_encodes(tokenizer, intake):
    core = ScriptedCore(echo, step_s=0.01)

    async def main():
        frontend = make(core, tokenizer, intake)
        stream = await frontend.submit("the lazy dog jumps over", WHOLE)
        closing = asyncio.create_task(frontend.shutdown(30.0))
        await asyncio.sleep(0)
        assert not frontend.is_ready()
        frontend.thread.check_alive()  # it lives
        with pytest.raises(OverloadedError, match="shutting down"):
            await frontend.submit("", WHOLE)
        assert [delta async for delta in stream][-1].finish_reason == "stop"
        await closing

    asyncio.run(main())


def test_a_shutdown_ends_the_streams_that_are_still_read(tokenizer, intake):
    core = ScriptedCore(echo, step_s=0.02)

    async def main():
        frontend = make(core, tokenizer, intake)
        prompt = "the lazy dog jumps over the fox " * 5
        streams = [await frontend.submit(prompt, WHOLE) for _ in range(2)]
        await anext(streams[0])
        await frontend.shutdown()
        for stream in streams:
            assert [delta async for delta in stream][-1].finish_reason == "abort"

    asyncio.run(asyncio.wait_for(main(), 20))


def test_the_stall_limit_is_the_one_that_was_given(serve):
    let_go = threading.Event()

    def script(request):
        let_go.wait(20)
        return echo(request)

    async def test(frontend, core):
        task = asyncio.create_task(frontend.generate_whole("fox", SamplingParams(max_tokens=1)))
        await eventually(lambda: frontend.is_stalled, "it counts as stalled")
        assert not frontend.is_ready()
        let_go.set()
        await task
        await eventually(frontend.is_ready, "it is ready again")

    serve(test, script, stall_limit_s=0.02)


@pytest.mark.parametrize(
    ("prompts", "is_beside"),
    [
        ([], False),
        (["x" * 4096], False),
        (["x" * 4097], True),
        (["x" * 2048] * 2, False),
        (["x" * 2048] * 2 + ["x"], True),
        ([{"prompt": "x" * 5000, "prompt_token_ids": [1]}], True),
        ([{"prompt": "x", "prompt_token_ids": [1] * 5000}], True),
        ([(1,) * 5000], True),
        ([7, None, {}], False),
    ],
)
def test_work_is_counted_over_all_prompts(serve, prompts, is_beside):
    async def test(frontend, core):
        names = []
        frontend.intake = Watched(frontend.intake, names)
        with contextlib.suppress(PromptTooLongError, InvalidRequestError):
            await frontend.encode(prompts)
        assert (set(names) - {threading.current_thread().name} != set()) is is_beside

    serve(test)


def test_deltas_joined_are_the_completion(serve):
    async def test(frontend, core):
        deltas = [d async for d in frontend.generate("the fox 👩‍👩‍👧", WHOLE)]
        assert "".join(d.text for d in deltas) == "the fox 👩‍👩‍👧"
        assert deltas[-1].finish_reason == "stop"
        assert len(deltas) > 3

    core = serve(test)
    assert core.thread_names == {"quire-engine"}


def test_a_whole_completion_is_the_stream_joined(serve):
    async def test(frontend, core):
        output = await frontend.generate_whole("the fox", SamplingParams(max_tokens=None, n=3))
        assert [c.text for c in output.outputs] == ["the fox"] * 3
        assert [c.index for c in output.outputs] == [0, 1, 2]

    serve(test, tokens_per_step=2)


def test_completions_of_one_prompt_come_interleaved(serve):
    async def test(frontend, core):
        params = SamplingParams(max_tokens=None, n=2)
        indices = [d.index async for d in frontend.generate("the fox", params)]
        assert indices[:4] == [0, 1, 0, 1]

    serve(test)


def test_many_at_once_do_not_mix(serve):
    async def test(frontend, core):
        prompts = [f"fox {i} dog" for i in range(50)]
        outputs = await asyncio.gather(*(frontend.generate_whole(p, WHOLE) for p in prompts))
        assert [o.outputs[0].text for o in outputs] == prompts

    serve(test)


def test_leaving_early_aborts_in_the_engine(serve):
    async def test(frontend, core):
        stream = frontend.generate("the lazy dog jumps over", SamplingParams(max_tokens=None, n=2))
        async for _ in stream:
            break
        await stream.aclose()
        steps = core.num_steps
        await eventually(lambda: len(core.aborted) == 2, "both completions are aborted")
        assert core.num_steps <= steps + 2

    serve(test, step_s=0.02)


def test_cancelling_aborts_in_the_engine(serve):
    async def test(frontend, core):
        task = asyncio.create_task(frontend.generate_whole("the lazy dog jumps over it", WHOLE))
        await eventually(lambda: core.num_steps > 1, "it runs")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually(lambda: len(core.aborted) == 1, "it is aborted")
        assert not core.has_work()

    serve(test, step_s=0.02)


def test_a_finished_request_is_not_aborted(serve):
    async def test(frontend, core):
        async with await frontend.submit("fox", WHOLE) as stream:
            async for _ in stream:
                pass
        await frontend.controls.call(ResetPrefixCache())

    assert serve(test).aborted == []


def test_a_stop_string_aborts_in_the_engine(serve):
    async def test(frontend, core):
        params = SamplingParams(max_tokens=None, stop=["lazy"])
        output = await frontend.generate_whole("the lazy dog jumps over the fox", params)
        assert (output.outputs[0].text, output.outputs[0].stop_reason) == ("the ", "lazy")
        await eventually(lambda: len(core.aborted) == 1, "it is aborted")

    serve(test, step_s=0.01)


def test_a_request_can_be_aborted_by_its_id(serve):
    async def test(frontend, core):
        stream = await frontend.submit("the lazy dog jumps over", WHOLE)
        first = await anext(stream)
        frontend.abort(stream.request_id)
        rest = [delta async for delta in stream]
        assert (first.finish_reason, rest[-1].finish_reason) == (None, "abort")
        frontend.abort("unknown")

    assert len(serve(test, step_s=0.02).aborted) == 1


def test_invalid_requests_raise_before_they_are_queued(serve):
    async def test(frontend, core):
        with pytest.raises(PromptTooLongError):
            await frontend.generate_whole([1] * 999, WHOLE)
        with pytest.raises(InvalidRequestError):
            await anext(frontend.generate("", WHOLE))
        with pytest.raises(UnknownModelError, match="did you mean 'pirate'"):
            await frontend.generate_whole("fox", WHOLE, adapter="pirat")
        for adapter in (None, "demo", "pirate"):
            await frontend.generate_whole("fox", WHOLE, adapter=adapter)

    serve(test)


def test_errors_of_one_request_hurt_no_other(serve, tokenizer):
    def script(request):
        is_bad = request.token_ids == tokenizer.encode("dog")
        error = ErrorReport("invalid_grammar", "no such thing")
        return Reply([], error) if is_bad else echo(request)

    async def test(frontend, core):
        other = asyncio.create_task(frontend.generate_whole("the lazy dog jumps", WHOLE))
        with pytest.raises(GrammarError, match="no such thing"):
            await frontend.generate_whole("dog", SamplingParams(n=2))
        core.max_num_seqs = core.max_queued = 0
        with pytest.raises(OverloadedError, match="queue is full"):
            await frontend.generate_whole("fox", SamplingParams(n=3))
        assert (await other).outputs[0].text == "the lazy dog jumps"
        assert frontend.is_ready()

    serve(test, script, step_s=0.002)


def test_an_engine_that_dies_fails_all_requests(serve, tokenizer, caplog):
    def script(request):
        is_fatal = request.token_ids == tokenizer.encode("dog")
        return Reply([], RuntimeError("out of smoke")) if is_fatal else echo(request)

    async def test(frontend, core):
        waiting = [
            asyncio.create_task(frontend.generate_whole("the lazy fox jumps over it", WHOLE))
            for _ in range(5)
        ]
        await eventually(lambda: core.num_steps > 1, "it runs")
        with pytest.raises(EngineDeadError, match="out of smoke"):
            await frontend.generate_whole("dog", WHOLE)
        for result in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(result, EngineDeadError)
        assert not frontend.is_ready()
        with pytest.raises(EngineDeadError):
            frontend.thread.check_alive()
        with pytest.raises(EngineDeadError):
            await frontend.submit("fox", WHOLE)
        with pytest.raises(EngineDeadError):
            await frontend.controls.call(ResetPrefixCache())

    serve(test, script, step_s=0.01)
    assert "out of smoke" in caplog.text


def test_an_engine_that_dies_while_it_is_idle_is_not_ready(serve):
    async def test(frontend, core):
        await frontend.generate_whole("fox", WHOLE)
        core.is_dead = True
        await eventually(lambda: not frontend.is_ready(), "its death is seen")
        with pytest.raises(EngineDeadError, match="in its sleep"):
            await frontend.submit("fox", WHOLE)

    serve(test)


def test_controls_return_and_fail_where_they_are_awaited(serve):
    async def test(frontend, core):
        assert await frontend.controls.call(ResetPrefixCache()) is None
        with pytest.raises(AdapterError, match="no files of 'ghost'"):
            await frontend.controls.call(LoadAdapter(AdapterRef("ghost", "nowhere")))
        assert frontend.is_ready()

    serve(test)


def test_shutdown_lets_requests_finish_and_refuses_new_ones(serve):
    async def test(frontend, core):
        task = asyncio.create_task(frontend.generate_whole("the lazy dog", WHOLE))
        await eventually(lambda: core.num_steps > 0, "it runs")
        closing = asyncio.create_task(frontend.shutdown(10))
        await asyncio.sleep(0)
        assert not frontend.is_ready()
        with pytest.raises(OverloadedError):
            await frontend.submit("fox", WHOLE)
        assert (await task).outputs[0].text == "the lazy dog"
        await closing

    serve(test, step_s=0.005)


def test_shutdown_aborts_what_does_not_finish_in_time(serve):
    async def test(frontend, core):
        task = asyncio.create_task(frontend.generate_whole("the lazy dog jumps over", WHOLE))
        await eventually(lambda: core.num_steps > 0, "it runs")
        await frontend.shutdown(0.05)
        assert (await task).outputs[0].finish_reason == "abort"

    assert len(serve(test, step_s=0.1).aborted) == 1


def test_the_event_loop_goes_on_during_a_long_step(serve):
    async def test(frontend, core):
        task = asyncio.create_task(frontend.generate_whole("fox", SamplingParams(max_tokens=1)))
        num_turns = 0
        while not task.done():
            await asyncio.sleep(0.001)
            num_turns += 1
        assert num_turns > 10, "a loop that the step holds turns once or twice"

    serve(test, step_s=0.5)


def test_a_slow_reader_does_not_hold_the_engine_up(serve):
    async def test(frontend, core):
        stream = await frontend.submit("the lazy dog jumps over the quick fox", WHOLE)
        await eventually(lambda: not core.has_work(), "the engine is done")
        assert "".join([d.text async for d in stream]) == "the lazy dog jumps over the quick fox"

    serve(test)


def test_a_step_that_hangs_makes_the_engine_not_ready(serve):
    async def test(frontend, core):
        assert frontend.is_ready()
        core.step_s = 0.6
        task = asyncio.create_task(frontend.generate_whole("fox", SamplingParams(max_tokens=2)))
        await asyncio.sleep(0.1)
        assert frontend.is_ready()
        await eventually(lambda: not frontend.is_ready(), "it counts as stalled")
        assert frontend.is_stalled
        core.step_s = 0.0
        await task
        await eventually(frontend.is_ready, "it is ready again")
        await asyncio.sleep(0.4)
        assert frontend.is_ready()  # an engine without work does not hang

    serve(test, stall_limit_s=0.3)


def test_a_request_whose_step_hangs_times_out(serve):
    async def test(frontend, core):
        core.step_s = 2.0
        started = time.monotonic()
        with pytest.raises(RequestTimeoutError, match="does not answer"):
            await frontend.generate_whole("fox", WHOLE, timeout_s=0.05)
        assert time.monotonic() - started < 1.6
        core.step_s = 0.0
        assert (await frontend.generate_whole("fox", WHOLE, timeout_s=9)).outputs[0].text == "fox"

    assert len(serve(test).aborted) == 1


def test_a_request_that_waits_for_a_thread_times_out_and_is_never_tokenized(serve, monkeypatch):
    async def test(frontend, core):
        is_free, encoded = threading.Event(), []
        monkeypatch.setattr(frontend.intake, "encode", encoded.append)
        busy = [asyncio.create_task(frontend.lanes.run(9999, is_free.wait)) for _ in range(2)]
        await asyncio.sleep(0.01)
        with pytest.raises(RequestTimeoutError, match="was not queued"):
            await frontend.submit("fox " * 2000, WHOLE, timeout_s=0.05)
        is_free.set()
        await asyncio.gather(*busy)
        await frontend.lanes.run(9999, lambda: None)  # behind what waited before
        assert not encoded
        assert not core.requests

    serve(test)


def test_a_request_is_as_old_as_its_arrival_says(serve):
    async def test(frontend, core):
        arrival_s = time.monotonic() - 50.0
        with pytest.raises(RequestTimeoutError, match="its timeout_s is 20 s"):
            await frontend.submit("fox", WHOLE, timeout_s=20.0, arrival_s=arrival_s)
        stream = await frontend.submit("fox", WHOLE, arrival_s=arrival_s, client="acme")
        async for _ in stream:
            pass
        (request,) = core.requests
        assert (request.arrival_s, request.client) == (arrival_s, "acme")

    serve(test)


def test_the_servers_limit_counts_for_requests_that_name_none(tokenizer, intake):
    core = ScriptedCore(echo, step_s=2.0)
    options = {"request_timeout_s": 0.05}

    async def main():
        frontend = make(core, tokenizer, intake, **options)
        with pytest.raises(RequestTimeoutError):
            await asyncio.wait_for(frontend.generate_whole("fox", WHOLE), 1.6)
        await frontend.shutdown()

    asyncio.run(main())


def test_shutdown_abandons_a_step_that_hangs_and_fails_all_requests(tokenizer, intake):
    core = ScriptedCore(echo, step_s=3.0)

    async def main():
        frontend = make(core, tokenizer, intake)
        request = asyncio.create_task(frontend.generate_whole("fox", WHOLE))
        await eventually(lambda: core.running, "it runs")
        reset = asyncio.create_task(frontend.controls.call(ResetPrefixCache()))
        await asyncio.sleep(0.05)
        started = time.monotonic()
        await frontend.shutdown(0.0, 0.2)
        assert time.monotonic() - started < 1.0
        assert (await request).outputs[0].finish_reason == "abort"
        with pytest.raises(EngineDeadError, match=r"hung for 0\.2 s"):
            await reset
        with pytest.raises(EngineDeadError, match="hung"):
            frontend.thread.check_alive()

    asyncio.run(main())
    assert not core.is_shut_down
    asyncio.run(eventually(lambda: core.is_shut_down, "the thread ends after all"))


def test_a_frontend_that_is_garbage_collected_stops_its_engine(tokenizer, intake):
    core = ScriptedCore(echo)
    frontend = make(core, tokenizer, intake)
    asyncio.run(frontend.generate_whole("fox", WHOLE))
    known = weakref.ref(frontend)
    del frontend
    gc.collect()
    assert known() is None
    asyncio.run(eventually(lambda: core.is_shut_down, "its thread ends"))


def test_a_fork_cannot_use_the_engine_and_ends_without_it(tokenizer, intake):
    core = ScriptedCore(echo)
    frontend = make(core, tokenizer, intake)
    pid = os.fork()
    if pid == 0:
        try:
            asyncio.run(frontend.generate_whole("fox", WHOLE))
        except EngineDeadError:
            asyncio.run(frontend.shutdown())
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert asyncio.run(frontend.generate_whole("fox", WHOLE)).outputs[0].text == "fox"
    asyncio.run(frontend.shutdown())


def test_a_control_that_fails_for_a_foreign_reason_ends_the_engine(tokenizer, intake, caplog):
    core = ScriptedCore(echo)
    core.control_error = RuntimeError("out of smoke")

    async def main():
        frontend = make(core, tokenizer, intake)
        with pytest.raises(EngineDeadError, match=r"^the engine died: RuntimeError: out of smoke$"):
            await frontend.controls.call(ResetPrefixCache())
        assert (
            str(await frontend.controls.wait_for_death())
            == "the engine died: RuntimeError: out of smoke"
        )
        await frontend.shutdown()

    asyncio.run(main())


def test_waiting_for_the_engines_death_returns_the_reason(serve):
    async def test(frontend, core):
        end = asyncio.create_task(frontend.controls.wait_for_death())
        await asyncio.sleep(0.05)
        assert not end.done()
        core.is_dead = True
        assert str(await end) == "it died in its sleep"

    serve(test)


def test_many_steps_are_no_stall(serve):
    async def test(frontend, core):
        task = asyncio.create_task(frontend.generate_whole("the lazy dog jumps over", WHOLE))
        while not task.done():
            assert frontend.is_ready()
            await asyncio.sleep(0.01)

    assert serve(test, step_s=0.1, stall_limit_s=0.35).num_steps > 4


def test_an_idle_engine_does_not_step(serve):
    async def test(frontend, core):
        await frontend.generate_whole("fox", WHOLE)
        steps, cpu = core.num_steps, time.process_time()
        await asyncio.sleep(0.3)
        assert core.num_steps == steps
        assert time.process_time() - cpu < 0.15

    serve(test)


def test_chats_are_rendered_and_encoded(serve):
    async def test(frontend, core):
        text = frontend.chat_template.render([{"role": "user", "content": "the fox"}]).text
        assert text == "the fox"
        output = await frontend.generate_whole({"prompt": text, "add_special_tokens": False}, WHOLE)
        assert output.prompt == text
        assert frontend.completion_parsers(text, tools=None).read_whole("a").text == "a"

    serve(test)


@pytest.mark.parametrize(
    ("prompts", "is_beside"),
    [
        (["fox"] * 9, False),
        (["fox " * 500] * 9, True),
        ([{"prompt_token_ids": [1] * 500}] * 9, True),
        ([{"prompt": "fox " * 5000, "prompt_token_ids": [1]}], True),
    ],
)
def test_prompts_that_are_long_in_sum_are_tokenized_beside_the_loop(serve, prompts, is_beside):
    async def test(frontend, core):
        names = []
        frontend.intake = Watched(frontend.intake, names)
        with contextlib.suppress(PromptTooLongError):
            await frontend.encode(prompts)
        assert (names[0] != threading.current_thread().name) is is_beside

    serve(test)


def test_a_new_schema_is_checked_beside_the_loop_and_once(serve, tokenizer):
    names = []

    def check(constraint):
        names.append(threading.current_thread().name)

    async def test(frontend, core):
        frontend.intake = Intake(
            tokenizer, max_model_len=64, vocab_size=tokenizer.vocab_size, check_grammar=check
        )
        for _ in range(3):
            constraint = StructuredOutputsParams(regex="fox")
            params = SamplingParams(max_tokens=2, structured_outputs=constraint)
            await frontend.generate_whole("fox", params)

    serve(test)
    assert len(names) == 1
    assert names[0].startswith("quire-prompts")


@pytest.mark.parametrize(("size", "is_beside"), [(100, False), (5000, True)])
def test_a_long_prompt_of_a_companion_is_tokenized_beside_the_loop(
    serve, tokenizer, size, is_beside
):
    names = []

    def encode(text, name):
        names.append(threading.current_thread().name)
        return tokenizer.encode(text)

    async def test(frontend, core):
        fields = (
            RequestField("scale", float, 1.0),
            RequestField("other", CompanionPrompt("scale"), ""),
        )
        frontend.intake = Intake(
            tokenizer, max_model_len=9000, vocab_size=tokenizer.vocab_size, fields=fields
        )
        frontend.intake.companions = Companions(fields, encode, 9000, tokenizer.vocab_size)
        given = SamplingParams(max_tokens=2, extra_args={"scale": 2.0, "other": "x" * size})
        await frontend.generate_whole("fox", given)
        assert ([threading.current_thread().name] != names) is is_beside
        assert core.requests[-1].companion.token_ids == tokenizer.encode("x" * size)

    serve(test)
    assert len(names) == 1


class Watched:
    """An intake that writes down which thread it encodes in."""

    def __init__(self, intake, names):
        self._intake, self._names = intake, names

    def encode(self, prompt):
        self._names.append(threading.current_thread().name)
        return self._intake.encode(prompt)


def test_an_encoded_prompt_is_taken_as_it_is(serve):
    async def test(frontend, core):
        (encoded,) = await frontend.encode(["the fox"])
        assert (await frontend.generate_whole(encoded, WHOLE)).outputs[0].text == "the fox"

    serve(test)


def test_a_completion_that_cannot_be_decoded_fails_alone(serve, tokenizer, caplog):
    def script(request):
        is_bad = request.token_ids == tokenizer.encode("dog")
        return Reply(["no token id"]) if is_bad else echo(request)

    async def test(frontend, core):
        with pytest.raises(RequestFailedError, match="could not be decoded"):
            await frontend.generate_whole("dog", WHOLE)
        assert (await frontend.generate_whole("fox", WHOLE)).outputs[0].text == "fox"

    serve(test, script)
    assert "could not be turned into text\nTraceback" in caplog.text
    assert "TypeError" in caplog.text


def test_a_loop_that_is_gone_takes_its_requests_with_it(tokenizer, intake):
    core = ScriptedCore(echo, step_s=0.02)
    frontend = AsyncFrontend(
        core, tokenizer, intake, ChatTemplate(TEMPLATE), CompletionParsers(), "demo", {}, 256
    )
    loop = asyncio.new_event_loop()
    loop.run_until_complete(frontend.submit("the lazy dog jumps over the fox", WHOLE))
    loop.close()
    deadline = time.monotonic() + 5
    while not core.aborted and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(core.aborted) == 1
    output = asyncio.run(frontend.generate_whole("fox", WHOLE))
    assert output.outputs[0].text == "fox"
    asyncio.run(frontend.shutdown())
    assert "quire-engine" not in {thread.name for thread in threading.enumerate()}
