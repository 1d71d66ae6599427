"""Each request that ends has one record, whatever ended it, and plugins cannot break it."""

import asyncio

import pytest
from scripted_core import ScriptedCore, echo

from quire.errors import EngineDeadError, OverloadedError, RequestTimeoutError
from quire.frontend.async_frontend import AsyncFrontend
from quire.frontend.chat.parsing.completion_parsers import CompletionParsers
from quire.frontend.chat.templates.chat_template import ChatTemplate
from quire.frontend.metrics.request_observer import RequestObserver
from quire.messages import AdapterRef
from quire.plugins.registry import Source
from quire.sampling_params import SamplingParams

SOURCE = Source("acme", "acme-quire", "1")
WHOLE = SamplingParams(max_tokens=None)
PIRATE = AdapterRef("pirate", "path")


@pytest.fixture
def completed(tokenizer, intake):
    """Run a test's coroutine against a frontend; return the records that a plugin got."""

    def run(test, **options):
        core, records = ScriptedCore(echo, **options), []

        async def main():
            hooks = [(SOURCE, lambda record: records.append(record))]
            observer = RequestObserver("demo", hooks)
            frontend = AsyncFrontend(
                core, tokenizer, intake, ChatTemplate("x"), CompletionParsers(), "demo", {}, 256,
                observer=observer,
            )  # fmt: skip
            try:
                await asyncio.wait_for(test(frontend, core), 20)
            finally:
                await frontend.shutdown()
            finished = frontend.observer.metrics.of(0).finish_reasons
            assert sum(finished.values()) == len(records)

        asyncio.run(main())
        return records

    return run


async def read(stream):
    async with stream:
        return [delta async for delta in stream]


def test_a_record_has_client_usage_and_times(completed):
    async def test(frontend, core):
        core.num_cached_tokens = 2
        stream = await frontend.submit(
            "one two three", WHOLE, adapter=PIRATE, client="team-a", http_request_id="mine"
        )
        deltas = await read(stream)
        assert sum(len(delta.token_ids) for delta in deltas) > 1

    (record,) = completed(test)
    assert (record.client, record.http_request_id) == ("team-a", "mine")
    assert (record.model, record.adapter, record.child, record.n) == ("demo", "pirate", 0, 1)
    assert record.num_cached_tokens == 2
    assert record.num_completion_tokens > 1
    assert (record.finish_reason, record.error_code) == ("stop", None)
    assert 0 < record.time_to_first_token_s <= record.total_s
    assert record.decode_s <= record.total_s
    assert record.time_per_output_token_s == pytest.approx(
        record.decode_s / (record.num_completion_tokens - 1)
    )


def test_each_of_n_completions_is_a_request(completed):
    async def test(frontend, core):
        await frontend.generate_whole("one two", SamplingParams(n=3, max_tokens=2))

    records = completed(test)
    assert sorted(record.child for record in records) == [0, 1, 2]
    assert {record.n for record in records} == {3}
    assert len({record.request_id for record in records}) == 3


def test_a_reader_that_leaves_ends_its_request_by_an_abort(completed):
    async def test(frontend, core):
        core.step_s = 0.01
        stream = await frontend.submit("one two three four five six", WHOLE)
        async with stream:
            await anext(stream)

    (record,) = completed(test)
    assert (record.finish_reason, record.error_code) == ("abort", None)
    assert record.num_completion_tokens >= 1


def test_a_request_that_the_engine_refuses_has_the_code_of_the_error(completed):
    async def test(frontend, core):
        core.max_num_seqs = core.max_queued = 0
        with pytest.raises(OverloadedError):
            await frontend.generate_whole("one two", WHOLE)

    (record,) = completed(test)
    assert (record.finish_reason, record.error_code) == ("error", OverloadedError.code)
    assert record.time_to_first_token_s is None


def test_the_death_of_the_engine_ends_requests_by_its_error(completed):
    async def test(frontend, core):
        core.step_s = 0.3
        stream = await frontend.submit("one two three four", WHOLE)
        stopping = asyncio.create_task(asyncio.to_thread(frontend.thread.stop, 0.0))
        with pytest.raises(EngineDeadError):
            await read(stream)
        await stopping

    (record,) = completed(test)
    assert (record.finish_reason, record.error_code) == ("error", EngineDeadError.code)


def test_a_timeout_that_the_engine_does_not_report_is_an_error_of_the_record(completed):
    async def test(frontend, core):
        core.step_s = 1.6
        with pytest.raises(RequestTimeoutError):
            await frontend.generate_whole("one two", WHOLE, timeout_s=0.01)

    (record,) = completed(test)
    assert (record.finish_reason, record.error_code) == ("error", RequestTimeoutError.code)


def test_a_plugin_that_fails_is_logged_and_affects_no_completion(tokenizer, intake, caplog):
    def fail(record):
        raise ValueError("no ledger")

    async def main():
        frontend = AsyncFrontend(
            ScriptedCore(echo), tokenizer, intake, ChatTemplate("x"), CompletionParsers(), "demo",
            {}, 256, observer=RequestObserver("demo", [(SOURCE, fail)]),
        )  # fmt: skip
        output = await frontend.generate_whole("one two", WHOLE)
        await frontend.shutdown()
        return output

    assert asyncio.run(main()).finished
    assert "acme-quire 1) failed in request_completed" in caplog.text
    assert "no ledger" in caplog.text
