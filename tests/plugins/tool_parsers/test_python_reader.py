"""Calls in Python's notation are read by its grammar."""

from collections.abc import Sequence
from typing import ClassVar

import pytest
from family_calls import read_calls
from hypothesis import given, settings
from hypothesis import strategies as st
from typed_tools import TYPED_TOOLS

from quire.interfaces.tool_parsing import ToolCallArguments, ToolCallStart
from quire.testing.tool_parsing import ToolParserContract, ToolSample
from quire_tool_parsers import families

WRITTEN = {
    "pythonic": "[{}]",
    "llama4_pythonic": "<|python_start|>[{}]<|python_end|>",
    "olmo3": "<function_calls>{}</function_calls>",
}
each_family = pytest.mark.parametrize("family", WRITTEN)

# The examples that the families publish: the prompt formats of Llama 3.2 and of Llama 4, and the
# chat template of Olmo 3.
PUBLISHED = (
    ("pythonic", '[get_user_info(user_id=7890, special="black")]',
     [("get_user_info", {"user_id": 7890, "special": "black"})]),
    ("llama4_pythonic",
     '[get_weather(city="San Francisco"), get_weather(city="Seattle")]',
     [("get_weather", {"city": "San Francisco"}), ("get_weather", {"city": "Seattle"})]),
    ("llama4_pythonic", '<|python_start|>[trending_songs(n=10, genre="all")]<|python_end|>',
     [("trending_songs", {"n": 10, "genre": "all"})]),
    ("olmo3", '<function_calls>get_weather(city="Paris", units=null)\\n'.replace("\\n", "\n")
     + "now()</function_calls>", [("get_weather", {"city": "Paris", "units": None}), ("now", {})]),
)  # fmt: skip


def read(family, text):
    return read_calls(family, text, TYPED_TOOLS)


@pytest.mark.parametrize(("family", "text", "calls"), PUBLISHED)
def test_the_published_example_is_read(family, text, calls):
    assert read_calls(family, text) == ("", calls)


@each_family
@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ("now()", {}),
        ("now( )", {}),
        ("find(text='a)]}, (\"')", {"text": 'a)]}, ("'}),
        ("find(text='a\nb', days=-74.0)", {"text": "a\nb", "days": -74.0}),
        ("find(text='dir\\\\', days=(1, 2))", {"text": "dir\\", "days": [1, 2]}),
        ("find(from='a', class=1, import=None)", {"from": "a", "class": 1, "import": None}),
        ("find(places=[[1, [2]], []], filter={'a': {'b': True}})",
         {"places": [[1, [2]], []], "filter": {"a": {"b": True}}}),
        ("find(exact=true, unit=null)", {"exact": True, "unit": None}),
        ("find(text = '''it's''' , )", {"text": "it's"}),
        ("find(text='\\ud83d\\ude00 é \U0001f600', limit=inf)",
         {"text": "\U0001f600 é \U0001f600", "limit": "inf"}),
        ("find(\n  text='a'\n  'b',\n  days=1_000,\n)", {"text": "ab", "days": 1000}),
        ("find.more-2(text='123')", {"text": "123"}),
    ],
)  # fmt: skip
def test_values_are_literals(family, written, arguments):
    name = written.split("(")[0]
    text = WRITTEN[family].format(written)
    tools = [*TYPED_TOOLS, {"name": "find.more-2"}]
    assert read_calls(family, text, tools) == ("", [(name, arguments)])


@each_family
def test_calls_without_arguments_stand_beside_others(family):
    for separator in (", ", ",\n") if family != "olmo3" else ("\n", "\n\n"):
        text = WRITTEN[family].format(separator.join(["now()", "find(days=1)", "now()"]))
        assert read(family, text) == ("", [("now", {}), ("find", {"days": 1}), ("now", {})])


@each_family
@pytest.mark.parametrize(
    "written",
    [
        "find('Oslo')",
        "find(days=1, days=2)",
        "find(days=x)",
        "find(days=f())",
        "find(days=1 text='a')",
        "find(days 1)",
        "find(**{'a': 1})",
        "find(filter={'a': 1, 'a': 2})",
        "find(text='C:\\')",
        "find(days=1",
        "find(text='Oslo",
        "find",
        "__import__('os').system('id')",
    ],
)
def test_what_is_no_call_is_text(family, written):
    text = WRITTEN[family].format(written)
    assert read(family, text) == (text, [])


@pytest.mark.parametrize(
    "text",
    [
        "[1] is a citation, see find(days=1).",
        "[find] it",
        "[see (the) text]",
        "I call [find(days=1)] now.",
        "[other(days=1)] is an example",
        "find it",
        "[",
        "[]",
        "import os\nprint(find(days=1))",
    ],
)
def test_prose_is_no_call(text):
    assert read("pythonic", text) == (text, [])
    assert read("llama4_pythonic", text) == (text, [])


