"""A run gives each request one result, whenever runs before it were killed."""

import asyncio
import tempfile
from pathlib import Path

import pytest
from batch_parts import MAX_LINE_BYTES, MODEL, URL, EchoApp, line_of, read_results, run_to_end
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.cli.batch.batch_input import BatchInput
from quire.cli.batch.batch_output import BatchOutput, Existing, batch_id_of
from quire.cli.batch.batch_run import BatchRun
from quire.errors import EngineDeadError

LINES = st.sampled_from(["good", "wrong", "nonsense", "empty", "long"])


def written(path, kinds):
    """Write a file with a line of each kind."""
    makers = {
        "good": lambda n: line_of(f"r{n}", n=n),
        "wrong": lambda n: line_of(f"r{n}", n=n, status=400),
        "nonsense": lambda n: b"nonsense\n",
        "empty": lambda n: b" \n",
        "long": lambda n: line_of(f"r{n}", text="x" * MAX_LINE_BYTES),
    }
    path.write_bytes(b"".join(makers[kind](n) for n, kind in enumerate(kinds, 1)))


@given(st.lists(LINES, max_size=12), st.integers(1, 5), st.data())
@settings(deadline=None)
def test_a_run_that_was_killed_at_any_byte_goes_on_and_computes_nothing_twice(kinds, most, data):
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "in.jsonl"), Path(folder, "out.jsonl")
        written(source, kinds)
        run_to_end(EchoApp(), source, target, max_concurrency=most)
        whole = target.read_bytes()
        cut = data.draw(st.integers(0, len(whole)), label="bytes that were written")
        target.write_bytes(whole[:cut])
        kept = whole[: whole[:cut].rfind(b"\n") + 1]
        app = EchoApp()
        results = run_to_end(app, source, target, max_concurrency=most)

        assert target.read_bytes().startswith(kept)
        numbers = sorted(int(result["id"].rpartition("_")[2]) for result in results)
        assert numbers == [n for n, kind in enumerate(kinds, 1) if kind != "empty"]
        done = {
            int(id_.rpartition("_")[2]) for id_ in (r["id"] for r in results[: kept.count(b"\n")])
        }
        computed = [n for n, kind in enumerate(kinds, 1) if kind in ("good", "wrong")]
        assert sorted(body["n"] for body in app.bodies) == [n for n in computed if n not in done]
        for result in results:
            check(result, kinds)


@given(st.lists(st.sampled_from([200, 400, 429, 503]), max_size=8), st.integers(1, 3), st.data())
@settings(deadline=None)
def test_a_retry_that_was_killed_at_any_byte_goes_on_and_keeps_what_stays(statuses, most, data):
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "in.jsonl"), Path(folder, "out.jsonl")
        lines = [line_of(f"r{n}", n=n, status=status) for n, status in enumerate(statuses)]
        source.write_bytes(b"".join(lines))
        before = run_to_end(EchoApp(), source, target)
        stays = [each["response"]["status_code"] in (200, 400) for each in before]
        written = target.read_bytes().splitlines(keepends=True)
        kept = b"".join(line for line, is_kept in zip(written, stays, strict=True) if is_kept)

        app = EchoApp(passed={429, 503})
        run_to_end(app, source, target, Existing.RETRY, max_concurrency=most)
        again = [n for n, status in enumerate(statuses) if status in (429, 503)]
        assert sorted(body["n"] for body in app.bodies) == again
        whole = target.read_bytes()
        assert whole.startswith(kept)
        cut = data.draw(st.integers(len(kept), len(whole)), label="bytes that were written")
        target.write_bytes(whole[:cut])
        results = run_to_end(app, source, target, max_concurrency=most)
        assert target.read_bytes().startswith(kept)
        found = sorted((each["custom_id"], each["response"]["status_code"]) for each in results)
        assert found == [(f"r{n}", 400 if s == 400 else 200) for n, s in enumerate(statuses)]


def check(result, kinds):
    """Check that a result is that of its line."""
    number = int(result["id"].rpartition("_")[2])
    kind = kinds[number - 1]
    assert result["custom_id"] == (f"r{number}" if kind in ("good", "wrong") else None)
    if kind in ("nonsense", "long"):
        assert result["response"] is None
        assert result["error"]["code"] == "invalid_line"
        assert result["error"]["message"].startswith(f"line {number}: ")
    else:
        response = result["response"]
        assert response["request_id"] == result["id"]
        assert response["status_code"] == (200 if kind == "good" else 400)
        assert (result["error"] is None) == (kind == "good")
        if kind == "good":
            assert response["body"] == {"echo": {"n": number}}


def test_as_many_requests_run_as_are_allowed_and_no_more(tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_bytes(b"".join(line_of(f"r{n}", n=n, seconds=0.005) for n in range(20)))
    app = EchoApp()
    assert len(run_to_end(app, source, tmp_path / "out.jsonl", max_concurrency=3)) == 20
    assert app.most_running == 3


def test_results_come_in_the_order_in_which_they_are_complete(tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_bytes(line_of("slow", seconds=0.2) + line_of("fast"))
    results = run_to_end(EchoApp(), source, tmp_path / "out.jsonl")
    assert [result["custom_id"] for result in results] == ["fast", "slow"]


def test_a_request_that_is_refused_is_sent_again_until_there_is_room(tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_bytes(
        line_of("a", seconds=1.5) + line_of("b", refused=2) + line_of("c", refused=1)
    )
    results = run_to_end(EchoApp(), source, tmp_path / "out.jsonl")
    assert [result["error"] for result in results] == [None] * 3


def test_a_refusal_stands_if_nothing_else_runs(tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_bytes(line_of("a", refused=100))
    app = EchoApp()
    (result,) = run_to_end(app, source, tmp_path / "out.jsonl")
    assert result["response"]["status_code"] == 503
    assert result["error"] == {"code": "overloaded", "message": "full"}
    assert len(app.bodies) == 4


def test_a_stream_is_an_error(tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_bytes(line_of("a", events=True))
    (result,) = run_to_end(EchoApp(), source, tmp_path / "out.jsonl")
    assert (result["response"], result["error"]["code"]) == (None, "not_json")


def test_a_dead_engine_ends_the_run_and_what_it_computed_has_no_result(tmp_path):
    def check_alive():
        raise EngineDeadError("the engine died")

    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(line_of("a") + line_of("b", status=503) + line_of("c", seconds=60.0))
    with pytest.raises(EngineDeadError):
        run_to_end(EchoApp(), source, target, check_alive=check_alive)
    assert [result["custom_id"] for result in read_results(target)] == ["a"]


def test_a_run_that_is_stopped_ends_what_runs_and_begins_nothing(tmp_path):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(b"".join(line_of(f"r{n}", n=n, seconds=0.2) for n in range(9)))
    requests = BatchInput.open(str(source), MAX_LINE_BYTES)
    checked = requests.check()
    output = BatchOutput.open(str(target), batch_id_of(checked, MODEL), checked, Existing.CONTINUE)
    app = EchoApp()

    async def stopped():
        run = BatchRun(
            app, [URL], requests, output,
            max_concurrency=2, max_body_bytes=100, check_alive=lambda: None,
        )  # fmt: skip
        running = asyncio.create_task(run.run())
        await asyncio.sleep(0.05)
        run.stop()
        await running

    asyncio.run(stopped())
    output.close()
    requests.close()
    assert len(read_results(target)) == len(app.bodies) == 2
    assert len(run_to_end(app, source, target)) == len(app.bodies) == 9
