"""Processes of an engine in a Ray cluster that are stopped: the engine ends, or needs them not."""

import os
import re
import signal
import socket
import threading
import time

import pytest
from processes import eventually, is_running
from ray_cluster import engine_processes, processes_of, running_cluster

from quire.errors import EngineDeadError
from quire.llm import LLM
from quire.sampling_params import SamplingParams

pytest.importorskip("ray", reason="Ray is not installed: pip install 'quire[ray]'")

pytestmark = pytest.mark.slow

OPTIONS = {"device": "cpu", "threads": 1, "executor": "ray", "tensor_parallel_size": 2}
SHORT = SamplingParams(temperature=0, max_tokens=24)
HERE = socket.gethostname()
SILENCE_S = 5.0
IN_TIME_S = 10.0
START_TIMEOUT_S = 40.0
END_S = 30.0  # for Ray to end what does not end by itself
RANK = rf"worker [01] of 2 \(.*process {{pid}}, on {HERE}\)"


@pytest.fixture(scope="module", autouse=True)
def cluster():
    with running_cluster(1, 1) as address, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", address)
        yield address


@pytest.fixture(autouse=True)
def _nothing_is_left(cluster):
    yield
    eventually(lambda: not engine_processes(), END_S)


def stop(role):
    """Stop the last process with a role; return its id."""
    pid = processes_of(role)[-1]
    os.kill(pid, signal.SIGSTOP)
    return pid


def generate_for(llm, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        llm.generate(["The fox"] * 8, SHORT)


@pytest.mark.parametrize(
    ("role", "text"),
    [
        ("worker", f"{RANK} .*it is stopped by a signal"),
        ("agent", f"{RANK} is lost: the connection to its agent has ended"),
    ],
)
def test_a_rank_that_is_stopped_ends_the_engine_once_its_connection_is_silent(role, text):
    with LLM("demo", **OPTIONS) as llm:
        llm.generate("The fox", SHORT)
        workers = processes_of("worker")
        began, pid = time.monotonic(), stop(role)
        with pytest.raises(EngineDeadError) as caught:
            generate_for(llm, 60.0)
        assert time.monotonic() - began < SILENCE_S + IN_TIME_S
        eventually(lambda: not any(map(is_running, workers)), IN_TIME_S)
    named = pid if role == "worker" else f"({'|'.join(map(str, workers))})"
    assert re.search(text.format(pid=named), str(caught.value)), caught.value


@pytest.mark.parametrize("role", ["actor", "driver"])
def test_what_takes_no_part_in_steps_may_be_stopped_and_ends_with_the_engine(role):
    with LLM("demo", **OPTIONS) as llm:
        llm.generate("The fox", SHORT)
        left = engine_processes()
        stop(role)
        generate_for(llm, SILENCE_S + 3)
    eventually(lambda: not any(map(is_running, left)), END_S)


def test_a_driver_that_is_stopped_at_the_start_ends_it_at_its_time_limit():
    def act():
        eventually(lambda: processes_of("driver"))
        stop("driver")

    acting = threading.Thread(target=act)
    acting.start()
    late = f"within {START_TIMEOUT_S:g} s"
    with pytest.raises(EngineDeadError, match=f"(Ray did not answer|did not join .*) {late}"):
        LLM("demo", **OPTIONS, worker_start_timeout_s=START_TIMEOUT_S)
    acting.join()
