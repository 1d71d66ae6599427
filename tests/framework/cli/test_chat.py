import subprocess
import sys

import pytest
from terminal import Terminal

from quire.async_engine import AsyncEngine
from quire.cli.main import main
from quire.frontend.chat.parsing.completion_parsers import CompletionParsers
from quire.interfaces.tool_parsing import TextDelta


def test_a_conversation_goes_line_by_line_until_an_empty_one():
    done = subprocess.run(
        [sys.executable, "-m", "quire.cli", "chat", "demo", "--temperature", "0"],
        input="What is quire?\nWhat is a KV cache?\n\n",
        capture_output=True,
        text=True,
        timeout=280,
        check=True,
    )
    first, second, rest = done.stdout.split("\n", 2)
    assert rest == ""  # a pipe is not asked for messages
    assert "quire is an LLM inference and serving engine" in first
    assert second.strip()


def talk(monkeypatch, capsys, lines, *argv):
    """Type some lines; return the status, the completions, and the number of refusals."""
    said = iter([*lines, ""])
    monkeypatch.setattr("builtins.input", lambda prompt: next(said))
    flags = ("--max-model-len", "96", "--max-tokens", "8", "--temperature", "0")
    status = main(["chat", "demo", *flags, *argv])
    captured = capsys.readouterr()
    return status, captured.out.split("\n")[:-1], captured.err.count("[context_length_exceeded]")


class HoldsBack:
    """Lets nothing go before the end."""

    def __init__(self):
        self.text = ""

    def feed(self, text):
        self.text += text
        return []

    def close(self):
        return [TextDelta(self.text)]


def test_what_a_parser_held_back_is_shown_at_the_end(monkeypatch, capsys):
    monkeypatch.setattr(CompletionParsers, "__call__", lambda *_, **__: HoldsBack())
    _, completions, _ = talk(monkeypatch, capsys, ["What is quire?"])
    assert "quire is" in completions[0]


LONG = "What is a KV cache? " * 40


def test_a_message_that_is_refused_is_no_part_of_the_conversation(monkeypatch, capsys):
    status, completions, num_refused = talk(monkeypatch, capsys, [LONG, "What is quire?"])
    assert (status, num_refused) == (0, 1)
    assert len(completions) == 1
    assert "quire is" in completions[0]


def test_the_system_message_is_part_of_every_prompt(monkeypatch, capsys):
    questions = ["What is quire?"]
    assert talk(monkeypatch, capsys, questions, "--system", LONG)[2] == 1
    assert talk(monkeypatch, capsys, questions, "--system", "Be brief.")[2] == 0


def test_every_completion_goes_through_the_adapter(monkeypatch, capsys):
    asked = []
    generate = AsyncEngine.generate

    def noted(self, prompt, params, **options):
        asked.append(options)
        return generate(self, prompt, params, **options)

    monkeypatch.setattr(AsyncEngine, "generate", noted)
    talk(monkeypatch, capsys, ["What is quire?", "And then?"], "--adapter", "pirate")
    talk(monkeypatch, capsys, ["What is quire?"])
    assert [options["lora_request"] for options in asked] == ["pirate", "pirate", None]


@pytest.mark.parametrize("has_asked", [False, True])
def test_ctrl_c_ends_a_conversation_without_a_traceback(has_asked):
    terminal = Terminal("chat", "demo", "--max-tokens", "900", "--temperature", "0")
    terminal.read_until("> ")
    if has_asked:
        terminal.type("Tell me about the KV cache.\n")
        terminal.read_until("cache.\r\n")
    terminal.interrupt()
    assert terminal.status() == 130
    assert "Traceback" not in terminal.shown
