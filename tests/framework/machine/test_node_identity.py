"""Identity of a node: equal for processes that can share memory and the loopback address."""

import os
import shutil
import socket
import subprocess
import sys

import pytest

from quire.machine.node_identity import node_id

PRINT = "from quire.machine.node_identity import node_id; print(node_id())"


def node_of(*wrapper):
    """Identity of the node of a new process, started through a command."""
    found = subprocess.run([*wrapper, sys.executable, "-c", PRINT], capture_output=True, text=True)
    if wrapper and found.returncode:
        pytest.skip(f"{wrapper[0]} is not permitted here: {found.stderr}")
    return found.stdout.strip()


def test_processes_of_one_user_on_one_machine_are_on_one_node():
    assert node_of() == node_id()


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare")
@pytest.mark.parametrize(
    "namespaces", [["--net"], ["--pid", "--fork", "--mount-proc"]], ids=["network", "processes"]
)
def test_a_container_is_a_node_of_its_own(namespaces):
    assert node_of("unshare", *namespaces) != node_id()


def test_another_user_of_the_machine_is_on_another_node(monkeypatch):
    own = node_id()
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    assert node_id() != own


@pytest.fixture
def proc(tmp_path):
    """A /proc of a machine; returns the identity of its node."""

    def make(boot="one", net="net:[1]"):
        shutil.rmtree(tmp_path)
        (tmp_path / "sys/kernel/random").mkdir(parents=True)
        (tmp_path / "sys/kernel/random/boot_id").write_text(f"{boot}\n")
        (tmp_path / "self/ns").mkdir(parents=True)
        (tmp_path / "self/ns/pid").symlink_to("pid:[1]")
        (tmp_path / "self/ns/net").symlink_to(net)
        return node_id(tmp_path)

    return make


def test_machines_are_told_apart_though_the_first_namespaces_have_the_same_numbers(proc):
    assert proc(boot="one") == proc(boot="one")
    assert proc(boot="one") != proc(boot="other")
    assert proc(net="net:[1]") != proc(net="net:[2]")
    assert "\n" not in proc()


def test_a_system_that_does_not_tell_is_known_by_its_name(tmp_path, monkeypatch):
    own = node_id(tmp_path)
    assert own == node_id(tmp_path)
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    assert node_id(tmp_path) != own
