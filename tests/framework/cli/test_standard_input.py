"""Standard input that does not end: the command says what it waits for."""

import io
import os
import subprocess
import sys
import threading
import time

from quire.cli.standard_input import read_to_end


def test_a_long_wait_is_explained_on_standard_error(capsys):
    read_end, write_end = os.pipe()
    found = []
    with os.fdopen(read_end) as stdin:
        reader = threading.Thread(target=lambda: found.append(read_to_end(stdin, "waits", 0.01)))
        reader.start()
        shown, deadline = "", time.monotonic() + 60
        while "\n" not in shown and time.monotonic() < deadline:
            time.sleep(0.01)
            shown += capsys.readouterr().err
        os.write(write_end, b"text")
        os.close(write_end)
        reader.join(60)
    assert shown == "quire: waits\n"
    assert found == ["text"]
    assert capsys.readouterr().err == ""


def test_input_that_is_there_is_read_without_a_word(capsys):
    assert read_to_end(io.StringIO("text"), "waits", 60.0) == "text"
    assert capsys.readouterr().err == ""


def test_a_prompt_and_a_pipe_that_stays_open_name_the_way_out():
    command = [sys.executable, "-m", "quire.cli", "run", "hi", "--max-tokens", "1"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        line = process.stderr.readline()
        process.communicate(timeout=280)
    assert line.startswith("quire: waiting for the end of standard input")
    assert "`< /dev/null` leaves it out" in line
    assert process.returncode == 0
