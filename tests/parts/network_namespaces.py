"""Machines on this machine: network namespaces, joined by a network that a process forwards.

    machine 1 | quire0 (10.77.0.1) --\
    machine 2 | quire0 (10.77.0.2) ----> forwarder: drops, delays, passes on
    machine 1 | quire1 (10.76.0.1) --/   drops all: an interface that leads to no other machine

Each link has two directions, whose packets the forwarder can delay, lose by chance, or lose all. It
holds namespaces and interfaces by open files only, so whatever ends it removes them. Addresses that
no machine has lose their packets, as behind a firewall.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import heapq
import json
import os
import random
import select
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, permutations
from typing import Any

import pytest

CLONE_NEWUTS, CLONE_NEWNET = 0x04000000, 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
MAX_PACKET = 2**16
UNAVAILABLE = (errno.EPERM, errno.EACCES, errno.ENOENT, errno.ENODEV, errno.ENOSYS)
START_TIMEOUT_S, END_TIMEOUT_S = 20.0, 10.0
LISTENING = "0A"


@dataclass(frozen=True)
class Machine:
    """A machine of a network.

    Attributes:
        index: Place among the machines.
        name: Host name.
        address: IP address in the network.
        other_address: IP address of an interface at which no other machine reaches it.
        namespaces: Files of its network and of its host name.
    """

    index: int
    name: str
    address: str
    other_address: str
    namespaces: tuple[str, str]

    def command(self, *arguments: object) -> list[str]:
        """The command that runs a command on the machine."""
        net, uts = self.namespaces
        return ["nsenter", f"--net={net}", f"--uts={uts}", *map(str, arguments)]

    def listeners(self) -> list[tuple[str, int]]:
        """Addresses and ports that its processes listen on."""
        tables = self.command("cat", "/proc/self/net/tcp", "/proc/self/net/tcp6")
        text = subprocess.run(tables, capture_output=True, check=True, text=True).stdout
        rows = [line.split() for line in text.splitlines() if ":" in line.split()[0]]
        return sorted(_endpoint(row[1]) for row in rows if row[3] == LISTENING)


@dataclass(frozen=True)
class Counts:
    """Numbers of packets between machines since the start, of all links."""

    passed: int
    lost: int


class Network:
    """Machines and the network between them. Use it in a `with` block, whose end removes both.

    A test that enters it is skipped where namespaces are not permitted.
    """

    def __init__(self, num_machines: int = 2) -> None:
        if shutil.which("nsenter") is None:
            pytest.skip("needs nsenter of util-linux")
        self._forwarder = subprocess.Popen(
            [sys.executable, __file__, str(num_machines)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._forwarder.pid
        try:
            started = self._receive()
            if "unavailable" in started:
                pytest.skip(f"no network of namespaces here: {started['unavailable']}")
        except BaseException:
            self.close()
            raise
        self.machines = [
            Machine(
                index=index,
                name=_name(index),
                address=_address(index),
                other_address=_other_address(index),
                namespaces=(f"/proc/{self.pid}/fd/{net}", f"/proc/{self.pid}/fd/{uts}"),
            )
            for index, (net, uts) in enumerate(started["namespaces"])
        ]

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove all; processes on the machines lose their network."""
        stdin, stdout = self._forwarder.stdin, self._forwarder.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.close()
        try:
            self._forwarder.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._forwarder.kill()
            self._forwarder.wait()
        stdout.close()

    def change(
        self,
        *machines: Machine,
        delay_s: float = 0.0,
        loss: float = 0.0,
        is_cut: bool = False,
        one_way: bool = False,
    ) -> None:
        """Change the links among some machines, in both directions; by default, of all.

        Args:
            machines: The machines; with `one_way`, the sender and the receiver.
            delay_s: Time that each packet takes.
            loss: Share of the packets that are lost, by chance.
            is_cut: Whether all are lost.
            one_way: Whether the reverse direction stays as it is.
        """
        indices = [machine.index for machine in machines or self.machines]
        links = [indices] if one_way else list(permutations(indices, 2))
        self._ask({"links": links, "conditions": [delay_s, loss, is_cut]})

    def repair(self) -> None:
        """Make all links perfect."""
        self.change()

    def counts(self) -> Counts:
        """Numbers of packets until now."""
        return Counts(*self._ask({})["counts"])

    def _ask(self, command: dict[str, Any]) -> dict[str, Any]:
        assert self._forwarder.stdin is not None
        self._forwarder.stdin.write(json.dumps(command) + "\n")
        self._forwarder.stdin.flush()
        return self._receive()

    def _receive(self) -> dict[str, Any]:
        assert self._forwarder.stdout is not None
        readable, _, _ = select.select([self._forwarder.stdout], [], [], START_TIMEOUT_S)
        line = self._forwarder.stdout.readline() if readable else ""
        if not line:
            raise RuntimeError("the forwarder of the network does not answer; see its error")
        received: dict[str, Any] = json.loads(line)
        return received


