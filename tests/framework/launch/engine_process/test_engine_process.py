"""An engine in a separate process: the same completions, and neither side outlives the other."""

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from installed import write_distribution
from processes import descendants, eventually, is_running, path_with
from server_parts import start_server, stop_servers

import quire
from quire import LLM, SamplingParams, StructuredOutputsParams
from quire.config import Settings
from quire.errors import CapacityError, CheckpointCorruptError, EngineDeadError, PluginError
from quire.launch import start_engine
from quire.launch.composing import compose_engine
from quire.launch.engine_process.engine_config import launch_engine
from quire.launch.engine_process.remote_core import RemoteCore
from quire.plugins.loading import load_plugins
from quire.testing.checkpoints import write_checkpoint

DEATH_LIMIT_S = 10.0
LONG = SamplingParams(temperature=0, max_tokens=25_000, ignore_eos=True)
SHORT = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
ENGINE, GRAMMAR = "quire.launch.engine_process", "quire.engine.grammar.grammar_process"
PARENT = """
import sys
from quire import LLM, SamplingParams, StructuredOutputsParams

llm = LLM(sys.argv[1], engine_process=sys.argv[2] == "process", max_num_seqs=2)
constraint = StructuredOutputsParams(regex="[0-9]{3}")
llm.generate("x", SamplingParams(max_tokens=4, structured_outputs=constraint))
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


def engine_below(process):
    """Return the engine below a process; its watchdog is further below."""
    found = [pid for pid, command in descendants(process.pid).items() if ENGINE in command]
    return found[0]


def kill_at_work(llm, pid, number=signal.SIGKILL):
    """Send a signal once a step has returned; returns a list that gets the time of it."""
    sent, core = [], llm._running.core

    def kill():
        eventually(lambda: core._stats.num_running, 30)
        sent.append(time.monotonic())
        os.kill(pid, number)

    threading.Thread(target=kill).start()
    return sent


@pytest.fixture
def ctrl_c_interrupts():
    """The signal may be ignored: a shell ignores it for processes in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_engine_that_is_killed_ends_a_generation_with_a_typed_error(folder, place):
    with LLM(folder, engine_process=True, max_num_seqs=2) as llm:
        assert list(place.iterdir()) == []  # a connected process does not need the address any more
        pid = engine_pid(llm)
        assert ENGINE in descendants(os.getpid())[pid]
        sent = kill_at_work(llm, pid)
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
    with httpx.stream("POST", f"{served.url}/v1/completions", json=body, timeout=30) as response:
        events = (line for line in response.iter_lines() if line.startswith("data: "))
        assert '"choices":[{' in next(events)
        os.kill(served.core.pid, signal.SIGKILL)
        killed = time.monotonic()
        *_, last, done = events
    assert time.monotonic() - killed < DEATH_LIMIT_S
    assert done == "data: [DONE]"
    error = json.loads(last.removeprefix("data: "))["error"]
    assert error["code"] == EngineDeadError.code
    assert not is_ready(served)


def test_the_server_is_not_ready_and_ends_when_an_idle_engine_is_killed(served):
    assert is_ready(served)
    os.kill(served.core.pid, signal.SIGKILL)
    killed = time.monotonic()
    eventually(lambda: not is_ready(served))
    served.thread.join(10)
    assert time.monotonic() - killed < DEATH_LIMIT_S
    assert "was killed by SIGKILL" in str(served.server.stopping.engine_death)


