"""Tool servers that are real: started, called, broken, and started again."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from http_tool_server import http_tool_server
from tool_server_commands import mcp_server, raw_server

from quire.config import ServerSettings
from quire.errors import SettingsError, ToolServerError
from quire.server.tool_servers.tool_servers import started_tool_servers

pytest.importorskip("mcp", reason="tool servers need quire[mcp]")
tool_server = pytest.importorskip("quire.server.tool_servers.tool_server")


def started(*servers, **settings):
    return started_tool_servers(ServerSettings(tool_server=servers, **settings))


def call(servers, label, tool, /, **arguments):
    return asyncio.run(servers.call(label, tool, arguments))


def is_alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until(condition, timeout_s=10.0):
    deadline = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def test_servers_have_the_name_of_the_operator_or_their_own():
    with started(f"mine={raw_server('theirs')}", raw_server("our tools")) as servers:
        assert servers.labels == ["mine", "our-tools"]
        tools = asyncio.run(servers.tools("mine"))
        assert [tool.name for tool in tools][:2] == ["get_weather", "fail"]
        assert tools[0].is_read_only
        assert call(servers, "mine", "get_weather", city="Bonn").text == "It rains in Bonn."
        assert call(servers, "our-tools", "fail").error.type == "mcp_tool_execution_error"


def test_two_servers_of_one_name_are_refused():
    with (
        pytest.raises(SettingsError, match="two servers have the name 'raw'"),
        started(raw_server("raw"), raw_server("raw")),
    ):
        pass


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (raw_server("raw", "dies"), "no cellar"),
        ("no-such-program --please", "no-such-program: No such file"),
        ("http://127.0.0.1:9/mcp", "connection attempts failed"),
        (raw_server("raw", "many"), "more than 512 tools"),
    ],
)
def test_a_server_that_cannot_be_used_stops_the_start_with_the_cause(command, message):
    with pytest.raises(ToolServerError, match=message) as failed, started(f"mine={command}"):
        pass
    assert str(failed.value).startswith("the tool server 'mine' cannot be used: ")


def test_a_tool_with_a_huge_schema_is_left_out(caplog):
    with started(raw_server("raw", "huge")) as servers:
        names = [tool.name for tool in asyncio.run(servers.tools("raw"))]
    assert "huge" not in names
    assert "get_weather" in names
    assert "'huge' of the tool server 'raw' is left out" in caplog.text


def test_tools_that_are_broken_are_left_out_one_by_one(caplog):
    with started(f"raw={raw_server('raw', 'broken')}") as servers:
        names = [tool.name for tool in asyncio.run(servers.tools("raw"))]
    assert names[0] == "get_weather"
    assert not {"no_schema", "array", "typo"} & {*names}
    assert caplog.text.count("of the tool server 'raw' is left out: ") == 5
    assert 'got "strin"' in caplog.text


def test_requests_at_the_same_time_list_the_tools_once(monkeypatch):
    async def several(servers):
        return await asyncio.gather(*(servers.tools("raw") for _ in range(9)))

    with started(raw_server("raw")) as servers:
        monkeypatch.setattr(tool_server, "MAX_LISTING_AGE_S", 0.0)
        assert len(asyncio.run(several(servers))) == 9
        assert call(servers, "raw", "listings").text == "2"


def test_what_is_wrong_with_a_server_is_for_the_log_alone(tmp_path, caplog):
    with started(raw_server("raw", "failing", str(tmp_path / "mark"))) as servers:
        call(servers, "raw", "leave")
        outcome = call(servers, "raw", "wait")
        with pytest.raises(ToolServerError) as failed:
            asyncio.run(servers.tools("raw"))
        assert wait_until(lambda: "hunter2" in caplog.text)
    assert outcome.text == str(failed.value)
    assert outcome.text == "the tool server 'raw' is not connected at present"
    assert not any("\n" in record.getMessage() for record in caplog.records)


def test_what_is_no_message_is_skipped():
    with started(raw_server("raw", "babble")) as servers:
        assert call(servers, "raw", "get_weather", city="Bonn").error is None


def test_a_command_gets_no_keys(monkeypatch):
    monkeypatch.setenv("QUIRE_API_KEY", "sk-1")
    monkeypatch.setenv("SHOWN", "yes")
    with started(raw_server("raw"), tool_server_env=("SHOWN",)) as servers:
        names = call(servers, "raw", "environment").text.split()
    assert "SHOWN" in names
    assert "QUIRE_API_KEY" not in names


def test_a_call_that_takes_too_long_is_an_error():
    with started(raw_server("raw"), tool_server_timeout_s=0.3) as servers:
        outcome = call(servers, "raw", "wait")
        assert outcome.error.code == -32001
        assert "longer than 0.3 seconds" in outcome.text


def test_a_server_that_dies_is_started_again():
    with started(raw_server("raw")) as servers:
        first = call(servers, "raw", "process/id").text
        assert call(servers, "raw", "leave").error.code == -32000
        second = call(servers, "raw", "process/id").text
        assert second.isdigit()
        assert second != first


def test_a_server_that_is_killed_while_idle_is_started_again():
    with started(raw_server("raw")) as servers:
        first = int(call(servers, "raw", "process/id").text)
        os.kill(first, signal.SIGKILL)
        assert wait_until(lambda: call(servers, "raw", "process/id").text not in (str(first), ""))
        assert int(call(servers, "raw", "process/id").text) != first


@pytest.mark.parametrize("fault", ["", "stubborn"])
def test_processes_end_with_their_server(fault):
    with started(raw_server("raw", fault)) as servers:
        pid = int(call(servers, "raw", "process/id").text)
        assert is_alive(pid)
    assert not is_alive(pid)


SCRIPT = """
import asyncio, sys, time
from quire.config import ServerSettings
from quire.server.tool_servers.tool_servers import started_tool_servers
with started_tool_servers(ServerSettings(tool_server=(sys.argv[1],))) as servers:
    print(asyncio.run(servers.call("raw", "process/id", {})).text, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("fault", ["", "stubborn"])
def test_processes_die_with_a_server_that_is_killed(fault):
    arguments = [sys.executable, "-c", SCRIPT, raw_server("raw", fault)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        pid = int(server.stdout.readline())
        assert is_alive(pid)
        server.kill()
    assert wait_until(lambda: not is_alive(pid))


def test_a_cancelled_call_frees_the_caller_at_once():
    async def cancel(servers):
        task = asyncio.create_task(servers.call("raw", "wait", {}))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with started(raw_server("raw")) as servers:
        asyncio.run(cancel(servers))
        assert call(servers, "raw", "get_weather", city="Bonn").error is None


def test_tools_are_listed_again_once_the_server_says_that_they_have_changed():
    with started(raw_server("raw")) as servers:
        assert call(servers, "raw", "learn").text == "learnt"
        assert wait_until(
            lambda: "dance" in [tool.name for tool in asyncio.run(servers.tools("raw"))]
        )


def test_a_server_of_the_package_works_and_its_tools_are_listed_from_time_to_time(monkeypatch):
    with started(f"parts={mcp_server()}", tool_server_max_bytes=300) as servers:
        names = [tool.name for tool in asyncio.run(servers.tools("parts"))]
        assert names[:2] == ["get_weather", "add"]
        assert call(servers, "parts", "add", a=1, b=2).text == "3"
        assert call(servers, "parts", "repeat", text="é", times=500).text.endswith("1000 bytes]")
        assert "executing tool fail" in call(servers, "parts", "fail").text
        assert call(servers, "parts", "learn", name="dance").text == "learnt"
        monkeypatch.setattr(tool_server, "MAX_LISTING_AGE_S", 0.0)
        assert "dance" in [tool.name for tool in asyncio.run(servers.tools("parts"))]
        assert call(servers, "parts", "dance").text == "I am dance"
        too_large = call(servers, "parts", "repeat", text="x", times=9_000_000)
        assert too_large.error.type == "mcp_protocol_error"
        assert wait_until(lambda: call(servers, "parts", "add", a=1, b=2).text == "3", 30)


@pytest.fixture
def port(tmp_path):
    """The port of a server with a URL."""
    import shlex
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    arguments = [*shlex.split(mcp_server("--port", str(number)))]
    with (tmp_path / "log").open("w") as log, subprocess.Popen(arguments, stderr=log) as server:

        def listens():
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", number)) == 0

        assert wait_until(listens, 60)
        yield number
        server.kill()


def test_a_server_with_a_url_works(port):
    with started(f"web=http://127.0.0.1:{port}/mcp", tool_server_timeout_s=5) as servers:
        assert call(servers, "web", "get_weather", city="Bonn").text == "It rains in Bonn."
        assert "executing tool fail" in call(servers, "web", "fail").text
        too_large = call(servers, "web", "repeat", text="x", times=9_000_000)
        assert too_large.error.type == "mcp_protocol_error"
        assert wait_until(lambda: call(servers, "web", "add", a=1, b=2).text == "3", 30)
        gone = call(servers, "web", "leave")
        assert gone.error.type == "mcp_protocol_error"
        assert re.search("cannot be used|failed", call(servers, "web", "add", a=1, b=2).text)


def beside(servers, label, slow, bad, /, wait_s=0.3):
    """Return the outcomes of a slow call and of one that begins a little later."""

    async def both():
        first = asyncio.create_task(servers.call(label, slow, {}))
        await asyncio.sleep(wait_s)
        second = await servers.call(label, bad, {})
        return await first, second

    return asyncio.run(both())


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("refuse", "the tool server failed: division by zero"),
        ("flood", "a message is longer than 2097152 bytes"),
        ("nonsense", "its response is invalid"),
        ("no such tool", "division by zero"),
    ],
)
def test_a_call_that_fails_ends_no_other_call(bad, message):
    with started(raw_server("raw")) as servers:
        before = call(servers, "raw", "process/id").text
        slow, failed = beside(servers, "raw", "wait", bad)
        assert message in failed.error.message
        assert (slow.text, slow.error) == ("done", None)
        assert call(servers, "raw", "process/id").text == before


