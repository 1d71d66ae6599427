"""A server opens no connection by itself: no Python code of any of its processes does."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from served_process import served_process

RECORDER = """
import json, os, sys

PATH = os.path.join({folder!r}, str(os.getpid()))
HOST = {{"socket.connect": 1, "socket.sendto": 1}}
HOST |= {{"socket.getaddrinfo": 0, "socket.gethostbyname": 0}}


def _record(event, arguments):
    if event in HOST:
        found = arguments[HOST[event]]
        host = found[0] if isinstance(found, tuple) else found
        if event in ("socket.connect", "socket.sendto") and not isinstance(found, tuple):
            host = "unix"  # a path, an abstract name, or the other end of a pair
        with open(PATH, "a") as file:
            file.write(json.dumps([event, str(host)]) + "\\n")


open(PATH, "a").close()
sys.addaudithook(_record)
"""
OWN = {"127.0.0.1", "::1", "localhost", "unix", "None", ""}


@pytest.fixture
def connections(tmp_path, monkeypatch):
    """Record what all Python processes connect to; return a function that reads it."""
    folder, code = tmp_path / "connections", tmp_path / "code"
    folder.mkdir()
    code.mkdir()
    (code / "sitecustomize.py").write_text(RECORDER.format(folder=str(folder)))
    monkeypatch.setenv("PYTHONPATH", ":".join(filter(None, [str(code), *sys.path])))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)

    def read():
        files = sorted(Path(folder).iterdir())
        return len(files), [json.loads(line) for f in files for line in f.read_text().splitlines()]

    return read


def foreign(records):
    return [(event, host) for event, host in records if host not in OWN]


def test_serving_opens_no_connection(connections, tmp_path):
    with served_process(tmp_path / "log", "--enable-lora") as served:
        served.client.post(
            "/v1/chat/completions",
            json={
                "messages": [{"role": "user", "content": "What is quire?"}],
                "response_format": {"type": "json_object"},
                "max_tokens": 8,
            },
        ).raise_for_status()
        assert served.client.get("/metrics").status_code == 200
    num_processes, records = connections()
    assert num_processes >= 2  # the server and its engine
    assert foreign(records) == []


def test_a_connection_would_be_noticed(connections):
    code = "import socket as s; s.socket(s.AF_INET, s.SOCK_DGRAM).connect(('192.0.2.1', 9))"
    subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
    _, records = connections()
    assert foreign(records) == [("socket.connect", "192.0.2.1")]
