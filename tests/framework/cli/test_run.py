"""`quire run`: what is asked on the command line is what the model gets."""

import io
import json
import sys

from quire.cli.main import main
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