@pytest.mark.parametrize("tool", ["match", "mismatch"])
def test_schemas_of_outputs_have_no_effect(tool):
    with started(raw_server("raw"), tool_server_timeout_s=10.0) as servers:
        assert call(servers, "raw", tool).text == "x"


def test_a_server_that_hangs_after_a_restart_holds_up_no_request(tmp_path, monkeypatch):
    server = raw_server("raw", "fading", str(tmp_path / "mark"))
    with started(server, tool_server_timeout_s=0.5) as servers:
        monkeypatch.setattr(tool_server, "START_TIMEOUT_S", 2.0)
        monkeypatch.setattr(tool_server, "LAST_DELAY_S", 1.0)  # less than an attempt lasts
        assert call(servers, "raw", "leave").error.code == -32000
        begin_s = time.monotonic()
        with pytest.raises(ToolServerError, match="is not connected at present"):
            asyncio.run(asyncio.wait_for(servers.tools("raw"), 20))
        outcome = asyncio.run(asyncio.wait_for(servers.call("raw", "wait", {}), 20))
        assert outcome.error.type == "mcp_protocol_error"
        assert time.monotonic() - begin_s < 20


def test_a_failed_attempt_to_connect_is_told_at_once_and_the_next_ones_are_rarer(
    tmp_path, monkeypatch, caplog
):
    with started(raw_server("raw", "fading", str(tmp_path / "mark"))) as servers:
        monkeypatch.setattr(tool_server, "START_TIMEOUT_S", 0.7)
        monkeypatch.setattr(tool_server, "FIRST_DELAY_S", 0.1)
        monkeypatch.setattr(tool_server, "LAST_DELAY_S", 0.4)
        call(servers, "raw", "leave")
        assert wait_until(lambda: "attempt is in 0.4 s" in caplog.text, 30)


@pytest.mark.parametrize("bad", ["500", "307", "202", "html", "compressed", "cut", "hang", "long"])
def test_a_status_or_body_of_one_response_ends_no_other_call(bad):
    with (
        http_tool_server() as address,
        started(f"web=http://{address}", tool_server_timeout_s=3.0) as servers,
    ):
        slow, failed = beside(servers, "web", "slow", bad)
        assert (slow.text, slow.error) == ("fine", None)
        assert failed.error.type == "mcp_protocol_error"
        assert not re.search(r"127|inside|\n", failed.text)
        asyncio.run(asyncio.sleep(1.5 if bad == "hang" else 0))  # until its request times out, too
        assert call(servers, "web", "ok").text == "fine"


def test_a_session_that_the_server_has_forgotten_is_begun_again():
    with http_tool_server() as address, started(f"web=http://{address}") as servers:
        assert call(servers, "web", "404").error.type == "mcp_protocol_error"
        assert call(servers, "web", "ok").text == "fine"


def test_the_missing_package_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp", None)
    monkeypatch.delitem(sys.modules, "quire.server.tool_servers.tool_server", raising=False)
    with pytest.raises(SettingsError, match=r"pip install 'quire\[mcp\]'"), started("x=y"):
        pass
