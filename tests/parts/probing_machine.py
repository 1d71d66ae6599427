"""A process on a machine that listens for probes, and probes the others: an agent without ranks.

python probing_machine.py HOST; it prints its target, or its error. Each line of its input has the
time limit and the targets of all; the answer to it has the reasons.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from network_namespaces import Machine
from processes import path_with

from quire.errors import SettingsError
from quire.launch.workers.nodes.reachability import ProbeListener, ProbeTarget, probe


class ProbingMachines:
    """Such a process on each machine. Use it in a `with` block, whose end ends them.

    Args:
        machines: The machines.
        hosts: Address that each one offers.
    """

    def __init__(self, machines: Sequence[Machine], hosts: Sequence[str]) -> None:
        environment = {**os.environ, "PYTHONPATH": path_with(Path(__file__).parent)}
        self._processes = [
            subprocess.Popen(
                machine.command(sys.executable, __file__, host),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
            )
            for machine, host in zip(machines, hosts, strict=True)
        ]

    def __enter__(self) -> ProbingMachines:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            try:
                process.communicate(timeout=20)
            finally:
                process.kill()

    def targets(self) -> list[ProbeTarget | str]:
        """The target of each, or its error."""
        return [
            msgspec.json.decode(line, type=ProbeTarget | str)  # type: ignore[arg-type]
            for line in self._lines()
        ]

    def reasons(self, targets: Sequence[ProbeTarget], timeout_s: float) -> list[list[str | None]]:
        """Make all probe all at the same time."""
        line = msgspec.json.encode((timeout_s, targets)) + b"\n"
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(line)
            process.stdin.flush()
        return [msgspec.json.decode(found, type=list[str | None]) for found in self._lines()]

    def _lines(self) -> list[bytes]:
        return [process.stdout.readline() for process in self._processes if process.stdout]


def main(host: str) -> None:
    try:
        listener = ProbeListener(host)
    except SettingsError as error:
        _print(str(error))
        return
    with listener:
        _print(listener.target)
        for line in sys.stdin.buffer:
            timeout_s, targets = msgspec.json.decode(line, type=tuple[float, list[ProbeTarget]])
            _print(probe(targets, timeout_s))


def _print(value: object) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(sys.argv[1])
