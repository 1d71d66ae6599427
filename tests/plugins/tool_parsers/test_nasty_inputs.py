"""Completions that broke parsers of others are read as they are meant, for every split."""

import json
import random

import pytest
from nasty_inputs import nasty_inputs
from parser_families import contract_of, family, family_names
from written_calls import TOOLS

from quire.frontend.chat.parsing.completion_parser import gather
from quire.frontend.chat.parsing.completion_parsers import CompletionParsers, ParserChoice
from quire.plugins.loading import load_plugins
from quire.testing.parsing.splits import random_cuts
from quire.testing.tool_parsing import ToolParserContract

NUM_SPLITS = 3
CALLS = (("find", {"query": "Oslo", "limit": 3}),)
CHANNELS = ("analysis", "commentary")
MAX_LENGTH = 1_000  # of a text that is cut at every place
WHOLE_KIT = (
    "test_every_cut_in_two_gives_the_same",
    "test_single_characters_give_the_same",
    "test_random_cuts_give_the_same",
    "test_cuts_between_tokens_give_the_same",
    "test_a_truncated_completion_raises_nothing",
    "test_a_lost_character_raises_nothing",
    "test_a_marker_twice_raises_nothing",
    "test_blanks_at_each_place_lose_nothing",
    "test_very_many_blanks_lose_nothing",
    "test_hostile_texts_lose_nothing",
    "test_repeated_fragments_raise_nothing",
    "test_each_fragment_ends",
    "test_calls_of_two_completions_are_all_read",
    "test_text_is_passed_on",
    "test_text_beside_calls_is_kept",
    "test_forced_calls_are_read",
    "test_arguments_keep_blanks_and_unicode",
    "test_parsers_share_no_state",
    "test_the_work_is_linear_in_the_text",
)
each_family = pytest.mark.parametrize("name", family_names())


@each_family
def test_each_input_gives_its_content_and_its_calls(name):
    inputs = nasty_inputs(name)
    kit = contract_of(family(name), tuple(each.sample for each in inputs))
    chance = random.Random(name)
    wrong = []
    for each in inputs:
        for split in ([each.text], *(random_cuts(each.text, chance) for _ in range(NUM_SPLITS))):
            parsed = kit.read(each.sample, split)
            if not kit.is_expected(parsed, each.sample):
                wrong.append(f"{each.number}: {split!r} gives {parsed}, not {each.sample}")
    assert not wrong, "\n".join(wrong)


@each_family
def test_what_is_beside_an_input_is_not_lost(name):
    kit = contract_of(family(name), tuple(each.sample for each in nasty_inputs(name)))
    for sample in kit.samples:
        if len(sample.text) <= MAX_LENGTH:
            kit.check_nothing_lost(sample, f"wörd1x {sample.text} wörd2x")


def splits_of(name, text):
    """Return a text in one piece, in characters and at random places."""
    chance = random.Random(name)
    return [[text], [*text], *(random_cuts(text, chance) for _ in range(NUM_SPLITS))]


def with_thinking(name):
    """Return the parsers of a family, the prompt, the end of the thinking, and the end of text."""
    if name == "openai":
        turn = "<|start|>assistant"
        analysis, commentary = (f"<|channel|>{each}<|message|>" for each in CHANNELS)
        return parsers_of("openai_gptoss", name), turn + analysis, [
            f"<|end|>{turn}{commentary}", f"<|end|>{turn}",
        ]  # fmt: skip
    return parsers_of("think_tags", name), "<think>\n", ["\n</think>\n\n", "\n"]


def parsers_of(*names):
    registries = load_plugins().registries
    kinds = zip((registries.reasoning_parsers, registries.tool_parsers), names, strict=True)
    entries = [(registry, registry.entry(name)) for registry, name in kinds]
    return CompletionParsers(*(
        ParserChoice(registry.load(entry), entry.source, entry.capabilities)
        for registry, entry in entries
    ))  # fmt: skip


def read(parsers, prompt, pieces):
    tools = [{"type": "function", "function": tool} for tool in TOOLS]
    parser = parsers(prompt, tools=tools)
    found = gather([event for piece in pieces for event in parser.feed(piece)] + parser.close())
    calls = tuple((call.name, json.loads(call.arguments)) for call in found.calls)
    return found.reasoning or "", found.text.strip(), calls


@each_family
def test_thinking_that_ends_before_a_text_and_a_call_is_no_content(name):
    """Number 5: all of them may come in one delta."""
    parsers, prompt, (end, behind) = with_thinking(name)
    spelling = family(name).spelling
    said = "" if spelling.is_bare else "Let me look."
    text = f"Hm.{end}{said}{behind if said else ''}{spelling.write(CALLS)}"
    for split in splits_of(name, text):
        assert read(parsers, prompt, split) == ("Hm.", said, CALLS)


@each_family
def test_a_call_in_thinking_without_an_end_is_one_if_the_family_says_so(name):
    """Number 6: nothing closes the thinking."""
    parsers, prompt, (_, behind) = with_thinking(name)
    calls = family(name).spelling.write(CALLS)
    for split in splits_of(name, f"Hm.{behind}{calls}"):
        if parsers.tools.capabilities.calls_end_reasoning:
            assert read(parsers, prompt, split) == ("Hm.", "", CALLS)
        else:
            assert read(parsers, prompt, split) == (f"Hm.{behind}{calls}", "", ())


@pytest.mark.slow
@pytest.mark.parametrize("test", WHOLE_KIT)
@each_family
def test_inputs_of_each_number_pass_the_kit(name, test):
    kit = contract_of(family(name), tuple(each.sample for each in two_of_each_number(name)))
    getattr(kit, test)()


def two_of_each_number(name):
    """Return the first and the last input of each number; the kit cuts them at every place."""
    inputs = nasty_inputs(name)
    first = {each.number: each for each in reversed(inputs)}
    last = {each.number: each for each in inputs}
    return list(dict.fromkeys([*first.values(), *last.values()]))


def test_the_whole_kit_is_run():
    tests = {name for name in dir(ToolParserContract) if name.startswith("test_")}
    assert tests - set(WHOLE_KIT) == {"test_samples_are_parsed_as_expected"}


def test_each_number_of_the_list_has_an_input():
    """The others are splits of all inputs (15, 22), or have their own tests (5, 6)."""
    numbers = {each.number for name in family_names() for each in nasty_inputs(name)}
    assert numbers == set(range(1, 26)) - {5, 6, 15, 22}
