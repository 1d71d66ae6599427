"""Servers in processes of their own whose engine dies, hangs, is stopped, or must end in order."""

import json
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from processes import descendants, eventually, is_running
from served_process import served_process

ENGINE = "quire.launch.engine_process"
FAULTY = ("--executor", "faults", "--engine-process")
MAX_TOKENS = 300


def engine_pid(served):
    found = [pid for pid, command in descendants(served.process.pid).items() if ENGINE in command]
    return found[0]


def long_completion(served, max_tokens=MAX_TOKENS):
    """Return a completion's text, or the code of the error that ended it, on its own connection."""
    body = {"prompt": "Once", "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    response = httpx.post(f"{served.client.base_url}/v1/completions", json=body, timeout=120)
    found = response.json()
    return found["error"]["code"] if "error" in found else found["choices"][0]["text"]


@pytest.fixture
def background():
    with ThreadPoolExecutor(8) as pool:
        yield pool


def long_stream(served, began):
    """Return the text of a stream that ended in order; `began` is set by its first piece."""
    body = {"prompt": "Once", "max_tokens": MAX_TOKENS, "temperature": 0, "ignore_eos": True}
    url = f"{served.client.base_url}/v1/completions"
    pieces = []
    with httpx.stream("POST", url, json=body | {"stream": True}, timeout=120) as response:
        for line in response.iter_lines():
            began.set()
            if line.startswith("data: {"):
                pieces.append(json.loads(line.removeprefix("data: "))["choices"][0]["text"])
    return "".join(pieces)


def stop_for_a_while(served, background, seconds):
    """Stop the engine while it generates; return the text, and what `/readyz` was meanwhile."""
    completion = background.submit(long_completion, served)
    eventually(lambda: completion.done() or running(served))
    pid = engine_pid(served)
    os.kill(pid, signal.SIGSTOP)
    try:
        stopped_s = time.monotonic()
        eventually(lambda: served.readiness()[0] == 503)
        body = served.readiness()[1]
        assert served.client.get("/livez").status_code == 200
        time.sleep(max(0.0, stopped_s + seconds - time.monotonic()))
    finally:
        os.kill(pid, signal.SIGCONT)
    return completion.result(), body


def running(served):
    """Return whether the engine has begun: its delays are in the log."""
    return "injecting the fault" in served.log.read_text()


@pytest.mark.parametrize(
    "seconds", [2, pytest.param(30, marks=pytest.mark.slow)], ids=["2 s", "30 s"]
)
def test_an_engine_that_is_stopped_for_a_while_goes_on(tmp_path, background, seconds):
    flags = (*FAULTY, "--stall-limit-s", "1")
    with served_process(tmp_path / "log", *flags, faults="step.execute:delay@*:5ms") as served:
        alone = long_completion(served)
        text, body = stop_for_a_while(served, background, seconds)
        assert text == alone
        assert body == {"status": "stalled"}
        eventually(lambda: served.readiness()[0] == 200)


@pytest.mark.parametrize(
    "rule",
    [
        "step.execute:crash@1",
        pytest.param("step.collect:crash@30", marks=pytest.mark.slow),
        pytest.param("step.execute:exit@30", marks=pytest.mark.slow),
    ],
    ids=["prefill", "decode", "exit"],
)
def test_when_the_engine_dies_all_requests_end_with_its_error_and_nothing_is_left(
    tmp_path, background, rule
):
    with served_process(tmp_path / "log", *FAULTY, faults=rule) as served:
        pids = [served.process.pid, *descendants(served.process.pid)]
        outcomes = [background.submit(long_completion, served) for _ in range(4)]
        codes = {outcome.result() for outcome in outcomes}
        assert codes == {"engine_dead"}
        assert served.wait() == 1
        eventually(lambda: not any(map(is_running, pids)))
        last = served.log.read_text().splitlines()[-1]
        assert "was killed by SIGKILL" in last or "exit code 70" in last


@pytest.mark.slow
def test_an_engine_that_dies_while_it_loads_is_an_error_of_the_start(tmp_path):
    with (
        pytest.raises(RuntimeError, match="SIGKILL"),
        served_process(tmp_path / "log", *FAULTY, faults="worker.load:crash"),
    ):
        pass


@pytest.mark.slow
def test_an_engine_that_dies_while_it_is_idle_ends_the_server(tmp_path):
    with served_process(tmp_path / "log", "--engine-process") as served:
        os.kill(engine_pid(served), signal.SIGKILL)
        assert served.wait() == 1


@pytest.mark.parametrize("fault", ["hang", pytest.param("freeze", marks=pytest.mark.slow)])
def test_a_step_that_hangs_is_seen_and_forgotten_when_it_ends(tmp_path, background, fault):
    flags = (*FAULTY, "--stall-limit-s", "1")
    with served_process(tmp_path / "log", *flags, faults=f"step.execute:{fault}@9:4s") as served:
        completion = background.submit(long_completion, served, 20)
        eventually(lambda: served.readiness() == (503, {"status": "stalled"}))
        assert served.client.get("/livez").status_code == 200
        assert len(completion.result()) > 5
        eventually(lambda: served.readiness() == (200, {"status": "ready"}))


def test_a_signal_lets_what_runs_complete_and_refuses_the_rest(tmp_path, background):
    with served_process(tmp_path / "log", *FAULTY, faults="step.execute:delay@*:5ms") as served:
        alone = long_completion(served)
        began = [threading.Event() for _ in range(4)]
        streams = [background.submit(long_stream, served, each) for each in began]
        assert all(each.wait(60) for each in began)
        served.process.send_signal(signal.SIGTERM)
        eventually(lambda: served.readiness()[0] == 503)
        refused = served.complete()
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "shutting_down"
        assert "retry-after" in refused.headers
        assert [stream.result() for stream in streams] == [alone] * 4
        assert served.wait() == 0
