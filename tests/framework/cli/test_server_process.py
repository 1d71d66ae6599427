"""`quire serve`: from the settings to a server."""

import socket
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from terminal import Terminal

from quire.cli import served_engine
from quire.cli import server_process as command
from quire.cli.main import main
from quire.launch.engine_process import early_start
from quire.launch.engine_process.engine_start import EngineStart
from quire.plugins.loading import load_plugins


@pytest.fixture
def no_process(monkeypatch):
    """Processes that were started early: none is."""

    @contextmanager
    def started_early(settings):
        yield None

    monkeypatch.setattr(early_start, "started_early", started_early)


def test_the_plugin_report_of_a_server_has_no_files_and_no_tracebacks(
    monkeypatch, capsys, no_process
):
    begun, served, settled = [], [], []
    engine = SimpleNamespace(
        plugins=load_plugins(), model_name="m", async_frontend=lambda: "the frontend"
    )

    starting = SimpleNamespace(composed=SimpleNamespace(plugins=engine.plugins))

    def begin_engine(settings, *, is_serving, early):
        begun.append((settings.model.model, is_serving, early))
        return starting

    def finish_engine(begun, *, owns_process):
        assert begun is starting
        return engine

    def serve(
        frontend,
        settings,
        report,
        on_ready,
        bound,
        accounts,
        stats_hooks,
        bound_health,
        routes,
        tool_servers,
    ):
        assert not routes
        assert tool_servers.labels == []
        assert not accounts.requires_key
        assert bound_health is None
        assert settled == [True]
        served.append((frontend, settings.port, report()))
        on_ready("http://127.0.0.1:1234")

    monkeypatch.setattr(command, "begin_engine", begin_engine)
    monkeypatch.setattr(served_engine, "finish_engine", finish_engine)
    monkeypatch.setattr(served_engine, "serve", serve)
    monkeypatch.setattr(served_engine, "settle", lambda: settled.append(True))
    assert main(["serve", "demo", "--port", "0"]) == 0
    ((frontend, port, report),) = served
    assert begun == [("demo", True, None)]
    assert (frontend, port) == ("the frontend", 0)
    assert {plugin["name"] for plugin in report} >= {"quire_models", "quire_samplers"}
    assert not {"file", "traceback"} & {key for plugin in report for key in plugin}
    assert capsys.readouterr().out == "m is served at http://127.0.0.1:1234\n"


def test_a_port_that_is_in_use_is_named_before_the_model_is_loaded(monkeypatch, capsys):
    monkeypatch.setattr(command, "begin_engine", None)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        assert main(["serve", "demo", "--port", port]) == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in capsys.readouterr().err


def test_a_model_that_cannot_be_served_leaves_its_port(monkeypatch, capsys):
    sockets = []

    def bind(settings):
        sockets.append(socket.create_server(("127.0.0.1", 0)))
        return sockets[-1]

    monkeypatch.setattr(command, "bound_socket", bind)
    assert main(["serve", "demo", "--tensor-parallel-size", "1000"]) == 1
    assert sockets[0].fileno() == -1
    assert capsys.readouterr().err


def test_ctrl_c_ends_a_start_without_a_traceback():
    terminal = Terminal("serve", "demo", "--port", "0")
    assert terminal.read_until("kernels: ")  # torch is imported next
    terminal.type("\x03")
    assert terminal.status() == 130
    assert "Traceback" not in terminal.shown


def test_no_engine_process_is_left_of_a_server_that_did_not_start(monkeypatch, capsys):
    launched = []

    def launch(cls, *arguments):
        launched.append(start(*arguments))
        return launched[-1]

    start = EngineStart.launch
    monkeypatch.setattr(EngineStart, "launch", classmethod(launch))
    assert main(["serve", "no-such-model-here", "--port", "0"]) == 1
    assert "no-such-model-here" in capsys.readouterr().err
    assert not Path(f"/proc/{launched[0].link.pid}").exists()
