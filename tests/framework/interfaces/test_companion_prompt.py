"""Prompts of companions as request fields."""

import pytest

from quire.errors import InvalidRequestError, PluginError
from quire.interfaces.companion_prompt import MAX_BYTES, CompanionPrompt
from quire.interfaces.field_types import FieldVocabulary
from quire.interfaces.sampling import RequestField, SamplerCapabilities

TYPE = CompanionPrompt("scale")
VOCABULARY = FieldVocabulary(10, lambda text: [len(text)])


@pytest.mark.parametrize("value", ["", "a text", [], [0, 9]])
def test_a_text_or_token_ids_are_a_prompt(value):
    assert TYPE.resolve(TYPE.check(value, "other"), "other", VOCABULARY) == value


@pytest.mark.parametrize("value", [None, 1, {"a": 1}, "a" * (MAX_BYTES + 1), "\udc00"])
def test_anything_else_is_refused(value):
    with pytest.raises(InvalidRequestError) as caught:
        TYPE.check(value, "other")
    assert caught.value.param == "other"


@pytest.mark.parametrize("token_id", [-1, 10, True, 1.0, "1", None])
def test_ids_that_are_no_tokens_are_refused(token_id):
    with pytest.raises(InvalidRequestError) as caught:
        TYPE.resolve([1, token_id], "other", VOCABULARY)
    assert caught.value.param == "other"


def test_no_step_reads_it_from_the_device():
    assert TYPE.columns(10) == TYPE.cells([1], 10) == ()


@pytest.mark.parametrize(
    "fields",
    [
        (RequestField("other", TYPE, ""),),
        (RequestField("scale", CompanionPrompt("scale"), ""),),
    ],
)
def test_its_switch_is_a_number_of_the_same_step(fields):
    with pytest.raises(PluginError, match="scale"):
        SamplerCapabilities(stage="penalty", fields=fields)


@pytest.mark.parametrize("declared", ["is_opt_in", "is_fusible"])
def test_a_step_that_gets_some_rows_only_has_no_companion(declared):
    fields = (RequestField("scale", float, 1.0), RequestField("other", TYPE, ""))
    SamplerCapabilities(stage="penalty", fields=fields)
    with pytest.raises(PluginError, match=declared):
        SamplerCapabilities(stage="penalty", fields=fields, **{declared: True})
