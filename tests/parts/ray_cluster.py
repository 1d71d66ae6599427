"""A Ray cluster of two nodes on this machine, and the processes that engines start in it."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from processes import descendants, eventually, is_running

from quire.process.watchdog import NAME

# Ray's own processes end with the process that started them, so a process of its own starts them.
START = """
import sys
from ray.cluster_utils import Cluster

cluster = Cluster(
    initialize_head=True, head_node_args={"num_cpus": int(sys.argv[1]), "include_dashboard": False}
)
for num_cpus in sys.argv[2:]:
    cluster.add_node(num_cpus=int(num_cpus))
print("at", cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""
ROLES = {  # by command line
    "driver": r"helper_process .*quire_executors\.ray\.ray_driver",
    "actor": r"^ray::AgentActor",
    "agent": r"quire\.cli worker --join",
    "worker": r"quire\.launch\.workers\.worker_process",
}
WAIT_S = 30.0


@contextlib.contextmanager
def running_cluster(*num_cpus: int) -> Iterator[str]:
    """Run a cluster of nodes with some CPUs each; yields its address. Nothing of it is left."""
    command = [sys.executable, "-c", START, *map(str, num_cpus)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            said = ""
            while not said.startswith("at "):
                said = process.stdout.readline()
                assert said, "the cluster did not start"
            yield said.split()[1]
        finally:
            family = descendants(process.pid)
            process.stdin.close()
            process.wait(WAIT_S)
            eventually(lambda: not any(map(is_running, family)), WAIT_S)


def family() -> dict[int, str]:
    """Return the processes that this one, its cluster and its engines have started."""
    return descendants(os.getpid())


def processes_of(role: str) -> list[int]:
    """Return the processes with a role, in the order of their start."""
    found = [pid for pid, command in family().items() if re.search(ROLES[role], command)]
    return sorted(pid for pid in found if not _is_watchdog(pid))


def engine_processes() -> set[int]:
    """Return the processes that belong to engines."""
    return {pid for role in ("driver", "actor", "agent", "worker") for pid in processes_of(role)}


def raylets_of(address: str) -> list[int]:
    """Return the raylets of the cluster at an address."""
    commands = family().items()
    return [pid for pid, text in commands if "/raylet/raylet " in text and address in text]


def _is_watchdog(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip() == NAME
    return True  # it has ended


def kill(role: str, index: int = -1) -> int:
    """Kill a process by its role; return its id."""
    pid = processes_of(role)[index]
    os.kill(pid, signal.SIGKILL)
    return pid
