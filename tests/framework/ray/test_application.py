"""Ray Serve runs two replicas on two nodes: routes, cached prefixes, deaths, clients that leave."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
import yaml
from processes import eventually, is_running
from ray_cluster import family, running_cluster

ray_serve = pytest.importorskip(
    "ray.serve", reason="Ray Serve is not installed: pip install 'quire[ray]'"
)

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

EXAMPLE = Path(__file__).parents[3] / "examples" / "ray_serve.yaml"
PORT = 8765
START_S = 240.0
RESTART_S = 120.0
ENGINE = r"quire\.launch\.engine_process\.entry"
REPLICA = r"^ray::ServeReplica:quire:Engine"
STATUS = """
import logging, ray
from ray import serve

ray.init(logging_level=logging.ERROR, log_to_driver=False)
print(serve.status().applications["quire"].deployments["Engine"].replica_states)
"""
LONG = {"model": "demo", "prompt": "The fox", "max_tokens": 900, "ignore_eos": True}


def config():
    """Return the example with the demo model, and two replicas of one CPU each."""
    example = yaml.safe_load(EXAMPLE.read_text())
    example["http_options"]["port"] = PORT
    (application,) = example["applications"]
    application["args"] = {
        "model": "demo", "device": "cpu", "threads": 1, "max_num_seqs": 1, "kv_events": True,
        "admin_key": ["sesame"],
    }  # fmt: skip
    ingress, engine = application["deployments"]
    ingress["ray_actor_options"] = {"num_cpus": 0}
    engine["ray_actor_options"] = {"num_cpus": 1}
    del engine["autoscaling_config"]
    engine["num_replicas"] = 2
    return example


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    file = tmp_path_factory.mktemp("serve") / "serve.yaml"
    file.write_text(yaml.safe_dump(config()))
    command = [str(Path(sys.executable).with_name("serve")), "run", str(file)]
    with pytest.MonkeyPatch.context() as patch:
        for check in ("READY", "HEALTH"):  # of Serve's own processes, on a busy machine
            patch.setenv(f"RAY_SERVE_PROXY_{check}_CHECK_TIMEOUT_S", "60")
        with (
            running_cluster(1, 1) as address,
            subprocess.Popen(command, env=os.environ | {"RAY_ADDRESS": address}) as process,
        ):
            patch.setenv("RAY_ADDRESS", address)
            client = httpx.Client(base_url=f"http://127.0.0.1:{PORT}", timeout=60.0)
            try:
                eventually(lambda: is_ready(client, process), START_S)
                yield client
            finally:
                client.close()
                process.send_signal(signal.SIGINT)
                process.wait(60.0)


@pytest.fixture
def client(server):
    eventually(lambda: replica_states() == "{'RUNNING': 2}", RESTART_S)
    return server


def replica_states():
    """Return the states of the engine's replicas, as Serve sees them."""
    command = [sys.executable, "-c", STATUS]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def is_ready(client, process=None):
    assert process is None or process.poll() is None, "`serve run` has ended"
    try:
        return client.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


def pids(pattern):
    """Return the processes of a kind, without watchdogs, which have another name."""
    found = []
    for pid, command in family().items():
        if re.search(pattern, command) and _name(pid) != "quire-watchdog":
            found.append(pid)
    return found


def _name(pid):
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "quire-watchdog"


def complete(client, prompt, **fields):
    body = {"model": "demo", "prompt": prompt, "max_tokens": 8, "temperature": 0} | fields
    return client.post("/v1/completions", json=body)


def cached(response):
    return response.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def events(response):
    lines = [line for line in response.iter_lines() if line.startswith("data: ")]
    return [line.removeprefix("data: ") for line in lines]


def test_the_example_is_valid():
    from ray.serve.schema import ServeDeploySchema

    ServeDeploySchema.model_validate(yaml.safe_load(EXAMPLE.read_text()))


def test_routes_answer_as_quires_server_does(client):
    whole = complete(client, "The fox")
    assert whole.status_code == 200
    assert whole.headers.get_list("x-request-id")[0].startswith("req-")  # and Serve's own
    with client.stream(
        "POST", "/v1/completions", json={**LONG, "max_tokens": 8, "temperature": 0, "stream": True}
    ) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        *pieces, done = events(response)
    assert done == "[DONE]"
    streamed = "".join(json.loads(piece)["choices"][0]["text"] for piece in pieces)
    assert streamed == whole.json()["choices"][0]["text"]
    chat = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    assert client.post("/v1/chat/completions", json=chat).status_code == 200
    assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["demo"]


def test_errors_of_requests_are_those_of_quires_server(client):
    assert complete(client, "x", max_tokens="many").status_code == 400
    assert complete(client, "x", model="another").status_code == 404
    assert client.get("/v1/nothing").status_code == 404
    assert client.get("/livez", headers={"host": "evil.example"}).status_code == 403
    assert client.post("/v1/completions", content=b"x" * (9 << 20)).status_code == 413


def test_a_prompt_returns_to_the_replica_that_has_its_prefix(client):
    admin = {"authorization": "Bearer sesame"}
    assert client.post("/reset_prefix_cache").status_code in (401, 403)
    assert client.post("/reset_prefix_cache", headers=admin).json() == {"status": "reset"}
    time.sleep(3.0)  # until both replicas have reported it
    prompts = [f"Story number {number}. " + "The fox and the hen. " * 12 for number in range(6)]
    assert [cached(complete(client, prompt)) for prompt in prompts].count(0) >= 1
    assert all(cached(complete(client, prompt)) > 32 for prompt in prompts)
    client.post("/reset_prefix_cache", headers=admin)
    assert all(cached(complete(client, prompt + "!")) == 0 for prompt in prompts[:1])


def test_a_client_that_leaves_ends_its_request(client):
    body = {**LONG, "stream": True, "n": 16}  # one after the other, as max_num_seqs is 1
    for _ in range(2):
        with client.stream("POST", "/v1/completions", json=body) as response:
            assert next(response.iter_lines())
    started = time.monotonic()
    assert all(complete(client, f"Prompt {i}").status_code == 200 for i in range(2))
    assert time.monotonic() - started < 10.0


@pytest.mark.parametrize("kind", [ENGINE, REPLICA])
def test_a_death_ends_its_streams_and_no_other_request_and_another_starts(client, kind):
    killed = pids(kind)
    streams = [client.build_request("POST", "/v1/completions", json={**LONG, "stream": True})] * 2
    responses = [client.send(request, stream=True) for request in streams]
    lines = [response.iter_lines() for response in responses]
    assert all(next(each).startswith("data: ") for each in lines)
    os.kill(killed[0], signal.SIGKILL)
    assert all(complete(client, f"Prompt {i}").status_code == 200 for i in range(4))
    ends = [[line for line in each if line.startswith("data: ")] for each in lines]
    for response in responses:
        response.close()
    assert all(each[-1] == "data: [DONE]" for each in ends)
    errors = [json.loads(each[-2].removeprefix("data: ")).get("error") for each in ends]
    found = [error["code"] for error in errors if error is not None]
    assert found in (["engine_dead"], ["replica_dead"])
    eventually(lambda: not is_running(killed[0]))
