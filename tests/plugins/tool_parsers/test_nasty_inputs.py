"""Completions that broke parsers of others are read as they are meant, for every split."""

import pytest
from nasty_inputs import nasty_inputs
from parser_families import contract_of, family, family_names

KIT_TESTS = (
    "test_every_cut_in_two_gives_the_same",
    "test_single_characters_give_the_same",
    "test_random_cuts_give_the_same",
    "test_cuts_between_tokens_give_the_same",
    "test_parsers_share_no_state",
)
MAX_LENGTH = 1_000  # of a text that is cut at every place
each_family = pytest.mark.parametrize("name", family_names())


def kit_of(name, inputs):
    return contract_of(family(name), tuple(each.sample for each in inputs))


@each_family
def test_each_input_gives_its_content_and_its_calls(name):
    inputs = nasty_inputs(name)
    kit = kit_of(name, inputs)
    wrong = []
    for each in inputs:
        parsed = kit.read(each.sample, [each.text])
        if not kit.is_expected(parsed, each.sample):
            wrong.append(f"{each.number}: {each.text!r} gives {parsed}, not {each.sample}")
    assert not wrong, "\n".join(wrong)


@each_family
def test_no_split_changes_an_input(name):
    kit = kit_of(name, [each for each in nasty_inputs(name) if len(each.text) < MAX_LENGTH])
    for test in KIT_TESTS:
        getattr(kit, test)()


@each_family
def test_nothing_of_an_input_is_lost(name):
    kit = kit_of(name, nasty_inputs(name))
    for sample in kit.samples:
        for text in (sample.text, f"wörd1x {sample.text}", f"{sample.text} wörd2x"):
            kit.check_nothing_lost(sample, text)


@each_family
def test_an_input_that_breaks_off_raises_nothing(name):
    kit = kit_of(name, nasty_inputs(name))
    for sample in kit.samples:
        for end in range(0, min(len(sample.text), MAX_LENGTH), 3):
            kit.check_nothing_lost(sample, sample.text[:end])
