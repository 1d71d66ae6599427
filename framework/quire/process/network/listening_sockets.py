"""Listening sockets of this process, and a packet filter that lets no more connections be opened.

The kernel then drops every packet that would open a connection, and those that are open go on.
"""

import ctypes
import os
import socket
import struct
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

_OPEN_FILES = Path("/proc/self/fd")
_SO_ATTACH_FILTER = 26
_DROP_ALL = struct.pack("HBBI", 6, 0, 0, 0)  # one instruction of a packet filter: keep 0 bytes


def listening_sockets(host: str) -> dict[str, int]:
    """Return the file descriptors of this process that listen at an IP address.

    Returns:
        A descriptor by the name of its socket, which no other socket has meanwhile.
    """
    found = {}
    for entry in _OPEN_FILES.iterdir():
        with suppress(OSError):  # another thread has closed it
            name = os.readlink(entry)
            if name.startswith("socket:") and _listens_at(int(entry.name), host):
                found[name] = int(entry.name)
    return found


def admit_no_more(fd: int) -> None:
    """Let no more connections be opened at a listening socket, for good.

    Raises:
        OSError: The system has no packet filters.
    """
    instructions = ctypes.create_string_buffer(_DROP_ALL)
    program = struct.pack("HL", 1, ctypes.addressof(instructions))  # struct sock_fprog
    with duplicate_socket(fd) as listener:
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


def duplicate_socket(fd: int) -> socket.socket:
    """Return the socket of a descriptor with another one, which the caller closes.

    Raises:
        OSError: The descriptor is of something else.
    """
    duplicate = os.dup(fd)
    try:
        return socket.socket(fileno=duplicate)
    except OSError:
        os.close(duplicate)
        raise


def _listens_at(fd: int, host: str) -> bool:
    """Whether a descriptor is of a listening TCP socket with an address.

    Raises:
        OSError: It is no longer open.
    """
    with duplicate_socket(fd) as probe:
        if probe.family not in (socket.AF_INET, socket.AF_INET6):
            return False
        if not probe.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return False
        return ip_address(probe.getsockname()[0]) == ip_address(host)
