"""Streams and aborts of an engine with two worker processes, in an event loop and behind HTTP."""

import asyncio
import json
import os
import signal

import pytest
from acme_parts import Quire
from processes import descendants, eventually, is_running, workers_of

from quire import LLM, AsyncEngine, SamplingParams
from quire.testing.checkpoints import write_checkpoint

NEVER_DONE = 32000  # tokens, in the time that a client waits
PROMPT = "a prompt"
SHORT = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=NEVER_DONE, ignore_eos=True)
TP2 = {"tensor_parallel_size": 2, "threads": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    return str(write_checkpoint(path, "Qwen3ForCausalLM", max_position_embeddings=32768).folder)


@pytest.fixture(scope="module")
def expected(folder):
    with LLM(folder, threads=1) as llm:
        return llm.generate(PROMPT, SHORT)[0].outputs[0].text


async def text_of(engine, params=SHORT):
    return "".join([delta.text async for delta in engine.generate(PROMPT, params)])


async def abort_a_stream(engine):
    """Leave a stream after its third delta."""
    stream = engine.generate(PROMPT, LONG)
    for _ in range(3):
        await anext(stream)
    await stream.aclose()


@pytest.mark.parametrize(
    "engine_process",
    [
        pytest.param(False, marks=pytest.mark.slow, id="in_process"),
        pytest.param(True, id="process"),
    ],
)
def test_a_stream_of_an_event_loop_is_that_of_one_process(folder, expected, engine_process):
    before = descendants(os.getpid())

    async def main():
        engine = AsyncEngine(folder, engine_process=engine_process, **TP2)
        try:
            aborted = asyncio.create_task(abort_a_stream(engine))
            assert await asyncio.gather(text_of(engine), text_of(engine)) == [expected] * 2
            await aborted
            assert await text_of(engine) == expected
            assert engine.stats.num_running == 0
        finally:
            await engine.shutdown()

    asyncio.run(main())
    eventually(lambda: not set(descendants(os.getpid())) - set(before))


@pytest.mark.parametrize(
    "engine_process",
    [
        pytest.param(False, id="in_process"),
        pytest.param(True, marks=pytest.mark.slow, id="process"),
    ],
)
def test_a_server_streams_aborts_and_ends_with_its_workers(
    folder, expected, tmp_path, engine_process
):
    quire = Quire()
    before = set(descendants(os.getpid()))
    flag = "--engine-process" if engine_process else "--no-engine-process"
    arguments = [folder, "--served-model-name", "m", "--tensor-parallel-size", 2]
    with quire.serve(tmp_path / "log", *arguments, "--max-num-seqs", 1, flag) as client:
        commands = [line for pid, line in descendants(os.getpid()).items() if pid not in before]
        assert sum("workers.worker_process" in line for line in commands) >= 2
        assert any("engine_process" in line for line in commands) == engine_process, commands
        read_three_and_leave(client)
        assert "".join(texts(client, 12)) == expected
    eventually(lambda: not set(descendants(os.getpid())) - before)


def body(max_tokens):
    return {
        "model": "m", "prompt": PROMPT, "temperature": 0, "max_tokens": max_tokens,
        "ignore_eos": True, "stream": True,
    }  # fmt: skip


def texts(client, max_tokens):
    with client.stream("POST", "/v1/completions", json=body(max_tokens)) as response:
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            if line.startswith("data: {"):
                yield json.loads(line.removeprefix("data: "))["choices"][0]["text"]


def read_three_and_leave(client):
    deltas = texts(client, NEVER_DONE)
    for _ in range(3):
        next(deltas)
    deltas.close()


@pytest.mark.slow
@pytest.mark.parametrize("is_idle", [False, True], ids=["stream", "idle"])
def test_a_server_ends_with_an_error_that_names_a_rank_that_was_killed(folder, tmp_path, is_idle):
    quire = Quire()
    before = set(descendants(os.getpid()))
    arguments = [folder, "--served-model-name", "m", "--tensor-parallel-size", 2]
    with quire.serve(tmp_path / "log", *arguments) as client:
        found = {pid: line for pid, line in descendants(os.getpid()).items() if pid not in before}
        server = next(pid for pid, line in found.items() if " serve " in line)
        [engine] = workers_of(server)
        worker = max(pid for pid in workers_of(engine) if "worker_process" in found[pid])
        if is_idle:
            os.kill(worker, signal.SIGKILL)
        else:
            lines = stream_killed(client, worker)
            assert "engine_dead" in lines[-2]
            assert lines[-1] == "data: [DONE]"
        eventually(lambda: not is_running(server))
    log = (tmp_path / "log").read_text()
    assert f"process {worker}" in log.splitlines()[-1]
    assert "was killed by SIGKILL" in log.splitlines()[-1]
    eventually(lambda: not set(descendants(os.getpid())) - before)


def stream_killed(client, worker):
    """Return the lines of a stream during which a process is killed."""
    with client.stream("POST", "/v1/completions", json=body(NEVER_DONE)) as response:
        events = (line for line in response.iter_lines() if line.startswith("data: "))
        first = next(events)
        os.kill(worker, signal.SIGKILL)
        return [first, *events]
