"""A checkpoint's tokenizer_config.json may describe its parsers."""

import json

import pytest
from response_templates import CASES, HERMES

from quire.compose.choices.parser_choice import ParsedModel, choose_parser
from quire.config import Settings
from quire.errors import PluginLoadError
from quire.launch.composing import plan_composition
from quire.testing.checkpoints import write_checkpoint
from quire.testing.tool_parsing import read_events

NAME = "response_template"
CALL = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'


def model(chat_template="", **config):
    return ParsedModel("AcmeForCausalLM", chat_template, config)


@pytest.mark.parametrize("wanted", [NAME, "auto"])
def test_the_parser_is_made_from_the_checkpoints_file(quire_registries, wanted):
    registry = quire_registries.tool_parsers
    choice = choose_parser(registry, wanted, model(response_template=HERMES))
    parser = registry.load(choice.entry).for_tools([])
    assert choice.name == NAME
    assert read_events([*parser.feed(f"Hi {CALL}"), *parser.close()]).calls == [("now", "{}")]
    assert "<tool_call>" in choice.entry.capabilities.markers


@pytest.mark.parametrize("wanted", [NAME, "auto"])
def test_the_reasoning_parser_is_made_as_well(quire_registries, wanted):
    registry = quire_registries.reasoning_parsers
    choice = choose_parser(registry, wanted, model(response_template=HERMES))
    assert registry.load(choice.entry)(CASES["tags"][1]).is_thinking
    assert choice.entry.capabilities.end_marker == "</think>"


def test_auto_says_what_it_has_found(quire_registries):
    found = model(response_template=HERMES)
    choice = choose_parser(quire_registries.tool_parsers, "auto", found)
    assert choice.reason == "auto: the checkpoint's tokenizer_config.json has response_template"


def test_families_come_first(quire_registries):
    found = model("<tool_call><think>", response_template=HERMES)
    for registry in (quire_registries.tool_parsers, quire_registries.reasoning_parsers):
        choice = choose_parser(registry, "auto", found)
        assert choice.name in ("hermes", "think_tags")
        assert NAME in {rejection.name for rejection in choice.rejected}


def test_a_checkpoint_without_one_is_refused_by_name(quire_registries):
    registry = quire_registries.tool_parsers
    with pytest.raises(PluginLoadError, match=r"tokenizer_config\.json, and this one has no resp"):
        choose_parser(registry, NAME, model())
    assert choose_parser(registry, "auto", model()) is None


def test_one_that_cannot_be_read_is_an_error_only_by_name(quire_registries, caplog):
    registry = quire_registries.tool_parsers
    found = model(response_template=HERMES | {"version": 2})
    with pytest.raises(PluginLoadError, match=r"response_template of tokenizer_config\.json: ver"):
        choose_parser(registry, NAME, found)
    assert choose_parser(registry, "auto", found) is None
    assert "there is no tool-call parser for this model: response_template of" in caplog.text


def test_a_very_long_one_is_refused(quire_registries):
    found = model(response_template=HERMES | {"defaults": {"x": "a" * 2**20}})
    with pytest.raises(PluginLoadError, match="longer than 1048576"):
        choose_parser(quire_registries.tool_parsers, NAME, found)


def test_an_engine_reads_the_file_of_its_checkpoint(tmp_path):
    folder = write_checkpoint(tmp_path, "LlamaForCausalLM").folder
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"response_template": HERMES}))
    composition = plan_composition(Settings.from_options({"model": str(folder)}))
    assert composition.tool_parser.name == composition.reasoning_parser.name == NAME
