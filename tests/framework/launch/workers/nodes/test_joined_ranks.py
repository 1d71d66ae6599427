"""Ranks that join an engine by agents: the completions of one process, and every death is named."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from joining_agents import JoiningAgents
from processes import eventually
from watched_launch import watched

from quire import LLM, SamplingParams
from quire.errors import CheckpointCorruptError, EngineDeadError
from quire.process.launch_key import LaunchKey
from quire.testing.checkpoints import write_checkpoint

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=25_000, ignore_eos=True)
PROMPTS = [[3, 4, 5], [6, 7, 8, 9, 10], [11] * 20]
TP2, PP2, BOTH = (2, 1), (1, 2), (2, 2)
LOST_S = 6.0  # a silent connection is lost after 5 s


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    written = write_checkpoint(
        tmp_path_factory.mktemp("model"), "Qwen3ForCausalLM", max_position_embeddings=30_000
    )
    return str(written.folder)


@pytest.fixture
def launch(tmp_path, monkeypatch):
    yield from watched(tmp_path, monkeypatch)


@pytest.fixture
def agents(tmp_path, launch):
    made = JoiningAgents(tmp_path)
    yield made
    made.close()


def options(grid, agents=None, **others):
    given = {} if agents is None else agents.options()
    return {
        "tensor_parallel_size": grid[0],
        "pipeline_parallel_size": grid[1],
        "dtype": "float32",
        "threads": 1,
        "max_num_batched_tokens": 64,
        "max_num_seqs": 4,
        **given,
        **others,
    }


@pytest.fixture(scope="module")
def expected(folder):
    with LLM(folder, **options((1, 1))) as llm:
        return tokens_of(llm.generate(PROMPTS, GREEDY))


def tokens_of(outputs):
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.parametrize(
    ("grid", "counts"),
    [
        pytest.param(TP2, [1, 1], id="tp2-two-agents"),
        pytest.param(PP2, [2], id="pp2-one-agent", marks=pytest.mark.slow),
        pytest.param(BOTH, [1, 3], id="tp2-pp2", marks=pytest.mark.slow),
    ],
)
def test_joined_ranks_complete_as_one_process_and_exit_with_the_engine(
    folder, agents, expected, grid, counts
):
    started, first = [], 0
    for count in counts:
        started.append(agents.start(first, count))
        first += count
    with LLM(folder, **options(grid, agents)) as llm:
        assert tokens_of(llm.generate(PROMPTS, GREEDY)) == expected
    for agent in started:
        status, log = agents.end(agent)
        assert status == 0, log


def dies(folder, agents, launch, act):
    """Run a long request, and return the error that it ends with after an act of the test."""
    started = [agents.start(rank) for rank in range(2)]
    with LLM(folder, **options(TP2, agents, step_timeout_s=30.0)) as llm:
        llm.generate(PROMPTS, GREEDY)
        running = llm._running.core.scheduler
        began = running._last_plan_id
        launch.once(lambda: running._last_plan_id > began + 5, lambda: act(started))
        with pytest.raises(EngineDeadError, match=r"step \d+") as caught:
            llm.generate([[7] * 3], LONG)
        eventually(lambda: not launch.workers(), 30)
    return str(caught.value), [agents.end(agent) for agent in started]


def test_a_rank_that_is_killed_is_named_with_its_machine_and_signal(folder, agents, launch):
    error, ends = dies(folder, agents, launch, lambda _: os.kill(launch.pids[1], signal.SIGKILL))
    assert "worker 1 of 2 (tensor-parallel rank 1, process " in error
    assert f"process {launch.pids[1]}, on {os.uname().nodename}) was killed by SIGKILL" in error
    assert [status for status, _ in ends] == [1, 1]


@pytest.mark.slow
def test_an_agent_that_is_killed_takes_its_rank_along_and_is_named(folder, agents, launch):
    error, ends = dies(folder, agents, launch, lambda started: started[1].kill())
    assert "worker 1 of 2" in error
    assert "is lost: the connection to its agent has ended" in error
    assert [status for status, _ in ends] == [1, -signal.SIGKILL]


@pytest.mark.slow
def test_an_agent_that_is_told_to_stop_says_so(folder, agents, launch):
    error, ends = dies(folder, agents, launch, lambda started: started[0].terminate())
    assert "worker 0 of 2" in error
    assert "ended with its agent, because it was interrupted" in error
    assert [status for status, _ in ends] == [130, 1]


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["rank", "agent"])
def test_a_process_that_is_stopped_is_found_when_its_connection_is_silent(
    folder, agents, launch, victim
):
    sent = []

    def stop(started):
        sent.append(time.monotonic())
        os.kill(launch.pids[1] if victim == "rank" else started[1].pid, signal.SIGSTOP)
        if victim == "agent":  # the test waits for its end
            time.sleep(LOST_S + 4)
            os.kill(started[1].pid, signal.SIGCONT)

    error, _ = dies(folder, agents, launch, stop)
    assert "worker 1 of 2" in error
    assert time.monotonic() - sent[0] < 4 * LOST_S
    assert ("is stopped by a signal" in error) is (victim == "rank")


def test_an_agent_with_another_key_is_refused_and_disturbs_nobody(folder, agents, tmp_path):
    other = tmp_path / "other.key"
    LaunchKey.new().write(other)
    stranger = agents.start(0, key_file=other)
    agents.start(0)
    with LLM(folder, **options((1, 1), agents)) as llm:
        status, log = agents.end(stranger)
        assert status == 1
        assert "key" in log
        assert len(llm.generate(PROMPTS, GREEDY)) == 3


@pytest.mark.slow
def test_an_error_of_loading_reaches_the_engine_with_its_type(tmp_path, agents, folder):
    written = write_checkpoint(tmp_path / "broken", "Qwen3ForCausalLM")
    (written.folder / "model.safetensors").write_bytes(b"no weights")
    started = agents.start(0, 2)
    with pytest.raises(CheckpointCorruptError):
        LLM(str(written.folder), **options(TP2, agents))
    started.kill()


PROGRAM = """
import json, sys
from quire import LLM, SamplingParams

llm = LLM(sys.argv[1], **json.loads(sys.argv[2]))
print("loaded", flush=True)
llm.generate([[7] * 3], SamplingParams(max_tokens=25_000, ignore_eos=True))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.slow
def test_ranks_end_with_an_engine_that_is_gone(folder, agents, launch, number):
    started = [agents.start(rank) for rank in range(2)]
    words = [folder, json.dumps(options(TP2, agents))]
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words], stdout=subprocess.PIPE, text=True
    ) as engine:
        try:
            assert engine.stdout.readline() == "loaded\n"
            began = time.monotonic()
            engine.send_signal(number)
            for agent in started:
                status, log = agents.end(agent)
                assert status == 1
                assert "the connection to the engine" in log
            assert time.monotonic() - began < (2 if number == signal.SIGKILL else LOST_S + 2) + 3
            eventually(lambda: not launch.workers())
        finally:
            engine.kill()
