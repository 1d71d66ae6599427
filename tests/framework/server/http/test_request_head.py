"""The head of a request, and the path that the guard and the routes see."""

import pytest

from quire.server.http.request_head import checked_head
from quire.server.wire.http_errors import HTTPError

HOST = [(b"host", b"127.0.0.1")]


@pytest.mark.parametrize(
    ("target", "path", "query", "host"),
    [
        (b"/v1/models", "/v1/models", b"", b"127.0.0.1"),
        (b"/a%20b%2fc?d=%20", "/a b/c", b"d=%20", b"127.0.0.1"),
        (b"//evil/livez", "//evil/livez", b"", b"127.0.0.1"),
        (b"*", "*", b"", b"127.0.0.1"),
        (b"http://other:8000/a?b/c", "/a", b"b/c", b"other:8000"),
        (b"HTTPS://other", "/", b"", b"other"),
        (b"http://other?b", "/", b"b", b"other"),
        (b"http://[::1]:80//a", "//a", b"", b"[::1]:80"),
    ],
)
def test_the_target_is_a_path_and_an_absolute_one_has_the_host(target, path, query, host):
    head = checked_head(b"GET", target, [*HOST, (b"x", b"y")], "1.1")
    scope = head.scope(client=("10.0.0.1", 5))
    assert (scope["path"], scope["query_string"]) == (path, query)
    assert scope["headers"] == [(b"host", host), (b"x", b"y")]
    assert (scope["method"], scope["http_version"], scope["client"]) == (
        "GET",
        "1.1",
        ("10.0.0.1", 5),
    )


@pytest.mark.parametrize(
    "target", [b"evil", b"ftp://a/b", b"http:///b", b"http://u@a/b", b"http://[a/b", b"\xff", b"?a"]
)
def test_another_target_is_refused(target):
    with pytest.raises(HTTPError) as raised:
        checked_head(b"GET", target, HOST, "1.1")
    assert raised.value.status == 400
    assert raised.value.headers == {"connection": "close"}


def test_the_older_version_may_leave_out_the_host():
    assert checked_head(b"GET", b"/", [], "1.0").version == "1.0"
    for headers, version in ([], "1.1"), (HOST * 2, "1.1"), (HOST * 2, "1.0"):
        with pytest.raises(HTTPError, match="one Host"):
            checked_head(b"GET", b"/", headers, version)


@pytest.mark.parametrize("codings", [[b"gzip, chunked"], [b"gzip", b"chunked"], [b"identity"]])
def test_a_transfer_coding_that_nothing_undoes_is_refused(codings):
    headers = [*HOST, *((b"transfer-encoding", coding) for coding in codings)]
    with pytest.raises(HTTPError, match="chunked") as raised:
        checked_head(b"POST", b"/", headers, "1.1")
    assert (raised.value.status, raised.value.headers) == (501, {"connection": "close"})
    checked_head(b"POST", b"/", [*HOST, (b"transfer-encoding", b"Chunked")], "1.1")
