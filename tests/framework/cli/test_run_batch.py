"""`quire run-batch` as users start it: it can be killed, and goes on with the same command."""

import json
import signal
import subprocess
import sys
import time

import pytest

from quire.cli.main import main

COMMAND = [sys.executable, "-m", "quire.cli", "run-batch", "demo"]
QUESTION = [{"role": "user", "content": "What is quire?"}]


def chat(custom_id, **body):
    return line(custom_id, "/v1/chat/completions", messages=QUESTION, temperature=0, **body)


def line(custom_id, url, **body):
    made = {"custom_id": custom_id, "method": "POST", "url": url, "body": {"model": "demo", **body}}
    return json.dumps(made) + "\n"


def read(path):
    return [json.loads(each) for each in path.read_text().splitlines()]


def run_batch(*argv, stdin=""):
    return subprocess.run(
        [*COMMAND, *map(str, argv)], input=stdin, capture_output=True, text=True, timeout=280
    )


@pytest.fixture
def files(tmp_path):
    return tmp_path / "in.jsonl", tmp_path / "out.jsonl"


def test_every_kind_of_request_gets_the_response_of_the_server(files):
    source, target = files
    source.write_text(
        chat("chat", max_tokens=64)
        + line("text", "/v1/completions", prompt=["quire is", "A plugin is"], max_tokens=4)
        + line("typo", "/v1/completions", prompt="x", temprature=1)
        + line("model", "/v1/completions", prompt="x").replace('"demo"', '"dmeo"')
        + line("response", "/v1/responses", input="What is quire?", max_output_tokens=4)
        + line("message", "/v1/messages", messages=QUESTION, max_tokens=4)
        + line("ollama", "/api/chat", messages=QUESTION)
        + "nonsense\n"
    )
    done = run_batch("-i", source, "-o", target)
    assert done.returncode == 3, done.stderr
    assert "quire: 8 of 8 requests are done: 4 succeeded, 4 failed; " in done.stderr
    assert done.stdout == ""
    results = {result["custom_id"]: result for result in read(target)}
    message = results["chat"]["response"]["body"]["choices"][0]["message"]
    assert message["content"] == (
        "quire is an LLM inference and serving engine whose parts are plugins."
    )
    assert results["chat"]["error"] is None
    assert len(results["text"]["response"]["body"]["choices"]) == 2
    assert results["response"]["response"]["body"]["object"] == "response"
    assert results["message"]["response"]["body"]["type"] == "message"
    assert results["typo"]["response"]["status_code"] == 400
    assert results["typo"]["error"]["code"] == "unknown_parameter"
    assert results["model"]["response"]["status_code"] == 404
    assert results[None]["response"] is None
    assert results["ollama"]["error"] == {
        "code": "invalid_line",
        "message": "line 7: url must be one of /v1/chat/completions, /v1/completions, "
        "/v1/messages, /v1/responses, got '/api/chat'",
    }

    again = run_batch("-i", source, "-o", target, "--resume")
    assert again.returncode == 3
    assert "4 succeeded, 4 failed; 8 of them before this run" in again.stderr


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_ended_goes_on_with_the_same_command(files, signum):
    source, target = files
    source.write_text("".join(chat(f"r{n}", min_tokens=60, max_tokens=60) for n in range(60)))
    argv = [*COMMAND, "-i", str(source), "-o", str(target), "--max-concurrency", "2"]
    process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 120
        while not (target.exists() and target.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signum)
        _, log = process.communicate(timeout=60)
    finally:
        process.kill()
    if signum == signal.SIGKILL:
        assert process.returncode == -signum
    else:
        assert process.returncode == 128 + signum, log
        assert "run the same command again to go on" in log
        assert "Traceback" not in log
    before = [
        each for each in target.read_bytes().splitlines(keepends=True) if each.endswith(b"\n")
    ]
    assert 0 < len(before) < 60

    done = run_batch("-i", source, "-o", target)
    assert done.returncode == 0, done.stderr
    assert f"; {len(before)} of them before this run; " in done.stderr
    assert target.read_bytes().startswith(b"".join(before))
    assert sorted(result["custom_id"] for result in read(target)) == sorted(
        f"r{n}" for n in range(60)
    )


