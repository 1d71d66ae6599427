"""The engine in a process of its own: the same answers, and neither side outlives the other."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from installed import write_distribution
from processes import descendants, eventually, is_running
from server_parts import start_server, stop_servers

from quire import LLM, SamplingParams
from quire.config import Settings
from quire.errors import CapacityError, CheckpointCorruptError, EngineDeadError, PluginError
from quire.launch import start_engine
from quire.launch.composing import compose_engine
from quire.launch.remote_core import RemoteCore
from quire.plugins import load_plugins
from quire.testing.checkpoints import write_checkpoint

DEATH_LIMIT_S = 2.0
LONG = SamplingParams(temperature=0, max_tokens=25_000, ignore_eos=True)
SHORT = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
ENGINE, GRAMMAR = "quire.launch.engine_process", "quire.engine.grammar_process"
PARENT = """
import sys
from quire import LLM, SamplingParams, StructuredOutputsParams

llm = LLM(sys.argv[1], engine_process=sys.argv[2] == "process", max_num_seqs=2)
form = StructuredOutputsParams(regex="[0-9]{3}")
llm.generate("x", SamplingParams(max_tokens=4, structured_outputs=form))
print("ready", flush=True)
llm.generate("x", SamplingParams(max_tokens=25_000, ignore_eos=True))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    written = write_checkpoint(
        tmp_path_factory.mktemp("model"), "Qwen3ForCausalLM", max_position_embeddings=30_000
    )
    return str(written.folder)


@pytest.fixture
def place(tmp_path_factory, monkeypatch):
    """The folder that sockets are put in."""
    place = tmp_path_factory.mktemp("r")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
    return place


def engine_pid(llm):
    return llm._running.core.pid


def kill_soon(pid, number=signal.SIGKILL, delay_s=0.3):
    """Send a signal in a while; returns a list that will hold the time of it."""
    sent = []

    def kill():
        sent.append(time.monotonic())
        os.kill(pid, number)

    threading.Timer(delay_s, kill).start()
    return sent


def test_an_engine_that_is_killed_ends_a_generation_with_a_typed_error(folder, place):
    with LLM(folder, engine_process=True, max_num_seqs=2) as llm:
        assert list(place.iterdir()) == []  # who is connected needs no address any more
        pid = engine_pid(llm)
        assert ENGINE in descendants(os.getpid())[pid]
        sent = kill_soon(pid)
        with pytest.raises(EngineDeadError, match="was killed by SIGKILL"):
            llm.generate(["a", "b"], LONG)
        assert time.monotonic() - sent[0] < DEATH_LIMIT_S
        with pytest.raises(EngineDeadError, match="was killed by SIGKILL"):
            llm.generate("a", SHORT)
        with pytest.raises(EngineDeadError, match="was killed by SIGKILL"):
            llm.stats()
    assert not is_running(pid)


@pytest.fixture
def served(folder):
    engine = start_engine(
        Settings.from_options({"model": folder, "engine_process": True, "max_num_seqs": 2})
    )
    server = start_server(engine.core, engine.async_frontend())
    yield server
    stop_servers([server])


def is_ready(served):
    return httpx.get(f"{served.url}/readyz").status_code == 200


def test_a_stream_ends_with_an_error_and_the_server_is_not_ready_when_the_engine_is_killed(served):
    assert is_ready(served)
    body = {"prompt": "x", "max_tokens": 25_000, "stream": True, "ignore_eos": True}
    sent = kill_soon(served.core.pid)
    with httpx.stream("POST", f"{served.url}/v1/completions", json=body, timeout=30) as answer:
        events = [line for line in answer.iter_lines() if line.startswith("data: ")]
    assert time.monotonic() - sent[0] < DEATH_LIMIT_S
    assert len(events) > 2
    *_, last, done = events
    assert done == "data: [DONE]"
    error = json.loads(last.removeprefix("data: "))["error"]
    assert error["code"] == EngineDeadError.code
    assert not is_ready(served)
    again = httpx.post(f"{served.url}/v1/completions", json={"prompt": "x", "max_tokens": 1})
    assert again.status_code == 503
    assert httpx.get(f"{served.url}/livez").status_code == 200


def test_the_server_is_not_ready_when_an_idle_engine_is_killed(served):
    assert is_ready(served)
    os.kill(served.core.pid, signal.SIGKILL)
    assert eventually(lambda: not is_ready(served)) < DEATH_LIMIT_S


@pytest.mark.slow
def test_signals_that_a_terminal_or_a_supervisor_sends_are_left_to_the_parent(folder):
    with LLM(folder, engine_process=True, max_num_seqs=2) as llm:
        before = llm.generate("a", SHORT)[0].outputs[0].token_ids
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(engine_pid(llm), number)
        assert llm.generate("a", SHORT)[0].outputs[0].token_ids == before
        pid = engine_pid(llm)
    assert not is_running(pid)


