"""Every registered family reads the calls that it writes, and any split of any text gives the same.

Families come from the registry, so a new one is tested, or fails for want of a spelling.
"""

import json
import random

import pytest
from parser_families import Completions, contract_of, family, family_names, hostile_texts
from written_calls import SPELLINGS

from quire.testing.parsing.parser_work import work_of
from quire.testing.parsing.splits import in_groups, of_length, random_cuts
from quire.testing.parsing.token_streams import token_streams
from quire.testing.tool_parsing import ToolSample

FAMILIES = family_names()
NUM_SPLITS = 10  # of a text
NUM_CASES = 5_000  # splits that are compared, of all families together
NUM_SLOW_CASES = 200_000
MAX_LINES = 80  # of Python, for a parser after the first one
each_family = pytest.mark.parametrize("name", FAMILIES)


def test_each_registered_family_has_a_spelling():
    assert set(FAMILIES) <= set(SPELLINGS)


@each_family
def test_any_split_of_any_text_gives_the_same(name):
    num_each = -(-NUM_CASES // len(FAMILIES))
    assert compare_splits(name, num_each, seed=1) >= num_each


@each_family
def test_markers_are_built_once_for_all_completions(name):
    parser = family(name).parser
    parser.for_tools(())
    assert work_of(lambda: parser.for_tools(())).num_lines <= MAX_LINES


@each_family
def test_blanks_at_each_place_of_calls_lose_nothing(name):
    of = family(name)
    kit = contract_of(of, tuple(samples_of(of.spelling)))
    kit.test_blanks_at_each_place_lose_nothing()
    kit.test_very_many_blanks_lose_nothing()


def samples_of(spelling):
    """Yield a call with all kinds of values, and two calls if the format has several."""
    values = {"city": "Oslo", "days": 3, "detailed": True, "tags": ["a"], "place": {"b": None}}
    weather, ping = ("get_weather", values), ("ping", {})
    for calls in ([weather], [weather, ping]):
        if not (len(calls) > 1 and spelling.is_single):
            expected = tuple((name, json.dumps(arguments)) for name, arguments in calls)
            yield ToolSample(spelling.write(calls), "", expected)


@each_family
def test_calls_that_are_forced_are_read(name):
    of = family(name)
    contract_of(of, (Completions(of, 0).sample(),)).test_forced_calls_are_read()


@each_family
def test_calls_of_two_completions_are_all_read(name):
    of = family(name)
    kit = contract_of(of, (*samples_of(of.spelling), Completions(of, 3).sample()))
    kit.test_calls_of_two_completions_are_all_read()


@each_family
@pytest.mark.parametrize(
    "tool", ["-", ".", "-a", ".a", "..", "_", "1", "functions.f", "not", "f" * 64]
)
def test_a_tool_may_have_any_name_that_a_request_may_have(name, tool):
    of = family(name)
    tools = ({"name": tool, "parameters": {"type": "object", "properties": {"a": {}}}},)
    sample = ToolSample(of.spelling.write([(tool, {"a": "xy"})]), "", ((tool, '{"a": "xy"}'),))
    kit = contract_of(of, (sample,), tools=tools)
    for deltas in ([sample.text], [*sample.text]):
        found = kit.read(sample, deltas)
        assert kit.is_expected(found, sample), f"{deltas} gives {found}"
    of.parser.call_grammar(tools, at_least_one=True)


@pytest.mark.slow
@each_family
def test_any_split_of_very_many_texts_gives_the_same(name):
    num_each = -(-NUM_SLOW_CASES // len(FAMILIES))
    assert compare_splits(name, num_each, seed=2) >= num_each


def compare_splits(name, num_cases, seed):
    """Compare splits of generated texts with the text in one piece; return their number."""
    of, chance = family(name), random.Random(f"{name} {seed}")
    completions, hostile = Completions(of, seed), hostile_texts(of, seed)
    examples = tuple(completions.sample() for _ in range(8))
    kit = contract_of(of, examples)
    streams = token_streams(tuple(each.text for each in examples), kit.format_markers())
    num_compared = 0
    while num_compared < num_cases:
        sample = completions.sample()
        whole = kit.read(sample, [sample.text])
        assert kit.is_expected(whole, sample), f"{sample.text!r} gives {whole}, not {sample}"
        (odd,) = hostile.first(1)
        for text in (sample.text, broken(sample.text, chance), odd):
            whole = kit.read(sample, [text])
            for _ in range(NUM_SPLITS):
                split = any_split(text, streams, chance)
                assert kit.read(sample, split) == whole, f"the split {split} gives another result"
                num_compared += 1
            kit.check_nothing_lost(sample, text)
    return num_compared


def broken(text, chance):
    """Return a completion that is cut off, or of which a part is missing or is there twice."""
    start, end = sorted(chance.randint(0, len(text)) for _ in range(2))
    return chance.choice([text[:end], text[:start] + text[end:], text[:end] + text[start:]])


def any_split(text, streams, chance):
    kind = chance.random()
    if kind < 0.5:
        return random_cuts(text, chance)
    if kind < 0.7:
        return of_length(text, chance.randint(1, 20))
    deltas = chance.choice(streams).deltas(text)
    return deltas if kind < 0.85 else in_groups(deltas, chance)