def test_failed_requests_are_computed_again_by_a_run_that_is_killed_and_goes_on(files):
    source, target = files
    source.write_text("".join(chat(f"r{n}", min_tokens=60, max_tokens=60) for n in range(40)))
    first = run_batch("-i", source, "-o", target)
    assert first.returncode == 0, first.stderr
    written = [json.loads(each) for each in target.read_text().splitlines()]
    for each in written[:30]:
        each["response"]["status_code"] = 503
        each["error"] = {"code": "overloaded", "message": "full"}
    target.write_text("".join(json.dumps(each, separators=(",", ":")) + "\n" for each in written))
    kept = target.read_text().splitlines()[30:]

    plain = run_batch("-i", source, "-o", target)
    assert (plain.returncode, "10 succeeded, 30 failed" in plain.stderr) == (3, True)
    argv = ["-i", source, "-o", target, "--retry-failed", "--max-concurrency", "2"]
    process = subprocess.Popen([*COMMAND, *map(str, argv)], stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 120
        while len(target.read_bytes().splitlines()) >= 40 and time.monotonic() < deadline:
            time.sleep(0.01)
        process.kill()
        process.communicate(timeout=60)
    finally:
        process.kill()
    assert target.read_text().splitlines()[:10] == kept
    done = run_batch(*argv)
    assert done.returncode == 0, done.stderr
    assert "40 of 40 requests are done: 40 succeeded, 0 failed" in done.stderr
    assert target.read_text().splitlines()[:10] == kept
    assert sorted(each["custom_id"] for each in read(target)) == sorted(f"r{n}" for n in range(40))


@pytest.mark.parametrize(
    ("output", "said"),
    [("out.jsonl", "run it again without --overwrite to go on"), ("-", "")],
)
def test_a_run_that_is_ended_advises_nothing_that_loses_its_results(files, output, said):
    source, target = files
    source.write_text("".join(chat(f"r{n}", min_tokens=60, max_tokens=60) for n in range(200)))
    argv = [*COMMAND, "-i", str(source), "-o", "-" if output == "-" else str(target)]
    argv += ["--max-concurrency", "2"] + (["--overwrite"] if said else [])
    with (target if not said else files[0].with_name("shown")).open("wb") as shown:
        process = subprocess.Popen(argv, stdout=shown, stderr=subprocess.PIPE, text=True)
        try:
            deadline = time.monotonic() + 120
            while not (target.exists() and target.stat().st_size) and time.monotonic() < deadline:
                time.sleep(0.01)
            process.terminate()
            _, log = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 143, log
    assert (" to go on" in log) == bool(said)
    assert said in log


def test_requests_come_from_standard_input_and_results_go_to_standard_output():
    done = run_batch("-i", "-", "-o", "-", "--quiet", stdin=chat("a", max_tokens=2))
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["custom_id"] == "a"


def refused(capsys, *argv):
    """Return the lines that a command writes which does not load the model."""
    assert main(["run-batch", "nosuchmodel", *map(str, argv)]) in (1, 2)
    return capsys.readouterr().err.splitlines()


def test_names_that_occur_twice_are_refused_before_anything_is_computed(files, capsys):
    source, target = files
    source.write_text(chat("a") + chat("b") + chat("a"))
    shown = refused(capsys, "-i", source, "-o", target)
    assert shown[0].endswith("so nothing was computed: [batch_file_refused]")
    assert shown[1] == "  lines 1 and 3 both have 'a'"
    assert not target.exists()


def test_results_of_something_else_are_refused(files, capsys):
    source, target = files
    source.write_text(chat("a"))
    target.write_text("my thesis\n")
    assert "is no result of this batch" in refused(capsys, "-i", source, "-o", target)[0]
    same = refused(capsys, "-i", source, "-o", source, "--overwrite")
    assert same == [
        "quire: the files of requests and of results are the same file [batch_file_refused]"
    ]
    assert source.read_text() == chat("a")
    assert target.read_text() == "my thesis\n"


def test_an_overwritten_file_is_kept_if_the_model_cannot_be_loaded(files, capsys):
    source, target = files
    source.write_text(chat("a"))
    target.write_text("my thesis\n")
    shown = refused(capsys, "-i", source, "-o", target, "--overwrite")
    assert any("there is no model 'nosuchmodel'" in each for each in shown)
    assert target.read_text() == "my thesis\n"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "needs -i/--input-file, -o/--output-file"),
        (["-i", "x", "-o", "-", "--resume"], "--resume needs a file"),
        (["-i", "x", "-o", "-", "--retry-failed"], "--retry-failed needs a file"),
        (["-i", "x", "-o", "y", "--resume", "--overwrite"], "cannot be used with"),
        (["-i", "https://x/in.jsonl", "-o", "y"], "https://x/in.jsonl is a URL"),
        (["-i", "x", "-o", "y", "--max-concurrency", "0"], "must be at least 1"),
        (["-i", "x", "-o", "y", "--port", "1"], "it is an option of `quire serve`"),
    ],
)
def test_wrong_usage_is_reported(argv, said, capsys):
    assert said in refused(capsys, *argv)[0]


def test_a_file_without_requests_is_done_at_once(files, capsys):
    source, target = files
    source.write_text("\n\n")
    argv = ["run-batch", "nosuchmodel", "-i", str(source), "-o", str(target)]
    assert main(argv) == 0
    assert "0 of 0 requests are done" in capsys.readouterr().err
    target.write_text("my thesis\n")
    assert "is no result of this batch" in refused(capsys, "-i", source, "-o", target)[0]
    assert main([*argv, "--overwrite"]) == 0
    assert target.read_bytes() == b""
    assert main(["run-batch", "m", "-i", str(source), "-o", str(source), "--overwrite"]) == 1
    assert source.read_text() == "\n\n"
