"""A stream is read once, ends once, and is aborted if its reader leaves early."""

import asyncio

import pytest

from quire.errors import RequestFailedError
from quire.frontend.completions.completion import PromptState
from quire.frontend.completions.delta_stream import MAX_AT_ONCE, DeltaStream
from quire.messages import EngineOutput
from quire.sampling_params import SamplingParams


class Case:
    """A stream, and what became of it."""

    def __init__(self, intake, tokenizer, n=1):
        admission = intake.admit("fox", SamplingParams(n=n, max_tokens=None))
        self.completions = PromptState(admission, tokenizer)
        self.closed = []
        self.stream = DeltaStream(self.completions, asyncio.get_running_loop(), self.closed.append)

    def push(self, token_id=20, end=None, child=0):
        request = self.completions.admission.requests[child]
        output = EngineOutput(
            request_id=request.request_id, token_ids=[token_id], finish_reason=end
        )
        self.stream.push(self.completions.apply(output)[0].delta())

    async def read(self):
        return [delta.token_ids async for delta in self.stream]


@pytest.fixture
def run(intake, tokenizer):
    """Run a coroutine with a case."""

    def start(test, n=1):
        async def main():
            await asyncio.wait_for(test(Case(intake, tokenizer, n)), 10)

        asyncio.run(main())

    return start


def test_deltas_come_in_order_and_the_last_one_ends_the_stream(run):
    async def test(case):
        case.push(20)
        case.push(21)
        assert not case.stream.is_over
        case.push(22, "length")
        assert case.stream.is_over
        assert await case.read() == [[20], [21], [22]]
        assert await case.read() == []
        await case.stream.aclose()
        assert case.closed == []

    run(test)


def test_a_stream_of_several_completions_ends_with_the_last_of_them(run):
    async def test(case):
        case.push(20, "length", child=1)
        assert not case.stream.is_over
        case.push(21, "length", child=0)
        assert case.stream.is_over
        assert await case.read() == [[20], [21]]

    run(test, n=2)


def test_a_reader_waits_for_what_comes_without_turning(run):
    async def test(case):
        reading = asyncio.create_task(case.read())
        await asyncio.sleep(0)
        first = case.stream._reader
        assert first is not None
        case.push(20)
        for _ in range(5):
            await asyncio.sleep(0)
        assert case.stream._reader not in (None, first)  # it has read, and waits again
        case.push(21, "length")
        assert await reading == [[20], [21]]

    run(test)


def test_an_error_comes_behind_the_deltas_that_are_there_and_comes_again(run):
    async def test(case):
        case.push(20)
        case.stream.fail(RequestFailedError("it broke"))
        case.stream.fail(RequestFailedError("later"))
        assert case.stream.is_over
        assert (await anext(case.stream)).token_ids == [20]
        for _ in range(2):
            with pytest.raises(RequestFailedError, match="it broke"):
                await anext(case.stream)
        await case.stream.aclose()
        assert case.closed == []

    run(test)


def test_a_stream_that_is_over_cannot_fail_any_more(run):
    async def test(case):
        case.push(20, "length")
        case.stream.fail(RequestFailedError("too late"))
        assert await case.read() == [[20]]

    run(test)


def test_an_error_wakes_the_reader(run):
    async def test(case):
        reading = asyncio.create_task(case.read())
        await asyncio.sleep(0)
        case.stream.fail(RequestFailedError("it broke"))
        with pytest.raises(RequestFailedError):
            await reading

    run(test)


@pytest.mark.parametrize("way", ["aclose", "context", "twice"])
def test_leaving_early_aborts_once_and_drops_what_is_there(run, way):
    async def test(case):
        case.push(20)
        if way == "context":
            async with case.stream:
                pass
        else:
            await case.stream.aclose()
        if way == "twice":
            await case.stream.aclose()
        assert case.closed == [case.stream]
        assert case.stream.is_over
        assert await case.read() == []

    run(test)


def test_cancelling_the_reader_aborts(run):
    async def test(case):
        reading = asyncio.create_task(case.read())
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert case.closed == [case.stream]

    run(test)


def test_a_waiting_reader_ends_if_the_stream_is_closed_elsewhere(run):
    async def test(case):
        reading = asyncio.create_task(case.read())
        await asyncio.sleep(0)
        await case.stream.aclose()
        assert await reading == []

    run(test)


@pytest.mark.parametrize("end", ["length", "error", "close", None])
def test_what_was_to_be_called_later_is_not_once_the_stream_is_over(run, end):
    async def test(case):
        called = []
        case.stream.call_later(0.01, lambda: called.append(True))
        if end == "length":
            case.push(20, "length")
        elif end == "error":
            case.stream.fail(RequestFailedError("it broke"))
        elif end == "close":
            await case.stream.aclose()
        await asyncio.sleep(0.05)
        assert bool(called) is (end is None)

    run(test)


def test_the_result_is_everything_so_far(run):
    async def test(case):
        case.push(20)
        assert not case.stream.completions.result().finished
        case.push(21, "length")
        assert case.stream.completions.result().outputs[0].token_ids == [20, 21]
        assert case.stream.request_id == case.completions.admission.request_id
        assert case.stream.prompt_token_ids == case.completions.admission.prompt.token_ids

    run(test)


def test_a_reader_that_lags_behind_lets_other_tasks_run(run):
    async def test(case):
        for _ in range(3 * MAX_AT_ONCE):
            case.push()
        case.push(21, "length")
        reading = asyncio.create_task(case.read())
        num_turns = 0
        while not reading.done():
            await asyncio.sleep(0)
            num_turns += 1
        assert len(reading.result()) == 3 * MAX_AT_ONCE + 1
        assert num_turns >= 3

    run(test)


def test_a_reader_that_is_cancelled_between_two_turns_aborts_the_rest(run):
    async def test(case):
        for _ in range(2 * MAX_AT_ONCE):
            case.push()
        reading = asyncio.create_task(case.read())
        await asyncio.sleep(0)  # it has begun, and given way
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert case.closed == [case.stream]
        assert case.stream.is_over

    run(test)
