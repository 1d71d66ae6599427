"""Chat templates get ids that they take; ids that they take stay as they are."""

import pytest

from quire_tool_parsers import families


@pytest.mark.parametrize("call_id", ["call_0f3a", "toolu_01A9", "functions.f:0", "", "ab1234567é"])
def test_mistral_gets_nine_letters_and_digits(call_id):
    made = families.mistral.prompt_call_id(call_id, "f", 0)
    assert len(made) == 9
    assert made.isascii()
    assert made.isalnum()
    assert made == families.mistral.prompt_call_id(call_id, "f", 0)


def test_two_ids_stay_two():
    made = {families.mistral.prompt_call_id(f"call_{i}", "f", i) for i in range(1000)}
    assert len(made) == 1000


def test_ids_of_the_family_stay():
    assert families.mistral.prompt_call_id("Ab3dE6gH9", "f", 3) == "Ab3dE6gH9"
    assert families.kimi_k2.prompt_call_id("functions.f:7", "f", 3) == "functions.f:7"


@pytest.mark.parametrize("call_id", ["call_0f3a", "functions.g:0", "functions.f", "3", ""])
def test_kimi_gets_the_name_and_the_number_of_the_call(call_id):
    assert families.kimi_k2.prompt_call_id(call_id, "f", 3) == "functions.f:3"


def test_other_families_take_any_id():
    assert families.hermes.prompt_call_id("call_1", "f", 3) == "call_1"
