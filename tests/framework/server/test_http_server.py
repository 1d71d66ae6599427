"""Listening, health, and stopping well."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import httpx
import pytest
from processes import eventually, path_with
from scripted_core import ScriptedCore
from server_parts import Texts, make_frontend

from quire.config import ServerSettings
from quire.errors import EngineDeadError
from quire.frontend import failure_streak
from quire.plugins.registry import Source
from quire.server import http_server as serve_module
from quire.server import stopping
from quire.server.bound_sockets import bound_socket
from quire.server.http_server import HTTPServer

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}


def post(served, **fields):
    return httpx.post(f"{served.url}/v1/chat/completions", json=CHAT | fields, timeout=20)


def in_thread(call):
    """Run a call in a thread; return the thread and the list that gets its result."""
    results = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()
    return thread, results


def test_port_zero_takes_a_free_port_and_says_which(served):
    host, _, port = served.url.rpartition(":")
    assert host == "http://127.0.0.1"
    assert int(port) > 1024
    assert httpx.get(f"{served.url}/livez").json() == {"status": "alive"}
    assert httpx.get(f"{served.url}/readyz").json() == {"status": "ready"}
    assert httpx.get(f"{served.url}/health").status_code == 200
    assert "version" in httpx.get(f"{served.url}/version").json()


def test_a_started_server_logs_its_statistics(serve, monkeypatch):
    calls = []

    async def log_stats(frontend, hooks):
        calls.append(frontend)

    monkeypatch.setattr(serve_module, "log_stats", log_stats)
    frontend = serve().frontend
    eventually(lambda: calls == [frontend])


def test_a_response_on_a_kept_connection_is_not_held_back(served):
    delays = []
    with httpx.Client() as client:
        for _ in range(21):
            start = time.monotonic()
            client.get(f"{served.url}/livez")
            delays.append(time.monotonic() - start)
    assert sorted(delays)[10] < 0.03  # Nagle and a delayed acknowledgement cost 0.04


def test_responses_do_not_name_the_software_and_requests_are_not_logged(served):
    headers = httpx.get(f"{served.url}/livez").headers
    assert "server" not in headers
    assert "date" in headers


def test_a_server_that_stops_shuts_its_engine_down_and_reports_no_death(serve, caplog):
    served = serve()
    assert httpx.get(f"{served.url}/livez").status_code == 200
    served.server.stop()
    served.thread.join(5)
    assert not served.thread.is_alive()
    assert served.core.is_shut_down
    assert served.server.stopping.engine_death is None
    assert not [record for record in caplog.records if record.levelname == "CRITICAL"]
    served.server.stop()  # once more does no harm


def test_a_server_in_a_foreign_loop_leaves_nothing_there(tokenizer):
    frontend = make_frontend(tokenizer, ScriptedCore(Texts(tokenizer)))
    settings = ServerSettings(port=0)
    urls = []

    async def main():
        server = HTTPServer(frontend, settings, list, urls.append)
        running = asyncio.create_task(server.serve([bound_socket(settings)]))
        while not urls:
            await asyncio.sleep(0.005)
        server.stop()
        await asyncio.wait_for(running, 10)
        await asyncio.sleep(0)
        return asyncio.all_tasks() - {asyncio.current_task()}

    assert asyncio.run(main()) == set()


def test_an_engine_that_dies_is_an_error_of_serving(tokenizer, monkeypatch):
    monkeypatch.setattr(stopping, "DEATH_NOTICE_S", 0.01)
    core = ScriptedCore(Texts(tokenizer))
    core.is_dead = True
    with pytest.raises(EngineDeadError, match="in its sleep"):
        serve_module.serve(make_frontend(tokenizer, core), ServerSettings(port=0), list)


def test_models_and_adapters_are_listed(client, served):
    cards = {card.id: card for card in client.models.list()}
    assert set(cards) == {"demo", "pirate"}
    assert (cards["pirate"].parent, cards["pirate"].root) == ("demo", "adapters/pirate")
    assert cards["demo"].max_model_len == served.frontend.max_model_len
    assert client.models.retrieve("pirate").id == "pirate"


def test_plugins_are_listed(served):
    body = httpx.get(f"{served.url}/v1/plugins").json()
    assert body == {"object": "list", "data": [{"name": "scripted", "state": "loaded"}]}


def test_a_step_that_hangs_is_not_ready(serve, wait_for):
    served = serve(stall_limit_s=0.2)
    assert httpx.get(f"{served.url}/readyz").status_code == 200
    served.core.step_s = 1.5
    served.core.tokens_per_step = 100
    thread, results = in_thread(lambda: post(served))
    assert wait_for(lambda: httpx.get(f"{served.url}/readyz").status_code == 503)
    assert httpx.get(f"{served.url}/readyz").json() == {"status": "stalled"}
    assert httpx.get(f"{served.url}/livez").status_code == 200
    thread.join()
    assert results[0].status_code == 200
    assert wait_for(lambda: httpx.get(f"{served.url}/readyz").status_code == 200)


def test_a_plugin_that_fails_every_request_is_not_ready_until_one_passes(serve, monkeypatch):
    monkeypatch.setattr(failure_streak, "MIN_FAILING_S", 0.0)

    def received(*, request):
        if request.params.seed is not None:
            raise RuntimeError("a detail that is not for clients")

    served = serve(received_hooks=[(Source("acme", "acme-quire", "1.0"), received)])
    ready = f"{served.url}/readyz"
    assert [post(served, seed=number).status_code for number in range(4)] == [500] * 4
    assert httpx.get(ready).status_code == 200
    post(served, seed=4)
    response = httpx.get(ready)
    failing = {
        "status": "failing",
        "cause": "plugin acme (acme-quire 1.0) failed in request_received",
        "plugins": [{"plugin": "acme", "failures": 5}],
    }
    assert (response.status_code, response.json()) == (503, failing)
    assert httpx.get(f"{served.url}/health").json() == {"status": "ready"}
    assert post(served).status_code == 200
    assert httpx.get(ready).json() == {"status": "ready"}


def test_livez_answers_at_once_while_a_step_computes(served, wait_for):
    served.core.step_s = 1.0
    served.core.tokens_per_step = 100
    thread, results = in_thread(lambda: post(served))
    assert wait_for(lambda: bool(served.core.running))
    delays = []
    with httpx.Client() as client:
        client.get(f"{served.url}/livez")
        for _ in range(20):
            start = time.monotonic()
            assert client.get(f"{served.url}/livez").status_code == 200
            delays.append(time.monotonic() - start)
            time.sleep(0.02)
    assert sorted(delays)[17] < 0.1
    assert max(delays) < 0.5  # a step on the event loop would take 1.0
    assert not results  # the step was running all the time
    thread.join()
    assert results[0].status_code == 200


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_long_prompt_that_is_truncated_is_served(served, side):
    text = "some words and 12345 numbers " * 40_000
    body = {"prompt": text, "truncate_prompt_tokens": -1, "truncation_side": side}
    response = httpx.post(f"{served.url}/v1/completions", json=body, timeout=60)
    assert response.status_code == 200
    assert response.json()["usage"]["prompt_tokens"] == 511  # of 512, which it takes


def test_a_text_that_cannot_fit_is_refused_at_once(served):
    body = {"prompt": "a " * 3_500_000}
    start = time.monotonic()
    response = httpx.post(f"{served.url}/v1/completions", json=body, timeout=60)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert "at least" in response.json()["error"]["message"]
    assert time.monotonic() - start < 5  # tokenizing it takes 45; two busy cores are no clock


def test_livez_answers_at_once_while_a_huge_body_is_refused(served):
    ids = "[" + "300," * 1_900_000 + "300]"
    deep = "[" * 30 + "]" * 30
    bodies = [f'{{"prompt": {ids}}}', f'{{"messages": [{",".join([deep] * 100_000)}]}}']
    paths = ["completions", "chat/completions"]
    headers = {"content-type": "application/json"}

    def post_all():
        urls = [f"{served.url}/v1/{path}" for path in paths]
        pairs = zip(urls, bodies, strict=True)
        return [httpx.post(url, content=body, headers=headers, timeout=60) for url, body in pairs]

    thread, results = in_thread(post_all)
    delays = []
    with httpx.Client() as client:
        client.get(f"{served.url}/livez")
        while not results:
            start = time.monotonic()
            client.get(f"{served.url}/livez")
            delays.append(time.monotonic() - start)
    thread.join()
    assert [response.status_code for response in results[0]] == [400, 400]
    assert len(delays) > 10
    assert max(delays) < 1.0  # before brackets were counted: 2 to 4


def test_draining_finishes_what_runs_and_refuses_new_requests(serve, wait_for):
    served = serve(shutdown_timeout_s=10.0)
    served.core.step_s = 0.3
    thread, results = in_thread(lambda: post(served))
    assert wait_for(lambda: bool(served.core.running))
    served.server.stop()
    assert wait_for(lambda: httpx.get(f"{served.url}/readyz").status_code == 503)
    assert httpx.get(f"{served.url}/livez").status_code == 200
    refused = post(served)
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "1"
    assert refused.json()["error"]["code"] == "shutting_down"
    thread.join()
    assert results[0].json()["choices"][0]["message"]["content"] == "I am a script."
    served.thread.join(5)
    assert not served.thread.is_alive()
    assert not served.core.aborted


@pytest.mark.parametrize("by", ["time", "second signal"])
def test_what_does_not_finish_in_time_is_aborted_with_an_error(serve, wait_for, by):
    served = serve(shutdown_timeout_s=0.2 if by == "time" else 60.0)
    served.core.step_s = 0.05
    served.texts.by_prompt = {"Hi": "word " * 300}
    whole, results = in_thread(lambda: post(served))
    streamed, events = in_thread(lambda: post(served, stream=True))
    assert wait_for(lambda: len(served.core.running) == 2)
    time.sleep(0.2)
    start = time.monotonic()
    served.server.stop()
    if by == "second signal":
        served.server.stop()
    served.thread.join(5)
    assert time.monotonic() - start < 3
    whole.join()
    streamed.join()
    assert results[0].status_code == 503
    assert results[0].json()["error"]["code"] == "aborted"
    assert '"code":"aborted"' in events[0].text
    assert events[0].text.endswith("data: [DONE]\n\n")


PROGRAM = """
import signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in the background of a script
from scripted_core import ScriptedCore
from server_parts import CHECKPOINT, Texts, make_frontend
from quire.config import ServerSettings
from quire.frontend.text.tokenizer import Tokenizer
from quire.server.http_server import serve
tokenizer = Tokenizer.load(CHECKPOINT)
frontend = make_frontend(tokenizer, ScriptedCore(Texts(tokenizer), step_s=float(sys.argv[1])))
settings = ServerSettings(
    port=0, shutdown_timeout_s=float(sys.argv[2]), admin_key=("sesame",)
)
serve(frontend, settings, lambda: [], lambda url: print(url, flush=True))
print("bye", flush=True)
"""


@pytest.fixture
def program():
    """Start the program with a step and a grace of so many seconds; returns it, and its URL."""
    parts = str(Path(__file__).parents[2] / "parts")
    processes = []

    def start(step_s, grace_s):
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(step_s), str(grace_s)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path_with(parts)},
        )
        processes.append(process)
        return process, process.stdout.readline().strip()

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def in_flight(url):
    """Return the number of requests in flight, but for this one."""
    text = httpx.get(f"{url}/metrics", timeout=20).text
    return int(float(re.search(r"^quire_http_requests_in_flight ([\d.]+)", text, re.M)[1])) - 1


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_drains_a_process(program, wait_for, signum):
    process, url = program(0.05, 30)
    chat = f"{url}/v1/chat/completions"
    thread, results = in_thread(lambda: httpx.post(chat, json=CHAT, timeout=20))
    assert wait_for(lambda: in_flight(url) == 1)
    process.send_signal(signum)
    thread.join()
    assert results[0].json()["choices"][0]["message"]["content"] == "I am a script."
    assert process.wait(10) == 0
    assert process.stdout.read() == "bye\n"


def test_a_signal_ends_a_process_whose_step_hangs(program, wait_for):
    process, url = program(60, 0.5)
    body = {"prompt": "x"}
    thread, results = in_thread(lambda: httpx.post(f"{url}/v1/completions", json=body, timeout=20))
    assert wait_for(lambda: in_flight(url) == 1)
    admin = {"authorization": "Bearer sesame"}
    reset = partial(httpx.post, f"{url}/reset_prefix_cache", headers=admin, timeout=20)
    resets, responses = in_thread(reset)
    assert wait_for(lambda: in_flight(url) == 2)
    process.terminate()
    sent = time.monotonic()
    assert process.wait(10) == 0
    assert time.monotonic() - sent < 0.5 + 2
    thread.join()
    resets.join()
    assert results[0].json()["error"]["code"] == "aborted"
    assert responses[0].json()["error"]["code"] == "engine_dead"
