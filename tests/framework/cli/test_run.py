"""`quire run`: what is asked on the command line is what the model gets."""

import io
import json
import subprocess
import sys

import pytest
from terminal import Terminal

from quire.cli.main import main
from quire.cli.run import read_prompt
from quire.errors import UsageError
from quire.frontend.text.tokenizer import Tokenizer
from quire_demo.checkpoint_source import demo

FLAGS = ("--max-tokens", "1", "--temperature", "0", "--json")


def asked(capsys, *argv):
    """Run a command; return its output, and the prompt that the model got."""
    assert main(["run", "demo", *argv, *FLAGS]) == 0
    output = json.loads(capsys.readouterr().out)
    tokenizer = Tokenizer.load(demo().folder)
    return output, tokenizer.decode(output["prompt_token_ids"], skip_special_tokens=False)


def test_a_question_from_standard_input_and_a_system_message_are_rendered(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("What is quire?"))
    _, prompt = asked(capsys, "-", "--system", "Be brief.")
    assert "Be brief." in prompt
    assert "What is quire?" in prompt
    assert prompt.index("Be brief.") < prompt.index("What is quire?")


def test_a_raw_prompt_is_continued_as_it_is_through_the_adapter(capsys):
    output, prompt = asked(capsys, "quire is", "--raw", "--adapter", "pirate")
    assert prompt.endswith("quire is")
    assert "user" not in prompt
    assert output["lora_request"]["lora_name"] == "pirate"


def test_a_question_goes_through_the_adapter_as_well(capsys):
    output, prompt = asked(capsys, "What is quire?", "--adapter", "pirate")
    assert "user" in prompt
    assert output["lora_request"]["lora_name"] == "pirate"


def run_in_pipes(*argv, stdin=""):
    command = [sys.executable, "-m", "quire.cli", "run", *argv, "--temperature", "0"]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=280)


def test_a_pipe_gets_the_completion_and_nothing_else():
    done = run_in_pipes(stdin="What is quire?\n")
    assert done.returncode == 0
    assert done.stdout == "quire is an LLM inference and serving engine whose parts are plugins.\n"
    assert done.stderr == ""


def test_a_terminal_shows_the_completion_and_nothing_else():
    terminal = Terminal("run", "What is quire?", "--temperature", "0")
    assert terminal.status() == 0
    last_line = terminal.shown.rpartition("\x1b[K")[2]  # a slow start may have shown its progress
    assert last_line == (
        "quire is an LLM inference and serving engine whose parts are plugins.\r\n"
    )


CUT = """
from quire.interfaces.tool_parsing import TextDelta, ToolCallStart, ToolParser


class Cut(ToolParser):
    def feed(self, delta):
        return [] if self.has_begun else self.begun()

    has_begun = False

    def begun(self):
        self.has_begun = True
        return [ToolCallStart(0, "f")]

    def close(self):
        return [TextDelta("markup")]
"""


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_call_that_a_limit_cuts_is_shown_as_a_call(is_terminal, tmp_path, monkeypatch, capsys):
    parser, tools = tmp_path / "cut.py", tmp_path / "tools.json"
    parser.write_text(CUT)
    tools.write_text(json.dumps([{"type": "function", "function": {"name": "f"}}]))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    flags = ["--tools", str(tools), "--tool-call-parser", str(parser), "--max-tokens", "2"]
    assert main(["run", "demo", "What is quire?", *flags]) == 0
    assert capsys.readouterr().out == "[tool call] f()\n"


def test_ctrl_c_ends_a_completion_without_a_traceback():
    lengths = ("--min-tokens", "900", "--max-tokens", "900")
    terminal = Terminal("run", "What is quire?", "--temperature", "0", *lengths)
    assert terminal.read_until("quire is an")
    terminal.type("\x03")
    assert terminal.status() == 130
    assert "Traceback" not in terminal.shown


def test_n_completions_are_printed_whole(capsys):
    argv = ["run", "hi", "--n", "2", "--max-tokens", "1", "--seed", "0"]
    assert main(argv) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_the_model_may_be_a_flag(capsys):
    assert main(["run", "-m", "demo", "hi", *FLAGS]) == 0
    assert json.loads(capsys.readouterr().out)["outputs"]


def test_statistics_go_to_standard_error(capsys):
    assert main(["run", "hi", "--stats", "--max-tokens", "3", "--ignore-eos"]) == 2
    assert main(["run", "hi", "--stats", "--max-tokens", "1"]) == 0
    captured = capsys.readouterr()
    assert "1 tokens in" in captured.err
    assert "tokens/s" not in captured.out


class Typed(io.StringIO):
    def isatty(self):
        return True


def test_a_prompt_is_read_from_a_pipe_if_none_is_given():
    assert read_prompt(None, io.StringIO("hi\n"), is_raw=False) == "hi"
    assert read_prompt("-", io.StringIO("hi\n"), is_raw=False) == "hi"


def test_a_raw_prompt_keeps_its_last_line_break():
    assert read_prompt(None, io.StringIO("hi\n"), is_raw=True) == "hi\n"


def test_a_prompt_and_a_file_are_joined_with_an_empty_line(tmp_path):
    path = tmp_path / "text"
    path.write_text("the text\n")
    with path.open() as stdin:
        assert read_prompt("Summarize:", stdin, is_raw=False) == "Summarize:\n\nthe text"


def test_standard_input_that_is_no_text_is_refused(tmp_path):
    latin = tmp_path / "latin1"
    latin.write_bytes("Was heißt das?".encode("latin1"))
    with (
        latin.open(encoding="utf-8", errors="surrogateescape") as stdin,
        pytest.raises(UsageError, match="UTF-8 text: byte 0xdf after 7 characters"),
    ):
        read_prompt(None, stdin, is_raw=False)


def test_with_a_prompt_no_device_or_socket_is_waited_for():
    with open("/dev/null") as stdin:
        assert read_prompt("hi", stdin, is_raw=False) == "hi"
    assert read_prompt("hi", io.StringIO("x"), is_raw=False) == "hi"
    assert read_prompt("hi", None, is_raw=False) == "hi"


@pytest.mark.parametrize("stdin", [Typed("never read"), None, io.StringIO(""), io.StringIO("\n")])
def test_no_prompt_says_how_to_give_one(stdin):
    with pytest.raises(UsageError, match="there is no prompt") as caught:
        read_prompt(None, stdin, is_raw=False)
    assert "or pipe one into it" in caught.value.hint
