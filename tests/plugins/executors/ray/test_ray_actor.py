"""The actor of a rank, without Ray: its command line, the key, and the end of its process."""

import os
import signal
from pathlib import Path

from processes import descendants, eventually

from quire_executors.ray.ray_actor import AgentActor, worker_arguments

KEY = "5ec2e7" * 10
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
    (child,) = descendants(os.getpid())
    for file in ("cmdline", "environ"):
        assert KEY not in Path(f"/proc/{child}/{file}").read_text()
    os.kill(child, signal.SIGKILL)
    assert actor.wait() == "was killed by SIGKILL"
    eventually(lambda: not descendants(os.getpid()))


def test_an_actor_that_started_nothing_says_so():
    assert AgentActor().wait() == "was not started"


def test_a_process_that_cannot_be_started_is_no_error_of_the_actor():
    actor = AgentActor()
    actor.start(["worker"], KEY, {"LONG": "a" * 2**21})
    assert "could not be started" in actor.wait()
