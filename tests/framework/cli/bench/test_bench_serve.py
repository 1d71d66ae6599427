"""`quire bench serve` as a command."""

import asyncio
import json
import threading
import time

import pytest
from scripted_server import scripted_server, streamed, text_events, whole
from served_process import served_process
from terminal import Terminal

from quire.cli.main import main

REPLY = streamed(*text_events("a", "b", usage=(4, 2)))


def answer(first, headers, body):
    if first.startswith("GET"):
        return whole(200, {"data": [{"id": "served"}]})
    return REPLY


@pytest.fixture
def server():
    """A scripted server in a thread: the command has an event loop of its own."""
    started, done, found = threading.Event(), asyncio.Event(), []

    async def serve():
        async with scripted_server(answer) as script:
            found.extend([script, asyncio.get_running_loop()])
            started.set()
            await done.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert started.wait(60)
    script, loop = found
    yield script
    loop.call_soon_threadsafe(done.set)
    thread.join(60)


def completions(server):
    return [body for first, _, body in server.requests if first.startswith("POST")]


def test_loads_are_measured_and_written_to_files(server, tmp_path, capsys):
    figures_file, plot = tmp_path / "figures.json", tmp_path / "plot.svg"
    argv = ["--num-prompts", "5", "--request-rate", "500", "inf", "--warmup", "2", "--seed", "3"]
    argv += ["--input-len", "6", "--output-len", "2", "--goodput", "ttft:60000"]
    files = ["--json", str(figures_file), "--plot", str(plot)]
    assert main(["bench", "serve", server.url, *argv, *files]) == 0
    assert "model served, completions, 5 requests a load" in capsys.readouterr().out
    figures = json.loads(figures_file.read_text())
    assert [load["request_rate"] for load in figures["loads"]] == [500.0, "inf"]
    assert [load["completed"] for load in figures["loads"]] == [5, 5]
    assert figures["loads"][0]["output_tokens"] == 10
    assert plot.read_text().startswith("<svg ")
    bodies = completions(server)
    assert len(bodies) == 2 + 5 + 5
    assert {(body["model"], len(body["prompt"]), body["max_tokens"]) for body in bodies} == {
        ("served", 6, 2)
    }
    assert len({tuple(body["prompt"]) for body in bodies}) == 12, "no prompt is sent twice"


def test_shares_of_the_capacity_are_offered(server, tmp_path):
    figures_file = tmp_path / "figures.json"
    argv = ["--num-prompts", "6", "--capacity-shares", "0.5", "2", "--json", str(figures_file)]
    assert main(["bench", "serve", server.url, *argv]) == 0
    full, half, double = json.loads(figures_file.read_text())["loads"]
    assert full["request_rate"] == "inf"
    assert half["request_rate"] == pytest.approx(full["requests_per_s"] / 2)
    assert double["request_rate"] == pytest.approx(full["requests_per_s"] * 2)


def test_equal_seeds_send_equal_prompts(server):
    argv = ["bench", "serve", server.url, "--num-prompts", "3", "--warmup", "0"]
    sent = []
    for seed in ("1", "1", "2"):
        del server.requests[:]
        assert main([*argv, "--seed", seed]) == 0
        sent.append(sorted(body["prompt"] for body in completions(server)))
    assert sent[0] == sent[1] != sent[2]


def test_options_of_the_requests_are_sent(server, monkeypatch):
    monkeypatch.setenv("QUIRE_API_KEY", "k")
    argv = ["--endpoint", "chat", "--ignore-eos", "--temperature", "0.5", "--num-prompts", "1"]
    extra = ["--extra-body", '{"top_k": 3}', "--model", "mine"]
    assert main(["bench", "serve", server.url, *argv, *extra]) == 0
    first, headers, body = server.requests[-1]
    assert first.startswith("POST /v1/chat/completions")
    assert headers["authorization"] == "bearer k"
    chosen = {name: body[name] for name in ("model", "ignore_eos", "temperature", "top_k")}
    assert chosen == {"model": "mine", "ignore_eos": True, "temperature": 0.5, "top_k": 3}


