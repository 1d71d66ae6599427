"""The actor of a rank, without Ray: its command line, the key, and the end of its process."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from processes import descendants, eventually, is_running

from quire_executors.ray.ray_actor import AgentActor, worker_arguments

KEY = "5ec2e7" * 10
ACTOR = f"""
import os, time
from quire_executors.ray.ray_actor import AgentActor

actor = AgentActor()
actor.start(["chat", "demo"], "{KEY}", {{}})
print(os.getpid(), flush=True)
actor.wait()
time.sleep(60)
"""
RAYLET = f"""
import subprocess, sys, time

subprocess.Popen([sys.executable, "-c", {ACTOR!r}])
time.sleep(60)
"""
NOWHERE = worker_arguments("127.0.0.1:1", 3, "10.0.0.9")


def test_the_command_line_of_a_rank_has_no_secret():
    assert " ".join(NOWHERE) == (
        "worker --join 127.0.0.1:1 --key-file - --rank 3 --host-ip 10.0.0.9"
    )


def test_the_end_of_the_process_is_its_exit_status():
    actor = AgentActor()
    actor.start(["--version"], KEY, {})
    assert actor.wait() == "exited with 0"


def test_its_errors_go_to_the_actors_log(capfd):
    actor = AgentActor()
    actor.start(["chat", "--no-such-option-yet"], KEY, {})
    assert actor.wait() == "exited with 2"
    assert "no-such-option-yet" in capfd.readouterr().err


def test_the_key_is_in_no_command_line_and_no_environment():
    actor = AgentActor()
    actor.start(["chat", "demo"], KEY, {})
    eventually(lambda: len(descendants(os.getpid())) == 2)  # the relay, and its program
    relay, program = sorted(descendants(os.getpid()))
    for pid in (relay, program):
        for file in ("cmdline", "environ"):
            assert KEY not in Path(f"/proc/{pid}/{file}").read_text()
    os.kill(program, signal.SIGKILL)
    assert actor.wait() == "was killed by SIGKILL"
    eventually(lambda: not descendants(os.getpid()))


def test_an_actor_whose_raylet_has_died_ends_with_its_program():
    with subprocess.Popen(
        [sys.executable, "-c", RAYLET], stdout=subprocess.PIPE, text=True
    ) as raylet:
        actor = int(raylet.stdout.readline())
        eventually(lambda: len(descendants(actor)) == 2)
        program = max(descendants(actor), key=lambda pid: len(descendants(pid)) == 0)
        raylet.kill()
        raylet.wait()
        assert is_running(actor)
        os.kill(program, signal.SIGKILL)
        eventually(lambda: not is_running(actor))


def test_an_actor_that_started_nothing_says_so():
    assert AgentActor().wait() == "was not started"


def test_a_process_that_cannot_be_started_is_no_error_of_the_actor():
    actor = AgentActor()
    actor.start(["worker"], KEY, {"LONG": "a" * 2**21})
    assert "could not be started" in actor.wait()


def test_a_program_that_is_stopped_is_killed_when_the_engine_has_ended():
    actor = AgentActor()
    actor.start(["chat", "demo"], KEY, {})
    eventually(lambda: len(descendants(os.getpid())) == 2)
    _, program = sorted(descendants(os.getpid()))
    os.kill(program, signal.SIGSTOP)
    actor.end(0.1)
    assert actor.wait() == "was killed by SIGKILL"
    assert not is_running(program)


def test_a_program_that_ends_in_time_is_not_killed():
    actor = AgentActor()
    actor.start(["--version"], KEY, {})
    actor.end(60.0)
    assert actor.wait() == "exited with 0"


def test_an_actor_whose_program_was_not_started_has_nothing_to_end():
    AgentActor().end(60.0)