@pytest.fixture
def cli(folder):
    """Start `quire serve` in a process; returns it and its URL."""
    processes = []

    def start(*options):
        command = ["-m", "quire.cli", "serve", folder, "--port", "0", "--engine-process", *options]
        process = subprocess.Popen(
            [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        processes.append(process)
        return process, process.stdout.readline().split()[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_a_server_whose_engine_dies_ends_with_an_error(cli):
    process, _ = cli("--max-num-seqs", "2")
    os.kill(engine_below(process), signal.SIGKILL)
    killed = time.monotonic()
    assert process.wait(10) == 1
    assert time.monotonic() - killed < DEATH_LIMIT_S
    assert "was killed by SIGKILL" in process.stderr.read().splitlines()[-1]


@pytest.mark.slow
def test_a_signal_ends_a_server_whose_engine_hangs(cli):
    process, url = cli("--max-num-seqs", "2", "--shutdown-timeout-s", "1", "--admin-key", "sesame")
    engine = engine_below(process)
    os.kill(engine, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        admin = {"authorization": "Bearer sesame"}
        reset = pool.submit(httpx.post, f"{url}/reset_prefix_cache", headers=admin, timeout=30)
        time.sleep(0.5)
        process.terminate()
        sent = time.monotonic()
        assert process.wait(30) == 0
        assert time.monotonic() - sent < 1 + 10  # not the 30 s of the request that hangs
        assert reset.result().json()["error"]["code"] == EngineDeadError.code
    assert not is_running(engine)


@pytest.mark.slow
def test_signals_that_a_terminal_or_a_supervisor_sends_are_left_to_the_parent(folder):
    with LLM(folder, engine_process=True, max_num_seqs=2) as llm:
        before = llm.generate("a", SHORT)[0].outputs[0].token_ids
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(engine_pid(llm), number)
        assert llm.generate("a", SHORT)[0].outputs[0].token_ids == before
        pid = engine_pid(llm)
    assert not is_running(pid)


@contextmanager
def stderr_to(path: Path) -> Iterator[None]:
    """Send this process's stderr to a file, and that of the children which are started."""
    kept = os.dup(2)
    with open(path, "ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def test_the_engine_and_its_grammars_print_their_stacks_on_a_signal_and_go_on(folder, tmp_path):
    shown = tmp_path / "stderr"
    digits = SamplingParams(
        max_tokens=4, structured_outputs=StructuredOutputsParams(regex="[0-9]{4}")
    )
    with stderr_to(shown), LLM(folder, engine_process=True, max_model_len=64) as llm:
        llm.generate(["a"], digits)
        below = descendants(os.getpid())
        pids = [pid for pid, c in below.items() if ENGINE in c or GRAMMAR in c]
        assert len(pids) >= 4  # with the watchdogs of both
        for pid in pids:  # the watchdogs have no stderr, and go on like the others
            os.kill(pid, signal.SIGUSR1)
        # The engine's, the fork server's and a grammar's.
        eventually(lambda: shown.read_text().count("(most recent call first)") >= 3)
        (output,) = llm.generate(["b"], digits)
    assert output.outputs[0].text.isdigit()


@pytest.mark.usefixtures("ctrl_c_interrupts")
def test_an_interrupted_generation_leaves_the_engine_ready_for_the_next(folder):
    with LLM(folder, engine_process=True, max_num_seqs=2) as llm:
        kill_at_work(llm, os.getpid(), signal.SIGINT)
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


@pytest.mark.slow
def test_when_the_parent_of_a_stopped_engine_is_killed_nothing_is_left(folder, place):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, folder, "process"], stdout=subprocess.PIPE, text=True
    )
    with parent:
        assert parent.stdout.readline() == "ready\n"
        below = descendants(parent.pid)
        os.kill(engine_below(parent), signal.SIGSTOP)
        parent.kill()
        assert eventually(lambda: not any(map(is_running, below))) < DEATH_LIMIT_S


@pytest.mark.slow
def test_when_the_parent_is_killed_during_a_step_that_holds_the_interpreter_nothing_is_left(
    folder, tmp_path
):
    source = """
        import ctypes
        from quire import hookimpl
        from quire.interfaces.scheduling import SchedulingPolicy, SchedulingPolicyCapabilities

        class Holding(SchedulingPolicy):
            def order(self, request):
                print("holding", flush=True)
                ctypes.PyDLL(None).sleep(60)

        @hookimpl
        def register_scheduling_policies(registry):
            capabilities = SchedulingPolicyCapabilities()
            registry.add("holding", "holding_plugin:Holding", capabilities=capabilities)
    """
    write_distribution(tmp_path, "holding", {"holding": "holding_plugin"}, holding_plugin=source)
    code = "import sys; from quire import LLM; llm = LLM(sys.argv[1], engine_process=True, " + (
        "scheduling_policy='holding', max_num_seqs=2); llm.generate('x')"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, folder],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path_with(tmp_path)},
    )
    with parent:
        assert parent.stdout.readline() == "holding\n"
        below = descendants(parent.pid)
        parent.kill()
        assert eventually(lambda: not any(map(is_running, below))) < DEATH_LIMIT_S


@pytest.mark.slow
def test_neither_the_servers_key_nor_ignored_signals_are_inherited(folder, monkeypatch):
    monkeypatch.setenv("QUIRE_API_KEY", "a-secret-key")
    constraint = StructuredOutputsParams(regex="[0-9]{3}")
    with LLM(folder, engine_process=True, max_num_seqs=2) as llm:
        llm.generate("x", SamplingParams(max_tokens=4, structured_outputs=constraint))
        below = descendants(os.getpid())
        commands = " ".join(below.values())
        assert ENGINE in commands
        assert GRAMMAR in commands
        for pid in below:
            assert b"a-secret-key" not in Path(f"/proc/{pid}/environ").read_bytes()
            assert not {signal.SIGINT, signal.SIGTERM} & ignored_signals(pid)


def ignored_signals(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in lines)
    bits = int(status["SigIgn"], 16)
    return {number for number in range(1, 32) if bits >> (number - 1) & 1}


@pytest.mark.slow
def test_what_lies_in_the_current_directory_is_not_imported(folder, tmp_path):
    program, elsewhere = tmp_path / "program.py", tmp_path / "elsewhere"
    program.write_text(PARENT.replace("25_000", "1"))
    elsewhere.mkdir()
    (elsewhere / "tempfile.py").write_text("open('imported', 'w')")
    (elsewhere / "msgspec.py").write_text("open('imported', 'w')")
    subprocess.run([sys.executable, program, folder, "process"], cwd=elsewhere, check=True)
    assert not (elsewhere / "imported").exists()


@pytest.mark.slow
def test_another_quire_than_the_parents_refuses(folder, tmp_path, monkeypatch):
    shutil.copytree(Path(quire.__file__).parent, tmp_path / "quire")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(PluginError, match="chose other parts") as caught:
        LLM(folder, engine_process=True, max_num_seqs=2)
    assert f"+quire {quire.__version__} in {tmp_path / 'quire'}" in str(caught.value)


@pytest.mark.slow
def test_an_llm_that_was_not_closed_leaves_nothing_behind(folder):
    LLM(folder, engine_process=True, max_num_seqs=2)
    gc.collect()
    before = os.listdir("/proc/self/fd")
    LLM(folder, engine_process=True, max_num_seqs=2)
    gc.collect()
    assert os.listdir("/proc/self/fd") == before
    assert not [c for c in descendants(os.getpid()).values() if ENGINE in c]


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
        os.kill(engine_below(parent), signal.SIGKILL)
        assert eventually(lambda: not any(map(is_running, below))) < DEATH_LIMIT_S
        _, story = parent.communicate(timeout=60)
    assert parent.returncode == 1
    assert "EngineDeadError: the engine process was killed by SIGKILL" in story


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
        RemoteCore.of(launch_engine(replace(composed, composition=believed)))
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
        from quire.interfaces.scheduling import SchedulingPolicy, SchedulingPolicyCapabilities

        class LastComeFirst(SchedulingPolicy):
            def order(self, request):
                return -request.arrival_s

        @hookimpl
        def register_scheduling_policies(registry):
            registry.add(
                "lcfs",
                "beside_plugin:LastComeFirst",
                capabilities=SchedulingPolicyCapabilities(),
            )
    """
    write_distribution(tmp_path, "beside", {"beside": "beside_plugin"}, beside_plugin=source)
    monkeypatch.syspath_prepend(str(tmp_path))
    with LLM(folder, engine_process=True, max_num_seqs=2, scheduling_policy="lcfs") as llm:
        assert llm.composition.scheduling_policy.name == "lcfs"
        assert len(llm.generate("a", SHORT)[0].outputs[0].token_ids) == 5
