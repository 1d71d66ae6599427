"""Machines of tests, which are namespaces: their network does as told, and nothing is left."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import network_namespaces
import pytest
from network_namespaces import Network
from processes import eventually

SERVE = """
import socket, sys
server = socket.create_server((sys.argv[1], 0))
print(server.getsockname()[1], flush=True)
while True:
    connection, _ = server.accept()
    with connection:
        while data := connection.recv(2**16):
            connection.sendall(data)
"""
ASK = """
import socket, sys, time
host, port, size, timeout = sys.argv[1], *map(int, sys.argv[2:])
started = time.monotonic()
try:
    with socket.create_connection((host, port), timeout) as connection:
        connection.sendall(bytes(size))
        while size:
            size -= len(connection.recv(size))
    print(time.monotonic() - started)
except OSError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def whole_network():
    with Network(2) as network:
        yield network


@pytest.fixture
def network(whole_network):
    yield whole_network
    whole_network.repair()


@contextmanager
def serving(machine, host):
    """A server on a machine that sends back what it gets; its port."""
    command = machine.command(sys.executable, "-c", SERVE, host)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield int(server.stdout.readline())
        finally:
            server.kill()


def asked(machine, host, port, size=1, timeout_s=1):
    """The seconds until a server has sent everything back, or the error."""
    command = machine.command(sys.executable, "-c", ASK, host, port, size, timeout_s)
    text = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    return float(text) if text[0].isdigit() else text.strip()


def test_machines_have_names_and_addresses_and_reach_each_other(network):
    first, second = network.machines
    for machine in network.machines:
        name = subprocess.run(machine.command("hostname"), capture_output=True, check=True)
        assert name.stdout.decode().strip() == machine.name != socket.gethostname()
    with serving(second, second.address) as port:
        assert second.listeners() == [(second.address, port)]
        assert first.listeners() == []
        assert asked(first, second.address, port, 10**6, 20) > 0
    assert first.namespaces != second.namespaces


def test_the_second_interface_reaches_no_other_machine(network):
    first, second = network.machines
    with serving(second, second.other_address) as port:
        assert asked(first, second.other_address, port) == "timed out"
        assert asked(second, second.other_address, port) > 0


def test_a_delay_is_that_of_each_packet(network):
    first, second = network.machines
    network.change(delay_s=0.15)
    with serving(second, second.address) as port:
        assert asked(first, second.address, port, timeout_s=20) > 4 * 0.15


def test_a_share_of_the_packets_is_lost_and_sent_again(network):
    first, second = network.machines
    network.change(loss=0.05)
    before = network.counts()
    with serving(second, second.address) as port:
        assert asked(first, second.address, port, 10**6, 60) > 0
    after = network.counts()
    share = (after.lost - before.lost) / (after.lost - before.lost + after.passed - before.passed)
    assert 0.02 < share < 0.1


@pytest.mark.parametrize("direction", [None, 1, -1], ids=["both ways", "to it", "from it"])
def test_a_link_that_is_cut_in_either_direction_passes_nothing_until_it_is_repaired(
    network, direction
):
    first, second = network.machines
    with serving(second, second.address) as port:
        ends = network.machines[:: direction or 1]
        network.change(*ends, is_cut=True, one_way=direction is not None)
        assert asked(first, second.address, port) == "timed out"
        network.repair()
        assert asked(first, second.address, port, timeout_s=20) > 0


@pytest.mark.parametrize("end", ["close", "kill"])
def test_nothing_is_left(end):
    before = set(os.listdir("/sys/class/net"))
    with Network(2) as network:
        assert set(os.listdir("/sys/class/net")) == before, "all is in namespaces"
        spaces = {os.readlink(path) for each in network.machines for path in each.namespaces}
        assert len(spaces) == 4
        if end == "kill":
            os.kill(network.pid, signal.SIGKILL)
    eventually(lambda: not spaces & _namespaces())
    assert not Path(f"/proc/{network.pid}").exists()
    started = time.monotonic()
    network.close()
    assert time.monotonic() - started < 5


def _namespaces():
    """Namespaces that a process is in, or holds open."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        for folder in ("ns", "fd"):
            for path in (process / folder).glob("*"):
                try:
                    found.add(os.readlink(path))
                except OSError:
                    continue
    return found


def test_where_namespaces_are_not_permitted_a_test_is_skipped(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(pytest.skip.Exception, match="needs nsenter"):
        Network(2)


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv of util-linux")
def test_what_is_not_permitted_is_said(whole_network):
    command = ["setpriv", "--bounding-set=-sys_admin", sys.executable, network_namespaces.__file__]
    found = subprocess.run([*command, "2"], capture_output=True, check=True, text=True)
    assert json.loads(found.stdout) == {"unavailable": "[Errno 1] unshare: Operation not permitted"}
