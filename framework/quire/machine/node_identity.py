"""Identity of a node: processes with the same one can share memory and the loopback address.

Two containers of one machine are two nodes, unless they share processes and network.
"""

import os
import socket
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
BOOT_ID = "sys/kernel/random/boot_id"
NAMESPACES = ("pid", "net")  # the processes that a process can see, and its network


def node_id(proc: Path = PROC) -> str:
    """Return the identity of the node of this process, which lasts until the next boot.

    It consists of the boot of the machine, the namespaces of this process, and its user, because
    shared memory is opened through another process of the same user. Where the system does not
    tell, the name of the host stands in.
    """
    namespaces = [_namespace(proc / "self" / "ns" / name) for name in NAMESPACES]
    return " ".join([_boot(proc / BOOT_ID), *namespaces, f"uid:[{os.getuid()}]"])


def _boot(path: Path) -> str:
    with suppress(OSError):
        return path.read_text().strip()
    return socket.gethostname()


def _namespace(path: Path) -> str:
    with suppress(OSError):
        return os.readlink(path)
    return f"{path.name}:[{socket.gethostname()}]"