def test_a_call_may_stand_without_a_list():
    assert read("pythonic", " find(days=1)\nnow()") == ("", [("find", {"days": 1}), ("now", {})])
    assert read("olmo3", "<function_calls>[now(), now()]</function_calls> ok") == (
        "ok", [("now", {}), ("now", {})],
    )  # fmt: skip


def test_only_the_first_call_without_a_marker_must_be_of_a_tool():
    assert read("pythonic", "[now(), other()]") == ("", [("now", {}), ("other", {})])


def test_llama_4_may_write_json():
    call = '{"name": "find", "parameters": {"days": 1}}'
    for text in (f"<|python_start|>{call}<|python_end|>", call, f"<|python_start|>[{call}]"):
        assert read("llama4_pythonic", text) == ("", [("find", {"days": 1})])


def test_python_code_between_the_markers_is_text():
    text = "<|python_start|>import os\nprint(1)<|python_end|>"
    assert read("llama4_pythonic", text) == (text, [])


def test_a_string_is_passed_on_while_it_is_written():
    parser = families.pythonic.for_tools(TYPED_TOOLS)
    assert parser.feed("[find(te") == [ToolCallStart(0, "find"), ToolCallArguments(0, "{")]
    assert parser.feed("xt='Os") == [ToolCallArguments(0, '"text": "Os')]
    assert parser.feed("lo\\") == [ToolCallArguments(0, "lo")]
    assert parser.feed("' x") == [ToolCallArguments(0, "' x")]


names = st.from_regex(r"[A-Za-z_][A-Za-z_0-9]{0,8}", fullmatch=True)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)  # fmt: skip


@given(st.sampled_from(sorted(WRITTEN)), names, st.dictionaries(names, values, max_size=3))
@settings(max_examples=80, deadline=None)
def test_what_python_writes_comes_back(family, name, arguments):
    written = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    text = WRITTEN[family].format(f"{name}({written})")
    assert read_calls(family, text) == ("", [(name, arguments)])


class TestOlmo3(ToolParserContract):
    """The kit that every tool parser passes."""

    parser = families.olmo3
    samples: ClassVar[Sequence[ToolSample]] = (
        ToolSample("Just text. 1 < 2, <tool> and\n\n", "Just text. 1 < 2, <tool> and\n\n"),
        ToolSample(
            "Ok.\n<function_calls>find(text='Oslo', more={'a': [1, (None, \"</function_calls>\")]})"
            "\nnow()</function_calls>\nDone.",
            "Ok.\nDone.",
            (
                ("find", '{"text": "Oslo", "more": {"a": [1, [null, "</function_calls>"]]}}'),
                ("now", "{}"),
            ),
        ),
    )


class TestPythonic(ToolParserContract):
    """The kit that every tool parser passes."""

    parser = families.pythonic
    samples: ClassVar[Sequence[ToolSample]] = (
        ToolSample("Just text. [1] 1 < 2, <tool> and\n", "Just text. [1] 1 < 2, <tool> and\n"),
        ToolSample(
            "[find(text='Oslo', n=-1.50), now()]",
            "",
            (("find", '{"text": "Oslo", "n": -1.50}'), ("now", "{}")),
        ),
    )


LFM2_TOOLS = [{"name": name, "parameters": {"type": "object"}} for name in ("f", "g")]


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ('[f(a="x"), g()]', "", [("f", {"a": "x"}), ("g", {})]),
        ('[{"name": "f", "arguments": {"a": 1}}]', "", [("f", {"a": 1})]),
        ("[f()]<|tool_call_end|>\nDone.", "Done.", [("f", {})]),
        ("<|tool_call_start|>[h()]<|tool_call_end|>", "", [("h", {})]),
        ("[h()]", "[h()]", []),
        ("So: [f()]", "So: [f()]", []),
        ("[1, 2]", "[1, 2]", []),
        ('{"name": "f"}', '{"name": "f"}', []),
    ],
)
def test_lfm2_may_leave_its_markers_out(text, content, calls):
    assert read_calls("lfm2", text, LFM2_TOOLS) == (content, calls)


def test_lfm2_writes_markers_where_a_grammar_holds_its_calls():
    tools = [LFM2_TOOLS[0], LFM2_TOOLS[1] | {"strict": True}]
    assert read_calls("lfm2", "[g()]", tools) == ("[g()]", [])
    marked = "<|tool_call_start|>[g()]<|tool_call_end|>"
    assert read_calls("lfm2", marked, tools) == ("", [("g", {})])