def _name(index: int) -> str:
    return f"machine-{index + 1}"


def _address(index: int) -> str:
    return f"10.77.0.{index + 1}"


def _other_address(index: int) -> str:
    return f"10.76.0.{index + 1}"


def _endpoint(text: str) -> tuple[str, int]:
    """Address and port of a row of /proc/net/tcp: words in the byte order of the machine."""
    address, port = text.split(":")
    words = bytes.fromhex(address)
    packed = b"".join(words[i : i + 4][::-1] for i in range(0, len(words), 4))
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    return socket.inet_ntop(family, packed), int(port, 16)


class Forwarder:
    """Passes packets between interfaces.

    Args:
        interfaces: Open file of the interface of each machine.
        silent: Open files of interfaces whose packets are lost.
    """

    def __init__(self, interfaces: Sequence[int], silent: Sequence[int]) -> None:
        self._interfaces = list(interfaces)
        self._silent = set(silent)
        self._by_address = {
            socket.inet_aton(_address(index)): index for index in range(len(interfaces))
        }
        self._conditions: dict[tuple[int, int], tuple[float, float, bool]] = {}
        self._delayed: list[tuple[float, int, int, int, bytes]] = []
        self._numbers = count()
        self._random = random.Random(0)
        self._passed = self._lost = 0

    def run(self) -> None:
        """Forward until the standard input is closed."""
        poll = select.poll()
        for fd in (0, *self._interfaces, *self._silent):
            poll.register(fd, select.POLLIN)
        commands = b""
        while True:
            due_s = self._delayed[0][0] - time.monotonic() if self._delayed else None
            for fd, _ in poll.poll(None if due_s is None else max(0.0, due_s) * 1000):
                if fd in self._silent:
                    os.read(fd, MAX_PACKET)
                elif fd:
                    self._take(self._interfaces.index(fd), os.read(fd, MAX_PACKET))
                elif not (part := os.read(0, MAX_PACKET)):
                    return
                else:
                    *lines, commands = (commands + part).split(b"\n")
                    for line in lines:
                        self._obey(json.loads(line))
            while self._delayed and self._delayed[0][0] <= time.monotonic():
                _, _, source, target, packet = heapq.heappop(self._delayed)
                self._pass(source, target, packet)

    def _obey(self, command: dict[str, Any]) -> None:
        for source, target in command.get("links", []):
            self._conditions[source, target] = tuple(command["conditions"])
        print(json.dumps({"counts": [self._passed, self._lost]}), flush=True)

    def _take(self, source: int, packet: bytes) -> None:
        target = self._by_address.get(packet[16:20]) if packet[0] >> 4 == 4 else None
        if target is None:
            return
        delay_s, loss, _ = self._condition(source, target)
        if self._random.random() < loss:
            self._lost += 1
        elif delay_s:
            due_s = time.monotonic() + delay_s
            heapq.heappush(self._delayed, (due_s, next(self._numbers), source, target, packet))
        else:
            self._pass(source, target, packet)

    def _pass(self, source: int, target: int, packet: bytes) -> None:
        if self._condition(source, target)[2]:
            self._lost += 1
        else:
            self._passed += 1
            os.write(self._interfaces[target], packet)

    def _condition(self, source: int, target: int) -> tuple[float, float, bool]:
        return self._conditions.get((source, target), (0.0, 0.0, False))


def forward(num_machines: int) -> None:
    """Make the machines, say which, and forward their packets until the input is closed."""
    made = []
    try:
        for index in range(num_machines):
            _unshare(CLONE_NEWNET | CLONE_NEWUTS)
            socket.sethostname(_name(index))
            interface = _open_interface("quire0", f"{_address(index)}/24")
            silent = _open_interface("quire1", f"{_other_address(index)}/24")
            _ip("link", "set", "lo", "up")
            _ip("route", "add", "default", "dev", "quire0")
            spaces = [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in ("net", "uts")]
            made.append((interface, silent, spaces))
    except OSError as error:
        if error.errno not in UNAVAILABLE:
            raise
        print(json.dumps({"unavailable": str(error)}), flush=True)
        return
    print(json.dumps({"namespaces": [spaces for *_, spaces in made]}), flush=True)
    Forwarder([each[0] for each in made], [each[1] for each in made]).run()


def _unshare(flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags):
        number = ctypes.get_errno()
        raise OSError(number, f"unshare: {os.strerror(number)}")


def _open_interface(name: str, network: str) -> int:
    fd = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    _ip("addr", "add", network, "dev", name)
    _ip("link", "set", name, "up")
    return fd


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)


if __name__ == "__main__":
    forward(int(sys.argv[1]))
