"""Requests are passed to the engine's thread, outputs to streams; finished ones are forgotten."""

import asyncio
import time

import msgspec
import pytest
from processes import WAIT_S
from scripted_core import Reply, ScriptedCore, echo

from quire.errors import EngineDeadError, RequestFailedError, RequestTimeoutError
from quire.frontend.completions.completion import PromptState
from quire.frontend.dispatch import dispatcher as dispatch_module
from quire.frontend.dispatch.dispatcher import Dispatch, Done
from quire.messages import EngineOutput, EngineOutputs, EngineStats, ErrorReport, ResetPrefixCache
from quire.plugins.registry import Source
from quire.sampling_params import SamplingParams

SOURCE = Source("acme", "acme-quire", "1.0")


@pytest.fixture
def run(intake, tokenizer):
    """Run a test's coroutine with a dispatch over a scripted core, and a prompt state factory."""

    def start(test, core=None, request_timeout_s=None):
        core = core or ScriptedCore(echo)

        def completions(prompt="the fox", hooks=(), timeout_s=None, arrived_s=0.0, **params):
            asked = SamplingParams(**{"max_tokens": None} | params)
            admission = intake.admit(prompt, asked, timeout_s=timeout_s)
            if arrived_s:
                requests = tuple(
                    msgspec.structs.replace(request, arrival_s=request.arrival_s - arrived_s)
                    for request in admission.requests
                )
                admission = type(admission)(admission.request_id, admission.prompt, requests)
            return PromptState(admission, tokenizer, hooks)

        async def main():
            errors = []
            asyncio.get_running_loop().set_exception_handler(lambda _, said: errors.append(said))
            dispatch = Dispatch(core, request_timeout_s)
            try:
                await asyncio.wait_for(test(dispatch, core, completions), 20)
            finally:
                await asyncio.to_thread(dispatch.thread.stop)
            await asyncio.sleep(0)
            assert errors == []

        asyncio.run(main())

    return start


async def read(stream):
    return [delta async for delta in stream]


async def eventually(condition):
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.002)


def test_a_request_that_could_not_end_in_its_time_is_given_up_before_it_begins(run):
    core = ScriptedCore(lambda request: Reply([9] * 40), step_s=0.05, max_num_seqs=1)

    async def test(dispatch, core, completions):
        first = dispatch.start(completions(max_tokens=40))
        second = dispatch.start(completions(max_tokens=40, timeout_s=2.4))
        third = dispatch.start(completions(max_tokens=40, timeout_s=60.0))
        with pytest.raises(RequestTimeoutError, match="could not end in the rest of its time"):
            await read(second)
        assert len(core.running) == 1
        for stream in (first, third):
            assert sum(len(delta.token_ids) for delta in await read(stream)) == 40
        assert core.aborted == [request.request_id for request in requests_of(second)]
        assert len(dispatch.backlog) == 0

    run(test, core)


def requests_of(stream):
    return stream.completions.admission.requests


def test_a_stream_is_open_until_it_is_over(run):
    async def test(dispatch, core, completions):
        streams = [dispatch.start(completions()), dispatch.start(completions(n=2))]
        assert dispatch.streams() == streams
        for stream in streams:
            assert (await read(stream))[-1].finish_reason == "stop"
        assert dispatch.streams() == []
        assert not dispatch._streams
        assert len(dispatch.backlog) == 0

    run(test)


def test_what_the_engine_said_and_did_is_counted(run):
    async def test(dispatch, core, completions):
        deltas = await read(dispatch.start(completions()))
        await eventually(lambda: dispatch.done.num_steps == core.num_steps)
        done = dispatch.done
        assert done.num_generated_tokens == sum(len(delta.token_ids) for delta in deltas)
        assert dispatch.stats == core.stats()
        core.step_s = 0.01
        stream = dispatch.start(completions())
        await anext(stream)
        assert dispatch.stats.num_running == 1
        await stream.aclose()

    run(test)


def test_a_stop_string_ends_the_request_in_the_engine_and_its_surplus_is_dropped(run):
    async def test(dispatch, core, completions):
        stream = dispatch.start(completions("the lazy dog jumps", stop=["lazy"]))
        deltas = await read(stream)
        assert "".join(delta.text for delta in deltas) == "the "
        assert deltas[-1].finish_reason == "stop"
        await eventually(lambda: core.aborted)
        assert stream.completions.result().outputs[0].text == "the "
        assert len(dispatch.backlog) == 0

    run(test, ScriptedCore(echo, step_s=0.005))