@pytest.mark.slow
def test_an_interrupted_generation_leaves_the_engine_ready_for_the_next(folder):
    with LLM(folder, engine_process=True, max_num_seqs=2) as llm:
        kill_soon(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            llm.generate("a", LONG)
        assert len(llm.generate("a", SHORT)[0].outputs[0].token_ids) == 5
        eventually(lambda: llm.stats().num_running == 0)


@pytest.mark.parametrize("where", ["process", pytest.param("thread", marks=pytest.mark.slow)])
def test_when_the_parent_is_killed_nothing_is_left(folder, place, where):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, folder, where], stdout=subprocess.PIPE, text=True
    )
    with parent:
        assert parent.stdout.readline() == "ready\n"
        below = descendants(parent.pid)
        commands = " ".join(below.values())
        assert (ENGINE in commands, GRAMMAR in commands) == (where == "process", True)
        parent.kill()
        assert eventually(lambda: not any(map(is_running, below))) < DEATH_LIMIT_S
    assert list(place.iterdir()) == []


def test_when_the_parent_is_killed_while_the_engine_starts_nothing_is_left(folder, place):
    parent = subprocess.Popen([sys.executable, "-c", PARENT, folder, "process"])
    with parent:
        eventually(lambda: any(ENGINE in c for c in descendants(parent.pid).values()), 30)
        assert list(place.iterdir()) != []  # it has not connected yet
        below = descendants(parent.pid)
        parent.kill()
        assert eventually(lambda: not any(map(is_running, below)), 30) < 10  # Python itself starts
    assert list(place.iterdir()) == []


@pytest.mark.slow
def test_when_the_engine_is_killed_its_grammar_processes_go_too(folder):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, folder, "process"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with parent:
        assert parent.stdout.readline() == "ready\n"
        below = descendants(parent.pid)
        [engine] = [pid for pid, command in below.items() if ENGINE in command]
        os.kill(engine, signal.SIGKILL)
        assert eventually(lambda: not any(map(is_running, below))) < DEATH_LIMIT_S
        _, story = parent.communicate(timeout=20)
    assert parent.returncode == 1
    assert "EngineDeadError: the engine's process was killed by SIGKILL" in story


@pytest.mark.slow
def test_a_parent_that_leaves_without_closing_takes_the_engine_along(folder):
    code = "import sys; from quire import LLM; llm = LLM(sys.argv[1], engine_process=True); " + (
        "print(llm._running.core.pid)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, folder], capture_output=True, text=True, timeout=60, check=True
    )
    assert eventually(lambda: not is_running(int(done.stdout))) < DEATH_LIMIT_S


@pytest.mark.slow
def test_weights_that_are_cut_short_are_the_same_error_from_either(folder, tmp_path):
    for file in Path(folder).iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = next(tmp_path.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-100])
    messages = []
    for engine_process in (False, True):
        with pytest.raises(CheckpointCorruptError) as caught:
            LLM(str(tmp_path), engine_process=engine_process)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert not [c for c in descendants(os.getpid()).values() if ENGINE in c]


@pytest.mark.slow
def test_a_cache_that_is_too_small_is_the_same_error_from_either(folder):
    options = {"num_kv_blocks": 2, "max_model_len": 4096}
    messages = []
    for engine_process in (False, True):
        with pytest.raises(CapacityError) as caught:
            LLM(folder, engine_process=engine_process, **options)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_a_process_that_chooses_other_parts_refuses_and_prints_the_difference(folder, place):
    settings = Settings.from_options({"model": folder})
    composed = compose_engine(settings, load_plugins(settings.plugins))
    entry = composed.composition.model.entry
    other = replace(entry, source=replace(entry.source, version="9.9"))
    believed = replace(composed.composition, model=replace(composed.composition.model, entry=other))
    with pytest.raises(PluginError, match="chose other parts") as caught:
        RemoteCore.start(replace(composed, composition=believed))
    assert "-models Qwen3ForCausalLM quire 9.9" in str(caught.value)
    assert f"+models Qwen3ForCausalLM quire {entry.source.version}" in str(caught.value)
    assert list(place.iterdir()) == []
    assert not [c for c in descendants(os.getpid()).values() if ENGINE in c]


def test_without_a_folder_for_its_socket_it_does_not_start(folder, monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(PluginError.__base__, match="set TMPDIR"):
        LLM(folder, engine_process=True, max_num_seqs=2)


@pytest.mark.slow
def test_a_plugin_beside_the_users_program_is_found_by_both_processes(
    folder, tmp_path, monkeypatch
):
    source = """
        from quire import hookimpl
        from quire.interfaces.scheduling import SchedulingPolicy

        class LastComeFirst(SchedulingPolicy):
            def order(self, request):
                return -request.arrival_s

        @hookimpl
        def register_scheduling_policies(registry):
            registry.add("lcfs", "beside_plugin:LastComeFirst")
    """
    write_distribution(tmp_path, "beside", {"beside": "beside_plugin"}, beside_plugin=source)
    monkeypatch.syspath_prepend(str(tmp_path))
    with LLM(folder, engine_process=True, max_num_seqs=2, scheduling_policy="lcfs") as llm:
        assert llm.composition.scheduling_policy.name == "lcfs"
        assert len(llm.generate("a", SHORT)[0].outputs[0].token_ids) == 5
