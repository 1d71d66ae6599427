"""Whether machines reach each other: every failure is named, and nothing disturbs a listener."""

import os
import socket
import struct
import threading
from contextlib import ExitStack, contextmanager

import pytest

from quire.errors import SettingsError
from quire.launch.workers.nodes.reachability import (
    ANOTHER,
    TOKEN_BYTES,
    ProbeListener,
    ProbeTarget,
    check_reachability,
    probe,
)

PATIENCE_S = 20.0  # far more than a connection on one machine takes
TARGET = ProbeTarget("10.0.0.1", 4711, b"a" * TOKEN_BYTES)


@pytest.fixture
def listener():
    with ProbeListener("127.0.0.1") as made:
        yield made


@contextmanager
def answering(*parts: bytes, end=True):
    """A server that is not quire's: it sends some bytes and, perhaps, hangs up."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

        def serve():
            connection = stack.enter_context(server.accept()[0])
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for part in parts:
                connection.sendall(part)
                threading.Event().wait(0.05)
            if end:
                connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield ProbeTarget(*server.getsockname(), TARGET.token)
        thread.join()


def test_machines_that_reach_each_other_have_no_reason():
    with ProbeListener("127.0.0.1") as first, ProbeListener("127.0.0.2") as second:
        targets = [first.target, second.target, first.target]
        assert probe(targets, PATIENCE_S) == [None] * 3
        assert probe(targets, PATIENCE_S) == [None] * 3
    assert probe([], PATIENCE_S) == []


@pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")
def test_addresses_may_be_of_the_second_protocol():
    try:
        listener = ProbeListener("::1")
    except SettingsError as error:
        pytest.skip(str(error))
    with listener:
        assert listener.target.host == "::1"
        assert probe([listener.target], PATIENCE_S) == [None]


def test_a_listener_is_at_its_own_address_only_until_it_is_closed():
    with ProbeListener("127.0.0.2") as listener:
        elsewhere = ProbeTarget("127.0.0.1", listener.target.port, listener.target.token)
        assert probe([elsewhere], PATIENCE_S) == ["Connection refused"]
    assert probe([listener.target], PATIENCE_S) == ["Connection refused"]
    listener.close()
    assert not listener._thread.is_alive()


def test_every_listener_has_an_answer_of_its_own(listener):
    with ProbeListener("127.0.0.1") as other:
        assert len(listener.target.token) == len(other.target.token) == TOKEN_BYTES
        mistaken = ProbeTarget("127.0.0.1", other.target.port, listener.target.token)
        assert probe([mistaken, listener.target], PATIENCE_S) == [ANOTHER, None]


@pytest.mark.parametrize(
    "parts",
    [[], [b"a"], [b"b" * TOKEN_BYTES], [b"SSH-2.0-OpenSSH_9.2p1 and more"]],
    ids=["nothing", "too little", "another number", "another protocol"],
)
def test_another_program_is_not_taken_for_a_machine(parts):
    with answering(*parts) as target:
        assert probe([target], PATIENCE_S) == [ANOTHER]


def test_an_answer_may_come_in_parts():
    with answering(b"aaaa", b"a" * 10, b"aa", end=False) as target:
        assert probe([target], PATIENCE_S) == [None]


def test_a_silent_target_takes_no_longer_than_the_limit_and_delays_no_other(listener):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = ProbeTarget(*silent.getsockname(), TARGET.token)
        assert probe([target, listener.target], 0.3) == ["no answer within 0.3 s", None]


def test_an_address_that_no_route_leads_to_is_a_reason_and_no_error(listener):
    nowhere = ProbeTarget("255.255.255.255", 9, TARGET.token)
    reason, reached = probe([nowhere, listener.target], PATIENCE_S)
    assert reason
    assert reached is None


def test_a_listener_answers_whatever_else_connects(listener):
    address = (listener.target.host, listener.target.port)
    with ExitStack() as stack:
        for index in range(200):
            connection = stack.enter_context(socket.create_connection(address))
            if index % 3 == 0:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.close()  # by a reset
            elif index % 3 == 1:
                connection.sendall(os.urandom(1000))
        assert probe([listener.target] * 3, PATIENCE_S) == [None] * 3


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "localhost", "203.0.113.77"])
def test_an_address_that_is_not_an_interface_is_refused(host):
    with pytest.raises(SettingsError, match="listen on"):
        ProbeListener(host)


def test_machines_that_reach_each_other_pass():
    check_reachability(["a", "b"], [TARGET, TARGET], [[None, None], [None, None]])


def test_every_failure_is_a_line_that_names_ranks_addresses_reason_and_way_out():
    names = ["ranks 0 to 3 on alpha", "rank 4 on beta", "rank 5 on gamma"]
    hosts = ["10.0.0.1", "127.0.0.1", "10.0.0.3"]
    targets = [ProbeTarget(host, 4711, TARGET.token) for host in hosts]
    late, refused = "no answer within 5 s", "Connection refused"
    reasons = [[None, refused, None], [late, None, None], [None, refused, None]]
    with pytest.raises(SettingsError) as caught:
        check_reachability(names, targets, reasons)
    head, *lines = str(caught.value).splitlines()
    assert head == "the machines cannot all reach each other:"
    assert [line.split("; start its agent with --host-ip ")[0] for line in lines] == [
        f"10.0.0.1 of {names[0]} cannot be reached from {names[1]}: {late}",
        f"127.0.0.1, a loopback address, of {names[1]} cannot be reached from {names[0]}, "
        f"{names[2]}: {refused}",
    ]
    assert all("--host-ip" in line for line in lines)


def test_one_address_that_fails_for_two_reasons_has_two_lines():
    reasons = [[None, "one"], [None, None], [None, "two"]]
    with pytest.raises(SettingsError) as caught:
        check_reachability(["a", "b", "c"], [TARGET] * 2 + [TARGET], [[*r, None] for r in reasons])
    lines = str(caught.value).splitlines()[1:]
    assert [line.split(";")[0].split(" cannot be reached ")[1] for line in lines] == [
        "from a: one",
        "from c: two",
    ]