def test_an_output_of_a_request_that_is_over_is_not_taken(run):
    """The engine does not know yet that a stop string ended it."""

    class Surplus(ScriptedCore):
        def step(self):
            outputs = super().step()
            more = [
                EngineOutput(request_id=output.request_id, token_ids=[21])
                for output in outputs.outputs
            ]
            return EngineOutputs([*outputs.outputs, *more], outputs.stats)

    async def test(dispatch, core, completions):
        stream = dispatch.start(completions("fox", stop=["fox"]))
        deltas = await read(stream)
        result = stream.completions.result().outputs[0]
        assert (result.text, result.finish_reason, result.stop_reason) == ("", "stop", "fox")
        assert sum(len(delta.token_ids) for delta in deltas) == len(result.token_ids)
        assert [delta.finish_reason for delta in deltas].count("stop") == 1

    run(test, Surplus(echo, tokens_per_step=100))


def test_one_completion_that_fails_ends_the_others_of_its_prompt(run):
    def script(request):
        return Reply([], ErrorReport("x", "it broke")) if request.child == 1 else echo(request)

    async def test(dispatch, core, completions):
        stream = dispatch.start(completions("the lazy dog jumps over the fox", n=3))
        with pytest.raises(RequestFailedError, match="it broke"):
            await read(stream)
        assert dispatch.streams() == []
        await eventually(lambda: len(core.aborted) == 2)

    run(test, ScriptedCore(script, step_s=0.01))


@pytest.mark.parametrize("logprobs", [None, 1])
@pytest.mark.parametrize("stop", [[], ["x"]])
def test_a_completion_that_cannot_be_decoded_fails_alone_with_its_cause(
    run, tokenizer, logprobs, stop
):
    def script(request):
        is_bad = request.token_ids == tokenizer.encode("dog")
        return Reply(["no id"]) if is_bad else echo(request)

    async def test(dispatch, core, completions):
        bad = dispatch.start(completions("dog", logprobs=logprobs, stop=stop))
        good = dispatch.start(completions("fox"))
        with pytest.raises(RequestFailedError, match="could not be decoded") as caught:
            await read(bad)
        assert isinstance(caught.value.__cause__, TypeError)
        assert "".join(delta.text for delta in await read(good)) == "fox"  # of the same steps

    run(test, ScriptedCore(script))


def test_ending_a_request_from_outside_tells_its_reader_and_the_engine(run):
    async def test(dispatch, core, completions):
        stream = dispatch.start(completions("the lazy dog jumps over", n=2))
        await anext(stream)
        dispatch.end(stream)
        rest = await read(stream)
        assert [delta.finish_reason for delta in rest[-2:]] == ["abort", "abort"]
        assert dispatch.streams() == []
        await eventually(lambda: len(core.aborted) == 2)

    run(test, ScriptedCore(echo, step_s=0.01))


@pytest.mark.parametrize(
    ("of_request", "of_engine", "arrived_s", "limit_s"),
    [
        (300.0, None, 0.0, 300.0),
        (None, 300.0, 0.0, 300.0),
        (200.0, 500.0, 0.0, 200.0),
        (500.0, 200.0, 0.0, 200.0),
        (500.0, None, 400.0, 100.0),
        (None, None, 0.0, None),
    ],
)
def test_the_shortest_limit_since_the_arrival_is_what_a_silent_engine_gets(
    run, monkeypatch, of_request, of_engine, arrived_s, limit_s
):
    monkeypatch.setattr(dispatch_module, "OVERDUE_S", 1000.0)

    async def test(dispatch, core, completions):
        stream = dispatch.start(completions(timeout_s=of_request, arrived_s=arrived_s))
        if limit_s is None:
            assert stream._timer is None
        else:
            left_s = stream._timer.when() - asyncio.get_running_loop().time() - 1000.0
            assert limit_s - 30 < left_s <= limit_s
        await stream.aclose()

    run(test, ScriptedCore(echo, step_s=0.01), request_timeout_s=of_engine)


