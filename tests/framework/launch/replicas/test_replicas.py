"""Two replicas in real processes, under `LLM` and behind a server, and a kill of one of them."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from processes import descendants, eventually, is_running
from server_parts import start_server, stop_servers

from quire import LLM, SamplingParams
from quire.config import Settings
from quire.errors import EngineDeadError, PromptsError, ReplicaDeadError, SettingsError
from quire.launch import start_engine
from quire.testing.checkpoints import write_checkpoint

ENGINE = "quire.launch.engine_process"
NUM_STREAMS = 4
PARENT = """
import sys
from quire import LLM, SamplingParams

llm = LLM(sys.argv[1], data_parallel_size=2, max_num_seqs=4, max_model_len=2048)
print("ready", flush=True)
for _ in range(100):
    try:
        llm.generate(["x"] * 4, SamplingParams(max_tokens=2000, ignore_eos=True))
    except Exception as error:
        print(error, flush=True)
"""
OPTIONS = {"data_parallel_size": 2, "max_num_seqs": 4, "max_model_len": 2048}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    written = write_checkpoint(
        tmp_path_factory.mktemp("model"), "Qwen3ForCausalLM", max_position_embeddings=8192
    )
    return str(written.folder)


def engines_below(pid):
    return [each for each, command in descendants(pid).items() if ENGINE in command]


@pytest.mark.slow
def test_replicas_give_the_tokens_of_one_engine_and_a_kill_costs_its_own_requests(folder):
    prompts = [f"{number} and so on" for number in range(6)]
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    with LLM(folder, max_model_len=2048) as llm:
        expected = [output.outputs[0].token_ids for output in llm.generate(prompts, params)]
    with LLM(folder, **OPTIONS) as llm:
        pids = llm._running.core.pids
        assert set(pids) <= set(engines_below(os.getpid()))
        outputs = llm.generate(prompts, params)
        assert [output.outputs[0].token_ids for output in outputs] == expected
        stats = llm.stats()
        assert [replica.is_up for replica in stats.replicas] == [True, True]
        assert stats.num_prefix_queries == sum(len(o.prompt_token_ids) for o in outputs)
        threading.Timer(0.4, os.kill, [pids[0], signal.SIGKILL]).start()
        long = SamplingParams(temperature=0, max_tokens=1500, ignore_eos=True)
        with pytest.raises(PromptsError) as caught:
            llm.generate(prompts[:4], long)
        errors = caught.value.errors.values()
        assert {type(error) for error in errors} == {ReplicaDeadError}
        assert "replica 0 of 2" in str(caught.value)
        assert f"process {pids[0]}" in str(caught.value)
        whole = [output for output in caught.value.outputs if output is not None]
        assert len(whole) == 4 - len(errors) == 2
        assert all(len(output.outputs[0].token_ids) == 1500 for output in whole)
        eventually(lambda: all(r.is_up for r in llm.stats().replicas), 60)
        outputs = llm.generate(prompts, params)
        assert [output.outputs[0].token_ids for output in outputs] == expected
        last = llm._running.core.pids
        assert (last[0] != pids[0], last[1]) == (True, pids[1])
    assert not any(map(is_running, [*pids, *last]))


@pytest.mark.slow
def test_a_replica_that_is_killed_while_all_start_fails_the_start_and_nothing_is_left(folder):
    def kill_one():
        eventually(lambda: engines_below(os.getpid()), 30)
        time.sleep(0.5)
        os.kill(engines_below(os.getpid())[0], signal.SIGKILL)

    before = engines_below(os.getpid())
    assert before == []
    threading.Thread(target=kill_one).start()
    with pytest.raises(EngineDeadError, match="was killed by SIGKILL"):
        LLM(folder, **OPTIONS)
    assert engines_below(os.getpid()) == []


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server of a model whose steps take longer than its readers in this process."""
    written = write_checkpoint(
        tmp_path_factory.mktemp("large"), "Qwen3ForCausalLM", max_position_embeddings=8192,
        num_hidden_layers=8, hidden_size=512, intermediate_size=2048,
    )  # fmt: skip
    options = {"model": str(written.folder)} | OPTIONS
    engine = start_engine(Settings.from_options(options), is_serving=True)
    server = start_server(engine.core, engine.async_frontend())
    yield server
    stop_servers([server])


