"""A Ray cluster of two nodes on this machine, and the processes that engines start in it."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from processes import command_of, descendants, eventually, is_running

from quire.process.children.watchdog import NAME

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
    "relay": r"quire_executors\.ray\.ray_relay",
    "agent": r"^(?!.*ray_relay).*quire\.cli worker --join",
    "worker": r"quire\.launch\.workers\.worker_process",
}
WAIT_S = 30.0
seen: dict[int, int] = {}  # starts of processes of the family, whose parents may have died since


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
    """Return the processes that this one, its cluster and its engines have started.

    Those whose parent has died count if they were seen before. They are not adopted, as Ray's
    workers look whether their parent is process 1 to notice that their raylet has died.
    """
    found = descendants(os.getpid())
    for pid in [pid for pid, start in seen.items() if pid not in found and _is(pid, start)]:
        found |= {pid: command_of(pid)} | descendants(pid)
    for pid in found:
        with contextlib.suppress(OSError):
            seen[pid] = _start_of(pid)
    return found


def processes_of(role: str) -> list[int]:
    """Return the processes with a role, in the order of their start."""
    found = [pid for pid, command in family().items() if re.search(ROLES[role], command)]
    return sorted(pid for pid in found if not _is_watchdog(pid))


def engine_processes() -> set[int]:
    """Return the processes that belong to engines."""
    return {pid for role in ROLES for pid in processes_of(role)}


def raylets_of(address: str) -> list[int]:
    """Return the raylets of the cluster at an address."""
    commands = family().items()
    return [pid for pid, text in commands if "/raylet/raylet " in text and address in text]


def last_head() -> int:
    """Return the head's process of the cluster that was started last."""
    heads = [pid for pid, text in family().items() if "/gcs/gcs_server" in text]
    return max(heads, key=_start_of)


def _is(pid: int, start: int) -> bool:
    """Whether a process still is the one that started then."""
    with contextlib.suppress(OSError):
        return is_running(pid) and _start_of(pid) == start
    return False


def _start_of(pid: int) -> int:
    """Return when a process started, in ticks of the machine."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def _is_watchdog(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip() == NAME
    return True  # it has ended


def kill(role: str, index: int = -1) -> int:
    """Kill a process by its role; return its id."""
    pid = processes_of(role)[index]
    os.kill(pid, signal.SIGKILL)
    return pid
