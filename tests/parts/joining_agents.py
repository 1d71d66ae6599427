"""Agents of machines as processes: `quire worker --join`, started before the engine listens."""

import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from network_namespaces import Machine

from quire.process.launch_key import LaunchKey

WAIT_S = 60.0


@dataclass
class JoiningAgents:
    """Agents of one engine.

    Args:
        folder: Folder for the key.
        host: Address of the engine.
    """

    folder: Path
    host: str = "127.0.0.1"
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.address = f"{self.host}:{free_port()}"
        self.key_file = self.folder / "launch.key"
        LaunchKey.new().write(self.key_file)

    def options(self) -> dict[str, str]:
        """Return the options of the engine."""
        return {
            "executor": "joined",
            "worker_address": self.address,
            "worker_key_file": str(self.key_file),
        }

    def start(
        self,
        first_rank: int,
        count: int = 1,
        *more: str,
        key_file: Path | None = None,
        machine: Machine | None = None,
    ) -> subprocess.Popen[str]:
        """Start the agent of some ranks, on this machine or on another one."""
        words = ["worker", "--join", self.address, "--key-file", str(key_file or self.key_file)]
        words += ["--rank", str(first_rank), "--count", str(count), *more]
        command = [sys.executable, "-m", "quire.cli", *words]
        if machine is not None:
            command = machine.command(*command)
        agent = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.started.append(agent)
        return agent

    def end(self, agent: subprocess.Popen[str], timeout_s: float = WAIT_S) -> tuple[int, str]:
        """Wait until an agent has ended; return its exit status and its log."""
        _, log = agent.communicate(timeout=timeout_s)
        return agent.returncode, log

    def close(self) -> None:
        """Kill the agents that are left."""
        for agent in self.started:
            agent.kill()
            agent.communicate()


def free_port() -> int:
    """Return a port of 127.0.0.1 on which nothing listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
