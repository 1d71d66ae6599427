"""Ray's head is there as long as something accepts connections at its address."""

import socket

from quire_executors.ray.ray_head import is_reachable


def test_a_head_that_listens_is_reachable():
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert is_reachable(f"127.0.0.1:{server.getsockname()[1]}")


def test_a_head_whose_port_is_closed_is_not():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert not is_reachable(f"127.0.0.1:{port}")


def test_a_head_may_have_an_ipv6_address():
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        assert is_reachable(f"[::1]:{server.getsockname()[1]}")