def test_a_request_of_which_the_engine_says_nothing_in_time_has_timed_out(run, monkeypatch):
    monkeypatch.setattr(dispatch_module, "OVERDUE_S", 0.0)

    async def test(dispatch, core, completions):
        with pytest.raises(RequestTimeoutError, match="does not answer"):
            await read(dispatch.start(completions(timeout_s=0.02)))
        assert dispatch.streams() == []
        await eventually(lambda: core.aborted)

    run(test, ScriptedCore(echo, step_s=0.2))


def test_a_dead_engine_ends_all_streams_and_gets_no_commands(run):
    async def test(dispatch, core, completions):
        waiting = dispatch.start(completions("the lazy dog jumps over the fox"))
        leaving = dispatch.start(completions("the lazy dog jumps over the fox"))
        control = asyncio.create_task(dispatch.controls.call(ResetPrefixCache()))
        end = asyncio.create_task(dispatch.controls.wait_for_death())
        await asyncio.sleep(0)
        core.is_dead = True
        core.control_error = RuntimeError("out of smoke")
        with pytest.raises(EngineDeadError):
            await control
        with pytest.raises(EngineDeadError, match="out of smoke"):
            await read(waiting)
        await leaving.aclose()
        assert dispatch.streams() == []
        assert dispatch.thread.death is await end
        with pytest.raises(EngineDeadError):
            dispatch.start(completions())
        assert not dispatch._streams

    run(test, ScriptedCore(echo, step_s=0.01))


def test_leaving_a_dead_engine_is_no_error(run):
    async def test(dispatch, core, completions):
        stream = dispatch.start(completions("the lazy dog jumps over the fox"))
        await anext(stream)
        dispatch.thread._die(EngineDeadError("it died"))
        await stream.aclose()

    run(test, ScriptedCore(echo, step_s=0.01))


def test_plugins_hear_of_each_end_once(run):
    heard = []

    def hook(*, request, output):
        heard.append((request.child, output.finish_reason))

    hooks = [(SOURCE, hook)]

    async def test(dispatch, core, completions):
        await read(dispatch.start(completions(n=2, hooks=hooks)))
        assert sorted(heard) == [(0, "stop"), (1, "stop")]
        heard.clear()
        core.step_s = 0.01
        stream = dispatch.start(completions(n=2, hooks=hooks))
        await anext(stream)
        await stream.aclose()
        assert sorted(heard) == [(0, "abort"), (1, "abort")]

    run(test)


def test_outputs_for_two_loops_cross_to_each(intake, tokenizer):
    core = ScriptedCore(echo, step_s=0.02)
    dispatch = Dispatch(core)
    admission = intake.admit("the lazy dog jumps over the fox", SamplingParams(max_tokens=None))
    gone = asyncio.new_event_loop()

    async def leave():
        return dispatch.start(PromptState(admission, tokenizer))

    gone.run_until_complete(leave())
    gone.close()

    async def main():
        admission = intake.admit("fox", SamplingParams(max_tokens=None))
        deltas = await read(dispatch.start(PromptState(admission, tokenizer)))
        assert "".join(delta.text for delta in deltas) == "fox"
        await eventually(lambda: len(core.aborted) == 1)
        assert dispatch.streams() == []

    asyncio.run(main())
    dispatch.thread.stop()
    assert core.is_shut_down


def step(num_computed, *completions):
    outputs = [EngineOutput(request_id=str(i), token_ids=ids) for i, ids in enumerate(completions)]
    return EngineOutputs(outputs, EngineStats(num_scheduled_tokens=num_computed))


def test_work_adds_up_over_steps():
    first = Done().after(step(10))
    assert first == Done(1, 10, 0)
    assert first.after(step(3, [1], [2, 3], [])) == Done(2, 13, 3)


def test_tokens_are_counted_and_not_outputs():
    done = Done().after(step(7, [1, 2, 3], []))
    assert done == Done(1, 7, 3)
    assert done.after(step(0)) == Done(2, 7, 3)


