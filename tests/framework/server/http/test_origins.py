"""Which names are this machine, and which pages may send what."""

import pytest

from quire.server.http.origins import is_loopback


@pytest.mark.parametrize(
    ("host", "wanted"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("LocalHost", True),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
        ("localhost.evil.example", False),
        ("", False),
    ],
)
def test_loopback_means_this_machine_only(host, wanted):
    assert is_loopback(host) is wanted
