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
        folder: Folder for the key and the logs.
        host: Address of the engine.
        has_key: Whether there is a key; else the engine writes one.
    """

    folder: Path
    host: str = "127.0.0.1"
    has_key: bool = True
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.address = f"{self.host}:{free_port()}"
        self.key_file = self.folder / "launch.key"
        if self.has_key:
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
    ) -> subprocess.Popen[bytes]:
        """Start the agent of some ranks, on this machine or on another one."""
        words = ["worker", "--join", self.address, "--key-file", str(key_file or self.key_file)]
        words += ["--rank", str(first_rank), "--count", str(count), *more]
        command = [sys.executable, "-m", "quire.cli", *words]
        if machine is not None:
            command = machine.command(*command)
        with open(self._log_file(len(self.started)), "w") as log:
            self.started.append(subprocess.Popen(command, stderr=log))
        return self.started[-1]

    def log(self, agent: subprocess.Popen[bytes]) -> str:
        """Return what an agent has logged."""
        return self._log_file(self.started.index(agent)).read_text()

    def end(self, agent: subprocess.Popen[bytes], timeout_s: float = WAIT_S) -> tuple[int, str]:
        """Wait until an agent has ended; return its exit status and its log."""
        return agent.wait(timeout_s), self.log(agent)

    def close(self) -> None:
        """Kill the agents that are left."""
        for agent in self.started:
            agent.kill()
            agent.wait()

    def _log_file(self, index: int) -> Path:
        return self.folder / f"agent-{index}.log"


def free_port() -> int:
    """Return a port of 127.0.0.1 on which nothing listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
