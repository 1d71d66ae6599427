"""What a parser declares has the types of its fields, or the plugin is told which has not."""

import re

import pytest

from quire.errors import PluginError
from quire.interfaces.reasoning import ReasoningParserCapabilities
from quire.interfaces.tool_parsing import ToolParserCapabilities


@pytest.mark.parametrize("capabilities", [ToolParserCapabilities, ReasoningParserCapabilities])
@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("markers", "abc", "of type tuple[str, ...], got 'abc'"),
        ("markers", (1,), "of type tuple[str, ...], got (1,)"),
        ("markers", None, "of type tuple[str, ...], got None"),
        ("markers", ("a", ""), "not have an empty text, got ('a', '')"),
        ("priority", True, "of type int, got True"),
        ("priority", "1", "of type int, got '1'"),
        ("tokenizer_config_key", 1, "of type str | None, got 1"),
        ("alternative_markers", ("a",), "of type tuple[tuple[str, ...], ...], got ('a',)"),
        ("alternative_markers", (("",),), "not have an empty text"),
    ],
)
def test_a_field_of_another_type_is_named(capabilities, field, value, wanted):
    said = re.escape(f"{field} of {capabilities.__name__} must {'be ' * ('of type' in wanted)}")
    with pytest.raises(PluginError, match=said + re.escape(wanted)):
        capabilities(**{field: value})


@pytest.mark.parametrize(
    ("capabilities", "field", "value"),
    [
        (ToolParserCapabilities, "call_id_length", "x"),
        (ToolParserCapabilities, "call_id_length", 0),
        (ToolParserCapabilities, "call_id_length", 65),
        (ToolParserCapabilities, "calls_end_reasoning", "no"),
        (ToolParserCapabilities, "call_openers", "<a>"),
        (ReasoningParserCapabilities, "end_marker", ("</a>",)),
        (ReasoningParserCapabilities, "end_marker", ""),
        (ReasoningParserCapabilities, "is_content", 1),
    ],
)
def test_fields_of_one_kind_are_checked_too(capabilities, field, value):
    with pytest.raises(PluginError, match=f"{field} of {capabilities.__name__} must"):
        capabilities(**{field: value})


def test_what_fits_is_taken_and_lists_are_tuples():
    assert ToolParserCapabilities(markers=["<a>"], call_id_length=64).call_id_length == 64
    assert ReasoningParserCapabilities(end_marker="</a>", alternative_markers=(("a", "b"),))
