"""A key of a running server is in no log, response, command line, environment or listing."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pytest

from quire.cli.main import main
from quire.config import Settings
from quire.server.keys.api_key import digest_of

CANARY = "sk-canary"
HEADERS = {"authorization": f"Bearer {CANARY}-root"}
PATHS = [
    "/v1/models", "/v1/plugins", "/version", "/health", "/openapi.json", "/metrics",
    "/admin/keys", "/admin/usage", "/nowhere", f"/{CANARY}", "/v1/messages",
]  # fmt: skip


@pytest.fixture(scope="module")
def process(tmp_path_factory):
    """Serve the demo model with an engine process; returns the process and its URL."""
    folder = tmp_path_factory.mktemp("keys")
    file = folder / "keys.yaml"
    file.write_text(f"keys:\n- {{name: acme, key: {CANARY}-1}}\n- {{name: b, key: {CANARY}-2}}\n")
    file.chmod(0o600)
    log = folder / "log"
    command = [sys.executable, "-m", "quire.cli", "serve", "demo", "--port", "0"]
    options = ["--engine-process", "--api-key-file", str(file), "--max-num-seqs", "4"]
    options += ["--access-log", str(folder / "access")]
    environment = os.environ | {
        "QUIRE_ADMIN_KEY": f"{CANARY}-root",
        "QUIRE_API_KEY": f"{CANARY}-3,{CANARY}-4",
    }
    with log.open("w") as errors:
        started = subprocess.Popen(
            command + options, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        )
    try:
        yield started, started.stdout.readline().split()[-1], log
    finally:
        started.kill()
        started.communicate()


def test_no_process_below_the_server_has_a_key_and_no_command_line_shows_one(process):
    started, _, _ = process
    server = psutil.Process(started.pid)
    children = server.children(recursive=True)
    assert children
    for each in (server, *children):
        assert CANARY not in " ".join(each.cmdline())
    for child in children:
        environment = Path(f"/proc/{child.pid}/environ").read_bytes()
        assert CANARY.encode() not in environment


def test_no_response_and_no_line_of_the_log_shows_a_key(process):
    started, url, log = process
    wrong = {"authorization": f"Bearer {CANARY}-wrong"}
    right = {"authorization": f"Bearer {CANARY}-3"}
    plain = {"x-api-key": f"{CANARY}-3"}
    for headers in (HEADERS, right, wrong, plain, plain | wrong, {}):
        for path in PATHS:
            for method in ("GET", "POST"):
                response = httpx.request(method, url + path, headers=headers, timeout=30, json={})
                shown = response.text.replace(f"/{CANARY}:", "")  # the path that was asked for
                assert CANARY not in shown + str(response.headers), (method, path)
    body = {"prompt": "x", "max_tokens": 4, "cache_salt": "mine"}
    assert httpx.post(f"{url}/v1/completions", json=body, headers=right).status_code == 200
    unnamed = [f"key-{digest_of(f'{CANARY}-{i}'.encode()).hex()[:8]}" for i in (3, 4)]
    usage = httpx.get(f"{url}/admin/usage", headers=HEADERS).json()
    assert [each["name"] for each in usage["data"]] == [*unnamed, "acme", "b"]
    started.terminate()
    assert started.wait(30) == 0
    assert CANARY not in log.read_text()
    lines = (log.parent / "access").read_text().splitlines()
    assert len(lines) > len(PATHS)
    assert not [line for line in lines if CANARY in line.replace(f'"path":"/{CANARY}"', "")]
    assert "list of processes" not in log.read_text()  # no key was a flag


def listings():
    from quire.cli.commands import COMMANDS

    words = {"config": ["config", "show"]}
    return [["explain", "demo"], ["explain", "demo", "--json"]] + [
        words[name] for name in COMMANDS if name in words
    ]


@pytest.mark.parametrize("words", listings(), ids=" ".join)
def test_no_listing_shows_a_key(words, monkeypatch):
    monkeypatch.setenv("QUIRE_API_KEY", f"{CANARY}-1")
    monkeypatch.setenv("QUIRE_ADMIN_KEY", f"{CANARY}-2")
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        assert main(words) == 0
    assert shown.getvalue()
    assert CANARY not in shown.getvalue()


def test_no_representation_of_settings_shows_a_key():
    settings = Settings.from_options({"api_key": [CANARY], "admin_key": [CANARY + "-2"]})
    assert settings.server.api_key == (CANARY,)
    assert CANARY not in repr(settings) + repr(settings.server) + f"{settings.server}"