@pytest.mark.parametrize(
    "text", ["# ours\nsk-a\nsk-b\n", "keys:\n  - {name: a, key: sk-a}\n  - {name: b, key: sk-b}\n"]
)
def test_the_first_key_of_a_servers_key_file_is_sent(text, server, tmp_path):
    path = tmp_path / "keys"
    path.write_text(text)
    path.chmod(0o600)
    argv = ["--api-key-file", str(path), "--num-prompts", "1", "--warmup", "0"]
    assert main(["bench", "serve", server.url, *argv]) == 0
    _, headers, body = server.requests[-1]
    assert headers["authorization"] == "bearer sk-a"
    assert body["max_tokens"] == 64


def test_a_key_file_without_keys_is_wrong_usage(tmp_path, capsys):
    path = tmp_path / "keys"
    path.write_text("# none yet\n")
    path.chmod(0o600)
    assert main(["bench", "serve", "--api-key-file", str(path)]) == 2
    assert "has no keys" in capsys.readouterr().err


def test_prompts_of_a_file_are_sent(server, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "one", "max_tokens": 3}\n')
    assert main(["bench", "serve", server.url, "--prompts", str(path), "--num-prompts", "2"]) == 0
    assert {(body["prompt"], body["max_tokens"]) for body in completions(server)} == {("one", 3)}


def test_no_server_is_one_line(capsys):
    assert main(["bench", "serve", "http://127.0.0.1:1"]) == 1
    error = capsys.readouterr().err
    assert "there is no server at http://127.0.0.1:1: " in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--goodput", "itl:3"], "--goodput takes ttft:MILLISECONDS"),
        (["--extra-body", "[1]"], "--extra-body must be a JSON object"),
        (["--extra-body", "{"], "--extra-body is not JSON"),
        (["--prompts", "/no/such/file"], "no such file: /no/such/file"),
        (["--api-key-file", "/no/such/file"], "--api-key-file: "),
        (["--request-rate", "0"], "--request-rate must be more than 0"),
        (["--request-rate", "1", "--capacity-shares", "1"], "cannot be used with --request-rate"),
        (["localhost"], "'localhost' is no address of a server"),
        (["--burstiness", "0"], "--burstiness must be more than 0"),
    ],
)
def test_wrong_usage_is_found_before_anything_is_sent(argv, message, capsys):
    assert main(["bench", "serve", *argv]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--json", "--plot"])
def test_a_file_that_cannot_be_written_is_found_before_anything_is_sent(
    flag, server, tmp_path, capsys
):
    for path in (tmp_path, tmp_path / "none" / "file"):
        assert main(["bench", "serve", server.url, flag, str(path)]) == 2
        assert f"{flag} cannot write {path}" in capsys.readouterr().err
    assert server.requests == []


def test_a_server_that_refuses_the_warm_up_is_quoted(server, capsys, monkeypatch):
    refusal = whole(400, {"error": "no such model"})
    monkeypatch.setattr(server, "_answer", lambda *_: refusal)
    assert main(["bench", "serve", server.url, "--model", "mine"]) == 1
    assert "the server refuses the requests: 400" in capsys.readouterr().err


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_quires_own_server_is_measured(endpoint, tmp_path):
    figures_file = tmp_path / "figures.json"
    argv = ["--endpoint", endpoint, "--num-prompts", "4", "--input-len", "8", "--output-len", "5"]
    argv += ["--ignore-eos", "--json", str(figures_file)]
    with served_process(tmp_path / "log") as served:
        assert main(["bench", "serve", str(served.client.base_url), *argv]) == 0
    figures = json.loads(figures_file.read_text())
    (load,) = figures["loads"]
    assert figures["model"] == "demo"
    assert (load["completed"], load["errors"], load["tokens_are_counted"]) == (4, {}, True)
    assert load["output_tokens"] == 20
    assert load["input_tokens"] >= 32
    assert 0 < load["ttft_ms"]["p50"] <= load["e2el_ms"]["p50"]


def test_ctrl_c_ends_a_load_without_a_traceback(server):
    terminal = Terminal("bench", "serve", server.url, "--request-rate", "0.1", "--warmup", "1")
    deadline = time.monotonic() + 60
    while not completions(server):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    terminal.type("\x03")
    assert terminal.status() == 130
    assert "Traceback" not in terminal.shown
