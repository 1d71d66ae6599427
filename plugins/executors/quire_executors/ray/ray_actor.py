"""The actor of a rank: it starts `quire worker`, and waits for its end.

Imported by Ray's workers on every node, with the quire that is installed there.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from quire_executors.ray.ray_relay import KILL

RELAY = "quire_executors.ray.ray_relay"
END_GROUP = "end"  # concurrency group of `end`, which is called while `wait` waits


class AgentActor:
    """The process of `quire worker`, which ends with the engine, not with the actor."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._failure = "was not started"
        self._raylet = os.getppid()

    def start(self, arguments: Sequence[str], key: str, environment: Mapping[str, str]) -> None:
        """Start `quire`; `wait` says if it cannot be started.

        Args:
            arguments: Command line after `quire`.
            key: Secret for its standard input.
            environment: Variables to set, beside those that Ray has set for the actor.
        """
        python = [sys.executable, "-P", "-m"]
        command = [*python, RELAY, *python, "quire.cli", *arguments]
        variables = dict(os.environ) | dict(environment)
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, env=variables)
        except OSError as error:
            self._failure = f"could not be started: {error}"
        else:
            _write(self._process, key)

    def wait(self) -> str:
        """Wait for its end, and return how it ended, for people."""
        if self._process is None:
            return self._failure
        code = self._process.wait()
        if os.getppid() != self._raylet:
            os._exit(0)  # Ray does not end an actor that was busy when its raylet died
        return f"exited with {code}" if code >= 0 else f"was killed by {_signal_name(-code)}"

    def end(self, timeout_s: float) -> None:
        """Wait until it has ended, which it does with the engine, and else kill it.

        It is called in a concurrency group of its own.
        """
        if self._process is None:
            return
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.send_signal(KILL)


def worker_arguments(address: str, rank: int, host_ip: str) -> list[str]:
    """Return the command line of a rank after `quire`; the key goes to the standard input.

    Args:
        address: Host and port of the engine.
        rank: The rank.
        host_ip: Address of the rank's node, at which it listens for other ranks.
    """
    join = ["--join", address, "--key-file", "-"]
    return ["worker", *join, "--rank", str(rank), "--host-ip", host_ip]


def _write(process: subprocess.Popen[bytes], key: str) -> None:
    """Write the key; if the process has ended already, `wait` says how."""
    if process.stdin is None:
        raise RuntimeError("the process has no standard input")
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(f"{key}\n".encode())
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no names
        return f"signal {number}"