@pytest.mark.parametrize("n", [1, 3])
def test_a_whole_completion_is_one_delta_that_equals_the_joined_ones(run, n):
    async def test(dispatch, core, completions):
        parts = await read(dispatch.start(completions(n=n, seed=1)))
        wholes = await read(dispatch.start(completions(n=n, seed=1), is_whole=True))
        assert len(parts) > len(wholes) == n
        for whole in wholes:
            own = [part for part in parts if part.index == whole.index]
            assert whole.text == "".join(part.text for part in own)
            assert whole.token_ids == [each for part in own for each in part.token_ids]
            assert whole.finish_reason == own[-1].finish_reason

    run(test)


def test_a_whole_completion_ends_at_a_stop_string_and_is_aborted_in_the_engine(run):
    async def test(dispatch, core, completions):
        (whole,) = await read(dispatch.start(completions(stop=["fox"]), is_whole=True))
        assert whole.finish_reason == "stop"
        assert whole.stop_reason == "fox"
        await eventually(lambda: not core.has_work())

    run(test)


def test_a_whole_completion_that_is_aborted_has_what_was_generated(run):
    async def test(dispatch, core, completions):
        stream = dispatch.start(completions(), is_whole=True)
        await eventually(lambda: stream.completions.num_tokens > 0)
        num_tokens = stream.completions.num_tokens
        assert stream.completions._first._num_decoded > 0  # not all at the end
        dispatch.end(stream)
        (whole,) = await read(stream)
        assert whole.finish_reason == "abort"
        assert len(whole.token_ids) >= num_tokens

    run(test, core=ScriptedCore(lambda request: Reply([300] * 400), step_s=0.01))


def test_requests_of_one_turn_of_the_loop_arrive_in_the_engine_together(run):
    async def test(dispatch, core, completions):
        posted = []
        post = dispatch.thread.post
        dispatch.thread.post = lambda command: (posted.append(command), post(command))
        streams = [dispatch.start(completions()) for _ in range(5)]
        for stream in streams:
            assert (await read(stream))[-1].finish_reason == "stop"
        assert len(posted) == 1
        assert [request.request_id for request in core.requests] == [
            f"{stream.request_id}-0" for stream in streams
        ]

    run(test)


def test_a_request_that_is_dropped_in_its_turn_never_reaches_the_engine(run):
    async def test(dispatch, core, completions):
        dropped, kept = dispatch.start(completions()), dispatch.start(completions())
        await dropped.aclose()
        await read(kept)
        assert [request.request_id for request in core.requests] == [f"{kept.request_id}-0"]

    run(test)


def test_a_request_whose_engine_dies_in_its_turn_fails(run):
    async def test(dispatch, core, completions):
        stream = dispatch.start(completions())
        dispatch.thread.stop()
        with pytest.raises(EngineDeadError):
            await read(stream)
        assert dispatch.streams() == []
        with pytest.raises(EngineDeadError):
            dispatch.start(completions())

    run(test)


def test_a_completion_that_its_reader_stops_is_aborted_and_ends_where_it_was_read(run):
    core = ScriptedCore(lambda request: Reply([9] * 100), step_s=0.001)

    async def test(dispatch, core, completions):
        state = completions(max_tokens=100, n=2)
        stream, num_read = dispatch.start(state), [0, 0]
        async for delta in stream:
            num_read[delta.index] += len(delta.token_ids)
            if delta.index == 0 and num_read[0] == 5:
                dispatch.stop(stream, 0)
            assert num_read[0] <= 5
        assert num_read == [5, 100]
        stopped, other = state.outputs()
        assert (len(stopped.token_ids), stopped.finish_reason) == (5, "stop")
        assert (len(other.token_ids), other.finish_reason) == (100, "length")
        await eventually(lambda: core.aborted == [requests_of(stream)[0].request_id])
        assert [record.finish_reason for record in state.records] == ["stop", "length"]
        assert (dispatch.streams(), len(dispatch.backlog)) == ([], 0)

    run(test, core)


def test_a_completion_may_be_stopped_after_its_end(run):
    core = ScriptedCore(lambda request: Reply([9] * 4))

    async def test(dispatch, core, completions):
        stream = dispatch.start(completions(max_tokens=4))
        first = await anext(stream)
        await eventually(lambda: stream.is_over)
        dispatch.stop(stream, 0)
        assert await read(stream) == []
        (output,) = stream.completions.outputs()
        assert (output.token_ids, output.text) == (first.token_ids, first.text)
        assert core.aborted == []
        assert [record.finish_reason for record in stream.completions.records] == ["length"]

    run(test, core)
