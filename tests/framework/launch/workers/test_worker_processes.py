"""Death and silence of worker processes in every phase: a typed error in time, and nothing is left.

The ranks are real processes. A signal reaches one when it has been started, when all have joined,
in a prefill, in a decode step, or while the engine is idle.
"""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from processes import eventually, is_running
from watched_launch import open_files, watched

from quire import LLM, SamplingParams
from quire.errors import CheckpointCorruptError, EngineDeadError
from quire.testing.checkpoints import write_checkpoint

KILL, STOP = signal.SIGKILL, signal.SIGSTOP
REASONS = {KILL: "was killed by SIGKILL", STOP: "is stopped by a signal"}
SHORT = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=25_000, ignore_eos=True)
LONG_PROMPT = [7] * 25_000
DEATH_LIMIT_S = 10.0
STEP_TIMEOUT_S = 3.0
TP2, PP2, BOTH = (2, 1), (1, 2), (2, 2)
QUICK = {
    "join": [(TP2, 1, KILL), (TP2, 0, STOP)],
    "load": [(TP2, 0, KILL)],
    "prefill": [],  # as in a decode step
    "decode": [(TP2, 1, STOP), (PP2, 1, KILL)],
    "idle": [(TP2, 0, KILL)],
    "shutdown": [(TP2, 1, STOP)],
}


def cases(phase):
    """Cases of a phase, those that are not quick marked slow."""
    every = [
        (grid, rank, number)
        for grid in (TP2, PP2, BOTH)
        for rank in range(grid[0] * grid[1])
        for number in (KILL, STOP)
    ]
    found = [
        pytest.param(
            *case,
            id=f"tp{case[0][0]}-pp{case[0][1]}-rank{case[1]}-{case[2].name}",
            marks=() if case in QUICK[phase] else pytest.mark.slow,
        )
        for case in every
    ]
    return pytest.mark.parametrize(("grid", "rank", "number"), found)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    written = write_checkpoint(
        tmp_path_factory.mktemp("model"), "Qwen3ForCausalLM", max_position_embeddings=30_000
    )
    return str(written.folder)


@pytest.fixture
def launch(tmp_path, monkeypatch):
    yield from watched(tmp_path, monkeypatch)


def options(grid, **others):
    return {
        "tensor_parallel_size": grid[0],
        "pipeline_parallel_size": grid[1],
        "threads": 1,
        "max_num_batched_tokens": 64,
        "max_num_seqs": 2,
        "step_timeout_s": STEP_TIMEOUT_S,
        **others,
    }


def check_error(error, launch, rank, number):
    """Check that an error names the rank, its process and what has happened to it."""
    name = f"worker {rank} of "
    (part,) = [part for part in str(error).split("; ") if name in part and REASONS[number] in part]
    assert f"process {launch.pids[rank]}" in part, error


def check_ended(llm, error):
    """Check that later calls raise the same error."""
    for call in (lambda: llm.generate("a", SHORT), llm.stats):
        with pytest.raises(EngineDeadError) as caught:
            call()
        assert str(caught.value) == str(error)


class Signal:
    """Sends a signal to a rank, and notes when.

    Args:
        launch: Launch of the rank.
        rank: The rank.
        number: The signal.
    """

    def __init__(self, launch, rank, number):
        self.launch, self.rank, self.number = launch, rank, number
        self.sent_s = 0.0

    def __call__(self, pid=None):
        self.sent_s = time.monotonic()
        os.kill(self.launch.pids[self.rank] if pid is None else pid, self.number)

    def check_time(self, timeout_s):
        assert self.sent_s, "no signal was sent"
        limit_s = DEATH_LIMIT_S + (timeout_s if self.number == STOP else 0)
        assert time.monotonic() - self.sent_s < limit_s


@cases("join")
def test_a_rank_that_does_not_join_is_named(folder, launch, grid, rank, number):
    timeout_s = 3.0 if number == STOP else 120.0
    send = Signal(launch, rank, number)

    def act(pid):
        launch.pids = launch.workers()
        send(pid)

    launch.once_started(rank, act)
    with pytest.raises(EngineDeadError) as caught:
        LLM(folder, **options(grid, worker_start_timeout_s=timeout_s))
    check_error(caught.value, launch, rank, number)
    send.check_time(timeout_s)


@cases("load")
def test_a_rank_that_does_not_load_is_named(folder, launch, grid, rank, number):
    timeout_s = 40.0 if number == STOP else 120.0
    send = Signal(launch, rank, number)
    launch.once_joined(send)
    with pytest.raises(EngineDeadError, match="loading the weights") as caught:
        LLM(folder, **options(grid, worker_start_timeout_s=timeout_s))
    check_error(caught.value, launch, rank, number)
    send.check_time(timeout_s)


def test_an_error_of_loading_keeps_its_type_and_names_the_rank(tmp_path, launch):
    written = write_checkpoint(tmp_path / "model", "Qwen3ForCausalLM")
    config = written.config | {"intermediate_size": written.config["intermediate_size"] + 8}
    (written.folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointCorruptError, match=r"^worker [01] of 2 .*_proj\.weight"):
        LLM(str(written.folder), **options(TP2))


