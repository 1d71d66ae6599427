"""The executor over two nodes of a real Ray cluster: same tokens, and no death goes unnoticed."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from processes import eventually, is_running
from ray_cluster import (
    engine_processes,
    kill,
    last_head,
    processes_of,
    raylets_of,
    running_cluster,
)

from quire.errors import CapacityError, EngineDeadError
from quire.llm import LLM
from quire.sampling_params import SamplingParams

pytest.importorskip("ray", reason="Ray is not installed: pip install 'quire[ray]'")

pytestmark = pytest.mark.slow

PROMPTS = ["The fox", "Once upon a time there was a hen that"]
GREEDY = SamplingParams(temperature=0, max_tokens=24)
ENDLESS = SamplingParams(temperature=0, max_tokens=900, ignore_eos=True)
OPTIONS = {"device": "cpu", "threads": 1, "executor": "ray"}
HERE = socket.gethostname()
IN_TIME_S = 10.0
RAYLET_S = 60.0
HEAD_S = 120.0  # Ray waits 60 s for its head
ENGINE = """
import sys
from quire import LLM, SamplingParams

llm = LLM("demo", device="cpu", threads=1, executor="ray", tensor_parallel_size=2)
print("up", flush=True)
llm.generate(["The fox"] * 64, SamplingParams(max_tokens=900, ignore_eos=True))
"""


@pytest.fixture(scope="module", autouse=True)
def cluster():
    with running_cluster(1, 1) as address, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", address)
        yield address


@pytest.fixture(autouse=True)
def _nothing_is_left(cluster):
    yield
    eventually(lambda: not engine_processes(), 20.0)


@pytest.fixture(scope="module")
def expected():
    with LLM("demo", device="cpu", threads=1) as llm:
        return tokens_of(llm)


def tokens_of(llm):
    return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, GREEDY)]


def generate_for(llm, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        llm.generate(["The fox"] * 8, GREEDY)


@pytest.mark.parametrize("sizes", [{"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}])
def test_two_nodes_generate_the_tokens_of_one_process(expected, sizes):
    with LLM("demo", **OPTIONS, **sizes) as llm:
        assert tokens_of(llm) == expected
        assert len(processes_of("actor")) == 2


def test_one_worker_may_be_placed_by_ray(expected):
    with LLM("demo", **OPTIONS) as llm:
        assert tokens_of(llm) == expected
        assert len(processes_of("worker")) == 1


def test_a_cluster_that_is_too_small_is_refused_at_once_with_what_each_node_has():
    started = time.monotonic()
    with pytest.raises(CapacityError, match=f"needs 4 CPUs .* 2 are free: {HERE} 1 of 1, {HERE} 1"):
        LLM("demo", **OPTIONS, tensor_parallel_size=2, pipeline_parallel_size=2)
    assert time.monotonic() - started < 15.0


def test_what_one_engine_has_reserved_is_not_free_for_another():
    with LLM("demo", **OPTIONS), pytest.raises(CapacityError, match="1 is free"):
        LLM("demo", **OPTIONS, tensor_parallel_size=2)


@pytest.mark.parametrize(
    ("role", "text"),
    [
        ("worker", r"worker [01] of 2 \(.*process {pid}, on {node}\) was killed by SIGKILL"),
        ("actor", r"worker [01] of 2 \(.*, on {node}\) .*"),
        ("agent", r"worker [01] of 2 \(.*, on {node}\) .*"),
        ("driver", r"process {pid} of quire_executors.ray.ray_driver was killed by SIGKILL"),
    ],
)
def test_a_killed_process_ends_the_engine_with_the_rank_and_its_node(role, text):
    killed = []
    with LLM("demo", **OPTIONS, tensor_parallel_size=2) as llm:
        killing = threading.Timer(0.3, lambda: killed.append((kill(role), time.monotonic())))
        killing.start()
        with pytest.raises(EngineDeadError) as caught:
            llm.generate(["The fox"] * 64, ENDLESS)
        ((pid, began),) = killed
        assert time.monotonic() - began < IN_TIME_S
    assert re.search(text.format(pid=pid, node=HERE), str(caught.value))


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_an_engine_that_is_killed(signal_number):
    with subprocess.Popen(
        [sys.executable, "-c", ENGINE], stdout=subprocess.PIPE, text=True
    ) as engine:
        assert engine.stdout.readline() == "up\n"
        left = engine_processes()
        assert len(left) >= 9  # a driver; two actors, relays, agents and workers
        os.kill(engine.pid, signal_number)
        assert engine.wait(IN_TIME_S) != 0
        eventually(lambda: not any(map(is_running, left)), IN_TIME_S)


def test_the_death_of_a_nodes_raylet_ends_the_engine_and_all_that_it_has_started():
    with running_cluster(1, 1) as address, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", address)
        with LLM("demo", **OPTIONS, tensor_parallel_size=2) as llm:
            left = engine_processes()
            os.kill(raylets_of(address)[-1], signal.SIGKILL)
            with pytest.raises(EngineDeadError, match=f"worker . of 2 .* on {HERE}"):
                generate_for(llm, RAYLET_S)
        eventually(lambda: not any(map(is_running, left)), IN_TIME_S)


@pytest.mark.timeout(400)
def test_without_rays_head_the_model_is_served_on_until_a_worker_dies(expected, caplog):
    with running_cluster(1, 1) as address, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", address)
        with LLM("demo", **OPTIONS, tensor_parallel_size=2) as llm:
            (driver,) = processes_of("driver")
            left = engine_processes()
            worker = processes_of("worker")[-1]
            os.kill(last_head(), signal.SIGKILL)
            eventually(lambda: not is_running(driver), HEAD_S)
            eventually(lambda: not raylets_of(address), HEAD_S)
            eventually(lambda: f"Ray's head {address} is gone" in caplog.text)
            assert tokens_of(llm) == expected
            assert caplog.text.count("is gone; it no longer guards") == 1
            assert is_running(worker)
            os.kill(worker, signal.SIGKILL)
            with pytest.raises(EngineDeadError, match=f"process {worker}, .*killed by SIGKILL"):
                generate_for(llm, IN_TIME_S)
        eventually(lambda: not any(map(is_running, left)), 4 * IN_TIME_S)