def read_stream(served, number, started, num_tokens=200):
    """Return the text of a stream, and its error if it has one."""
    body = {
        "prompt": f"stream {number}", "max_tokens": num_tokens, "temperature": 0,
        "stream": True, "ignore_eos": True,
    }  # fmt: skip
    text = ""
    with httpx.stream("POST", f"{served.url}/v1/completions", json=body, timeout=60) as response:
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            started[number].set()
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                return text, event["error"]
            text += event["choices"][0]["text"]
    return text, None


def read_streams(served, after_start=lambda: None):
    started = [threading.Event() for _ in range(NUM_STREAMS)]
    with ThreadPoolExecutor(NUM_STREAMS) as pool:
        found = [pool.submit(read_stream, served, n, started) for n in range(NUM_STREAMS)]
        assert all(event.wait(30) for event in started)
        after_start()
        return [future.result() for future in found]


def test_a_killed_replica_leaves_other_streams_untouched_and_serves_again(served):
    whole = read_streams(served)
    assert [error for _, error in whole] == [None] * NUM_STREAMS
    pids = served.core.pids
    killed = []

    def kill():
        os.kill(pids[0], signal.SIGKILL)
        killed.append(time.monotonic())

    broken = read_streams(served, kill)
    failed = [error for _, error in broken if error is not None]
    assert len(failed) == NUM_STREAMS // 2
    for error in failed:
        assert error["code"] == ReplicaDeadError.code
        assert "replica 0 of 2" in error["message"]
        assert "SIGKILL" in error["message"]
    for (text, error), (expected, _) in zip(broken, whole, strict=True):
        assert expected.startswith(text) if error else text == expected
    assert httpx.get(f"{served.url}/readyz").status_code == 200
    router = served.core._router
    eventually(lambda: router.loads.is_up(0), 60)
    before = served.core._group.replicas[0].stats.num_prefix_queries
    assert read_streams(served) == whole
    assert served.core._group.replicas[0].stats.num_prefix_queries > before
    assert served.core.pids[1] == pids[1]
    assert served.core.pids[0] != pids[0]


@pytest.mark.slow
def test_a_replica_that_is_killed_while_idle_comes_back_and_the_server_stays_ready(served):
    router, pids = served.core._router, served.core.pids
    os.kill(pids[1], signal.SIGKILL)
    eventually(lambda: not router.loads.is_up(1))
    assert httpx.get(f"{served.url}/readyz").status_code == 200
    eventually(lambda: router.loads.is_up(1), 60)
    assert httpx.get(f"{served.url}/readyz").status_code == 200
    assert (served.core.pids[0], served.core.pids[1] != pids[1]) == (pids[0], True)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["while it generates", "while a replica starts again"])
def test_when_the_parent_is_killed_no_replica_is_left(folder, when):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, folder], stdout=subprocess.PIPE, text=True
    )
    with parent:
        assert parent.stdout.readline() == "ready\n"
        first = engines_below(parent.pid)
        if when == "while a replica starts again":
            os.kill(min(first), signal.SIGKILL)
            eventually(lambda: set(engines_below(parent.pid)) - set(first), 30)
        below = descendants(parent.pid)
        parent.kill()
        assert eventually(lambda: not any(map(is_running, below)), 30) < 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data_parallel_size": 0}, "at least 1"),
        ({"data_parallel_size": 2, "engine_process": False}, "a process for each engine"),
    ],
)
def test_settings_that_cannot_be_are_refused(options, message):
    with pytest.raises(SettingsError, match=message):
        Settings.from_options(options)
