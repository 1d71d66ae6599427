"""A line of the access log says who asked for what and what came of it, and repeats no text."""

import asyncio
import json
import os

import httpx
import pytest
from asgi_parts import JSON, Wire, call, scope_of

from quire.config import ServerSettings
from quire.errors import SettingsError
from quire.messages import ErrorReport
from quire.server.app import create_app
from quire.server.http.lifecycle import Lifecycle
from quire.server.keys.api_key import digest_of
from quire.server.observe.access_log import AccessLog, line_of
from quire.server.observe.line_writer import LineWriter
from quire.server.observe.monitor import Monitor
from quire.server.observe.observed_exchange import ObservedExchange

CHAT = "/v1/chat/completions"
KEY_NAME = f"key-{digest_of(b'sk-canary').hex()[:8]}"


@pytest.fixture
def logged(frontend, tmp_path):
    """Send requests to an application; return the objects of its access log."""

    def run(*asked, leaves=False, **settings):
        path = tmp_path / "access.log"
        given, lifecycle = ServerSettings(access_log=str(path), **settings), Lifecycle()
        monitor = Monitor(frontend, given, lifecycle)
        app = create_app(frontend, given, list, lifecycle, monitor=monitor)

        async def send():
            for path, headers, body in asked:
                wire = Wire(json.dumps(body).encode(), leaves=leaves)
                await call(app, wire, scope_of(path, headers=JSON | headers))

        asyncio.run(send())
        monitor.close()
        text = path.read_text(encoding="ascii")
        return [json.loads(line) for line in text.splitlines()], text

    return run


def chat(**fields):
    return {"messages": [{"role": "user", "content": "my secret"}]} | fields


def test_a_completion_is_logged_with_its_usage(logged, core):
    core.num_cached_tokens = 1
    (line,), text = logged((CHAT, {"x-request-id": "mine"}, chat(n=2, max_tokens=3)))
    assert (line["request_id"], line["client"]) == ("mine", "127.0.0.1")
    assert (line["method"], line["path"], line["status"]) == ("POST", CHAT, 200)
    assert line["model"] == "demo"
    assert (line["cached_tokens"], line["completion_tokens"]) == (1, 6)
    assert line["prompt_tokens"] > 1
    assert line["finish_reasons"] == ["length", "length"]
    assert 0 < line["ttft_s"] <= line["duration_s"]
    assert line["error_code"] is None
    assert line["time"].endswith("Z")
    assert "secret" not in text


def test_a_stream_is_logged_once_at_its_end(logged):
    (line,), _ = logged((CHAT, {}, chat(stream=True, model="pirate")))
    assert (line["status"], line["model"], line["finish_reasons"]) == (200, "pirate", ["stop"])
    assert line["completion_tokens"] > 1


def test_what_is_generated_in_the_background_is_logged_at_its_end(serve, tmp_path, wait_for):
    path = tmp_path / "access.log"
    served = serve(access_log=str(path))
    served.core.step_s = 0.02
    served.texts.by_prompt = {"Bad": ("word", ErrorReport("request_failed", "it broke"))}
    for question in ("Good", "Bad"):
        body = {"input": question, "background": True}
        assert httpx.post(f"{served.url}/v1/responses", json=body).is_success
        assert path.read_text() == "" or question == "Bad"
    assert wait_for(lambda: path.read_text().count("\n") == 2)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    good, bad = sorted(lines, key=lambda line: str(line["error_code"]))
    assert (good["path"], good["status"], good["error_code"]) == ("/v1/responses", 200, None)
    assert (good["finish_reasons"], bad["finish_reasons"]) == (["stop"], ["error"])
    assert good["completion_tokens"] > 3
    assert good["duration_s"] > good["ttft_s"]
    assert (bad["status"], bad["error_code"]) == (200, "request_failed")


def test_a_client_that_leaves_is_logged_with_an_abort(logged, core):
    core.step_s = 0.05
    (line,), _ = logged((CHAT, {}, chat(stream=True)), leaves=True)
    assert line["finish_reasons"] in (["abort"], [])


def test_refusals_are_logged_with_their_code_and_without_the_key(logged):
    headers = {"authorization": "Bearer sk-wrong"}
    lines, text = logged(
        (CHAT, headers, chat()),
        (CHAT, {"authorization": "Bearer sk-canary"}, chat(n=0)),
        ("/nowhere", {"authorization": "Bearer sk-canary"}, {}),
        api_key=("sk-canary",),
    )
    assert [line["status"] for line in lines] == [401, 400, 404]
    assert [line["error_code"] for line in lines] == [
        "invalid_api_key", "invalid_request", "not_found",
    ]  # fmt: skip
    assert [line["client"] for line in lines] == [
        "127.0.0.1",
        KEY_NAME,
        KEY_NAME,
    ]
    assert "sk-" not in text


def test_a_failure_within_a_stream_is_logged_with_its_code(logged, core):
    core.script.by_prompt = {
        "secret": ("red and blue", ErrorReport("request_failed", "a part failed"))
    }
    (line,), text = logged((CHAT, {}, chat(stream=True)))
    assert (line["error_code"], line["finish_reasons"]) == ("request_failed", ["error"])
    assert "a part failed" not in text


@pytest.mark.parametrize("evil", ["\r\n{}", "\x1b[2J", "\u202e", "\u2028", "\x7f", "\ud800"])
def test_no_client_can_forge_a_line(evil):
    scope = scope_of("/x") | {"path": f"/a{evil}b" + "c" * 1000, "quire_client": evil}
    line = line_of(ObservedExchange(scope, 0.0, 0.0))
    assert line.endswith("}\n")
    assert all(" " <= character <= "~" for character in line[:-1])
    found = json.loads(line)
    assert found["client"] == evil
    assert found["path"].startswith(f"/a{evil}b")
    assert len(found["path"]) == 256


def test_the_query_is_not_logged():
    scope = scope_of("/x", query_string=b"key=secret")
    assert "secret" not in line_of(ObservedExchange(scope, 0.0, 0.0))


def test_a_file_that_cannot_be_opened_stops_the_start(tmp_path):
    with pytest.raises(SettingsError, match="cannot be opened: No such file or directory; name"):
        AccessLog.open(str(tmp_path / "none" / "access.log"))


def test_a_pipe_that_nothing_reads_stops_the_start_at_once(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(SettingsError, match="cannot be opened"):
        AccessLog.open(str(pipe))
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    log = LineWriter(pipe)
    log.write("one\n")
    log.close()
    assert os.read(reader, 100) == b"one\n"
    os.close(reader)


def test_a_server_writes_what_it_logged_before_it_ends(serve, tmp_path):
    path = tmp_path / "access.log"
    served = serve(access_log=str(path))
    assert httpx.get(f"{served.url}/livez").status_code == 200
    served.server.stop()
    served.thread.join(20)
    assert json.loads(path.read_text())["path"] == "/livez"
