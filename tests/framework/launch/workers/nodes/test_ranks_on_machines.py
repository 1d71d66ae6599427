"""An engine over two machines, which are network namespaces: completions, and a network that fails.

The engine and rank 0 are on the first machine, rank 1 is on the second one.
"""

import contextlib
import subprocess
import sys
import time

import pytest
from engine_program import EngineProgram
from joining_agents import JoiningAgents, free_port
from network_namespaces import Network
from processes import eventually
from watched_launch import watched

from quire import LLM, SamplingParams
from quire.testing.checkpoints import write_checkpoint

pytestmark = pytest.mark.slow
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
PROMPTS = [[3, 4, 5], [6, 7, 8, 9, 10], [11] * 20]
TP2, PP2 = (2, 1), (1, 2)
SILENCE_S = 6.0  # a silent connection is lost after 5 s
WAIT_S = 120.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    written = write_checkpoint(
        tmp_path_factory.mktemp("model"), "Qwen3ForCausalLM", max_position_embeddings=30_000
    )
    return str(written.folder)


@pytest.fixture(scope="module")
def expected(folder):
    with LLM(folder, dtype="float32", threads=1) as llm:
        return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, GREEDY)]


@pytest.fixture
def launch(tmp_path, monkeypatch):
    yield from watched(tmp_path, monkeypatch)


@pytest.fixture
def network(launch):
    with Network(2) as network:
        yield network


class Scene:
    """Two machines, the agents on them and the engine on the first one."""

    def __init__(self, network, agents, engine, started):
        self.network, self.agents, self.engine, self.started = network, agents, engine, started

    @property
    def machines(self):
        return self.network.machines


def connects(machine, address):
    """Whether a process on a machine can open a connection."""
    host, port = address.split(":")
    code = f"import socket; socket.create_connection(({host!r}, {port}), 1.5)"
    command = machine.command(sys.executable, "-c", code)
    return subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode == 0


@contextlib.contextmanager
def scene_of(network, tmp_path, folder, grid, *second, **changes):
    first, other = network.machines
    agents = JoiningAgents(tmp_path, first.address)
    options = {
        "tensor_parallel_size": grid[0],
        "pipeline_parallel_size": grid[1],
        "dtype": "float32",
        "threads": 1,
        "max_num_seqs": 4,
        "step_timeout_s": 60.0,
        **agents.options(),
        **changes,
    }
    engine = EngineProgram(folder, options, tmp_path / "engine.log", first)
    started = [agents.start(0, machine=first), agents.start(1, 1, *second, machine=other)]
    try:
        yield Scene(network, agents, engine, started)
    finally:
        engine.close()
        agents.close()


@pytest.mark.parametrize(
    ("grid", "condition"),
    [
        pytest.param(TP2, {}, id="tp2"),
        pytest.param(PP2, {}, id="pp2"),
        pytest.param(TP2, {"delay_s": 0.2}, id="tp2-delay"),
        pytest.param(PP2, {"loss": 0.05}, id="pp2-loss"),
    ],
)
def test_machines_complete_as_one_process_and_listen_only_where_they_must(
    network, tmp_path, folder, expected, launch, grid, condition
):
    network.change(**condition)
    with scene_of(network, tmp_path, folder, grid) as scene:
        assert scene.engine.answer() == ["ready", None]
        for machine in scene.machines:
            assert {host for host, _ in machine.listeners()} == {machine.address}
            assert not connects(machine, scene.agents.address), "all have joined"
        numbers = [len(machine.listeners()) for machine in scene.machines]
        assert numbers == [2, 1], "a port of Gloo on each, and the engine's, which drops all"
        scene.engine.ask(PROMPTS, GREEDY.max_tokens)
        assert scene.engine.answer() == ["tokens", expected]
        scene.engine.stop()
        for agent in scene.started:
            status, log = scene.agents.end(agent)
            assert status == 0, log
    eventually(lambda: not launch.workers(), 30)


@pytest.mark.parametrize(("grid", "one_way"), [(TP2, False), (PP2, False), (PP2, True)])
def test_a_network_that_is_cut_ends_both_sides_in_time(
    network, tmp_path, folder, launch, grid, one_way
):
    with scene_of(network, tmp_path, folder, grid) as scene:
        assert scene.engine.answer() == ["ready", None]
        scene.engine.ask([[7] * 3], 20_000)
        time.sleep(1)
        first, second = scene.machines
        network.change(*([second, first] if one_way else []), is_cut=True, one_way=one_way)
        began = time.monotonic()
        kind, text = scene.engine.answer()
        assert time.monotonic() - began < 2 * SILENCE_S
        assert kind == "EngineDeadError"
        assert f"on {second.name}" in text
        assert "is lost: the connection to its agent has ended" in text
        for agent in scene.started:
            status, _ = scene.agents.end(agent)
            assert status == 1
        assert time.monotonic() - began < 3 * SILENCE_S
    eventually(lambda: not launch.workers(), 30)


def test_an_interface_that_leads_nowhere_is_named_before_anything_is_loaded(
    network, tmp_path, folder
):
    second = network.machines[1]
    with scene_of(network, tmp_path, folder, TP2, "--host-ip", second.other_address) as scene:
        kind, text = scene.engine.answer()
        assert kind == "SettingsError"
        assert f"{second.other_address} of rank 1 on {second.name}" in text
        assert "--host-ip" in text
        for agent in scene.started:
            status, log = scene.agents.end(agent)
            assert status == 1
            assert "cannot all reach each other" in log


def test_loopback_is_named_before_anything_is_loaded(network, tmp_path, folder):
    with scene_of(network, tmp_path, folder, TP2, "--host-ip", "127.0.0.1") as scene:
        kind, text = scene.engine.answer()
        assert kind == "SettingsError"
        assert "127.0.0.1, a loopback address, of rank 1" in text


def test_an_address_of_another_machine_is_refused_by_the_agent(network, tmp_path, folder):
    first = network.machines[0]
    with scene_of(network, tmp_path, folder, TP2, "--host-ip", first.address) as scene:
        status, log = scene.agents.end(scene.started[1])
        assert status == 1
        assert f"ranks cannot listen on {first.address}" in log


def test_a_port_that_is_taken_is_named(network, tmp_path, folder):
    first = network.machines[0]
    port = free_port()
    code = (
        f"import socket, time; s = socket.create_server(('{first.address}', {port}));"
        "print(flush=True); time.sleep(100)"
    )
    command = first.command(sys.executable, "-c", code)
    with subprocess.Popen(command, stdout=subprocess.PIPE) as taker:
        taker.stdout.readline()
        address = f"{first.address}:{port}"
        with scene_of(network, tmp_path, folder, TP2, worker_address=address) as scene:
            kind, text = scene.engine.answer()
            assert kind == "SettingsError"
            assert address in text
            assert "set --worker-address" in text
        taker.kill()
