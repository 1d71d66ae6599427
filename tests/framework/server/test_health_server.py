"""Health checks answer from their own thread while the server's event loop is blocked."""

import asyncio
import socket
import threading
import time
from types import SimpleNamespace

import httpx
import pytest
from processes import eventually
from scripted_core import ScriptedCore
from server_parts import Texts, make_frontend

from quire.config import ServerSettings
from quire.errors import SettingsError
from quire.server.bound_sockets import bound_socket
from quire.server.http import lifecycle
from quire.server.http_server import HTTPServer


@pytest.fixture
def checked(tokenizer):
    """A server with a health port: its URLs, and its event loop."""
    frontend = make_frontend(tokenizer, ScriptedCore(Texts(tokenizer)))
    settings, urls = ServerSettings(port=0, api_key=("sesame",)), []
    server = HTTPServer(frontend, settings, list, urls.append)
    health = socket.socket()
    health.bind(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{health.getsockname()[1]}"
    thread = threading.Thread(target=server.run, args=([bound_socket(settings)], health))
    thread.start()
    eventually(lambda: urls)
    yield SimpleNamespace(url=url, main_url=urls[0], server=server, frontend=frontend)
    server.stop()
    thread.join(10)
    assert not thread.is_alive()
    assert health.fileno() == -1
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/livez")


def test_it_has_the_health_checks_and_nothing_else(checked):
    for path, status in (("livez", "alive"), ("readyz", "ready"), ("health", "ready")):
        response = httpx.get(f"{checked.url}/{path}")
        assert (response.status_code, response.json()) == (200, {"status": status})
    for path in ("v1/models", "version", "metrics", "livez/", ""):
        response = httpx.get(f"{checked.url}/{path}")
        assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")
    assert httpx.post(f"{checked.url}/livez").status_code == 405
    assert httpx.get(f"{checked.main_url}/health").status_code == 401


def test_it_answers_while_the_main_loop_is_blocked_and_says_so(checked, monkeypatch):
    monkeypatch.setattr(lifecycle, "SILENCE_LIMIT_S", 1.0)
    is_over = threading.Event()
    checked.server._loop.call_soon_threadsafe(is_over.wait, 20)
    try:
        assert httpx.get(f"{checked.url}/livez").status_code == 200
        eventually(lambda: httpx.get(f"{checked.url}/readyz").status_code == 503)
        assert httpx.get(f"{checked.url}/health").json() == {"status": "blocked"}
        assert httpx.get(f"{checked.url}/livez").status_code == 200
    finally:
        is_over.set()
    eventually(lambda: httpx.get(f"{checked.url}/readyz").status_code == 200)


def test_it_sees_that_the_server_drains(checked):
    async def drain():
        checked.server._lifecycle.drain()

    asyncio.run_coroutine_threadsafe(drain(), checked.server._loop).result(5)
    assert httpx.get(f"{checked.url}/readyz").json() == {"status": "draining"}


def test_a_step_that_hangs_is_seen(checked):
    checked.frontend._stall_limit_s = 0.1
    checked.frontend.thread._busy_since = time.monotonic() - 1
    assert httpx.get(f"{checked.url}/health").json() == {"status": "stalled"}
    checked.frontend.thread._busy_since = None


@pytest.mark.parametrize(("port", "message"), [(-1, "0 to 65535"), (8000, "both 8000")])
def test_a_port_that_cannot_be_is_refused(port, message):
    with pytest.raises(SettingsError, match=message):
        ServerSettings(health_port=port)


@pytest.mark.parametrize(("is_open", "status"), [(True, 200), (False, 404)])
def test_it_has_the_metrics_only_if_they_need_no_key(tokenizer, is_open, status):
    frontend = make_frontend(tokenizer, ScriptedCore(Texts(tokenizer)))
    urls, health = [], socket.socket()
    health.bind(("127.0.0.1", 0))
    port = health.getsockname()[1]
    settings = ServerSettings(port=0, api_key=("sesame",), open_metrics=is_open, health_port=port)
    server = HTTPServer(frontend, settings, list, urls.append)
    url = f"http://127.0.0.1:{port}"
    thread = threading.Thread(target=server.run, args=([bound_socket(settings)], health))
    thread.start()
    try:
        eventually(lambda: urls)
        response = httpx.get(f"{url}/metrics")
        main = httpx.get(f"{urls[0]}/metrics")
    finally:
        server.stop()
        thread.join(10)
    assert (response.status_code, main.status_code) == (status, 401)
    assert ("quire_engine_state" in response.text) == is_open