def step_of(llm):
    """Return the number of the last step that was launched."""
    return llm._running.core.scheduler._last_plan_id


@cases("prefill")
def test_a_rank_that_fails_in_a_prefill_is_named(folder, launch, grid, rank, number):
    fails_at_work(folder, launch, LONG_PROMPT, (grid, rank, number))


@cases("decode")
def test_a_rank_that_fails_in_a_decode_step_is_named(folder, launch, grid, rank, number):
    fails_at_work(folder, launch, [7] * 3, (grid, rank, number))


def fails_at_work(folder, launch, prompt, case):
    grid, rank, number = case
    send = Signal(launch, rank, number)
    with LLM(folder, **options(grid)) as llm:
        launch.check_devices()
        first = step_of(llm)
        launch.once(lambda: step_of(llm) > first + 9, send)
        with pytest.raises(EngineDeadError, match=r"step \d+") as caught:
            llm.generate([prompt, prompt], LONG)
        send.check_time(STEP_TIMEOUT_S)
        check_error(caught.value, launch, rank, number)
        check_ended(llm, caught.value)
        eventually(lambda: not launch.processes())


@cases("idle")
def test_a_rank_that_fails_while_the_engine_is_idle_is_named(folder, launch, grid, rank, number):
    with LLM(folder, **options(grid)) as llm:
        llm.generate("a", SHORT)
        send = Signal(launch, rank, number)
        send()
        if number == KILL:
            eventually(lambda: not is_running(launch.pids[rank]))
        with pytest.raises(EngineDeadError) as caught:
            llm.generate("a", SHORT)
        send.check_time(STEP_TIMEOUT_S)
        check_error(caught.value, launch, rank, number)
        check_ended(llm, caught.value)


@cases("shutdown")
def test_a_rank_that_does_not_stop_is_killed(folder, launch, grid, rank, number, monkeypatch):
    monkeypatch.setattr("quire.launch.workers.ranks.worker_set.STOP_TIMEOUT_S", 1.0)
    llm = LLM(folder, **options(grid))
    llm.generate("a", SHORT)
    send = Signal(launch, rank, number)
    send()
    llm.close()
    send.check_time(1.0)
    eventually(lambda: not launch.processes())


@pytest.mark.parametrize("number", [KILL, pytest.param(None, marks=pytest.mark.slow)])
def test_an_engine_leaves_no_file_open(folder, launch, number):
    one = options((1, 1), executor="processes")
    LLM(folder, **one).close()  # opens what stays open for the whole process
    before = set(open_files())
    with LLM(folder, **one) as llm:
        launch.check_devices()
        if number is not None:
            os.kill(launch.pids[0], number)
            with pytest.raises(EngineDeadError):
                llm.generate("a", LONG)
    eventually(lambda: set(open_files()) <= before)


PROGRAM = """
import sys
from quire import LLM, SamplingParams

print("started", flush=True)
llm = LLM(
    sys.argv[1],
    tensor_parallel_size=2,
    max_num_batched_tokens=64,
    engine_process=sys.argv[2] == "process",
)
print("loaded", flush=True)
llm.generate([[7] * 25_000], SamplingParams(max_tokens=100, ignore_eos=True))
"""


@pytest.mark.parametrize(
    ("where", "phase"),
    [
        ("in_process", "join"),
        ("process", "work"),
        pytest.param("in_process", "load", marks=pytest.mark.slow),
        pytest.param("in_process", "work", marks=pytest.mark.slow),
        pytest.param("process", "join", marks=pytest.mark.slow),
        pytest.param("process", "load", marks=pytest.mark.slow),
    ],
)
def test_nothing_is_left_of_a_program_that_is_killed(folder, launch, where, phase):
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, folder, where], stdout=subprocess.PIPE, text=True
    )
    try:
        wait_for(phase, program, launch)
        assert len(launch.workers()) == 2
    finally:
        program.kill()
        program.communicate()
    eventually(lambda: not launch.processes())


def wait_for(phase, program, launch):
    assert program.stdout.readline() == "started\n"
    eventually(lambda: len(launch.workers()) == 2, 60)
    if phase == "load":
        eventually(lambda: list(launch.sockets.iterdir()) == [], 60)
    if phase == "work":
        assert program.stdout.readline() == "loaded\n"


@pytest.mark.parametrize("number", [KILL, pytest.param(STOP, marks=pytest.mark.slow)])
def test_an_engines_process_names_the_rank(folder, launch, number):
    with LLM(folder, **options(TP2, engine_process=True)) as llm:
        llm.generate("a", SHORT)
        launch.pids = launch.workers()
        send = Signal(launch, 1, number)
        launch.once(lambda: llm._running.core._stats.num_running, send)
        with pytest.raises(EngineDeadError, match=r"step \d+") as caught:
            llm.generate("a", LONG)
        send.check_time(STEP_TIMEOUT_S)
        check_error(caught.value, launch, 1, number)
        eventually(lambda: not launch.processes())
