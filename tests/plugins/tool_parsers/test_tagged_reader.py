# ruff: noqa: RUF001 - the markers of DeepSeek and Step have such bars
"""Arguments between tags are read as their schema says, exactly as they are written."""

import json
import tracemalloc
from collections.abc import Sequence
from typing import ClassVar

import pytest
from family_calls import read_calls
from hypothesis import given, settings
from hypothesis import strategies as st
from typed_tools import TYPED_TOOLS

from quire.interfaces.tool_parsing import ToolCallArguments, ToolCallStart
from quire.testing.tool_parsing import ToolParserContract, ToolSample, read_events
from quire_tool_parsers import families


def read(family, text):
    return read_calls(family, text, TYPED_TOOLS)


class Family:
    """How a family writes a call: with the name and arguments, and a section around calls."""

    def __init__(self, name, opener, closer, call, argument, close):
        self.name, self.opener, self.closer = name, opener, closer
        self._call, self._argument, self.close = call, argument, close

    def argument(self, key, value):
        return self._argument.format(key=key, value=value)

    def call(self, name, **arguments):
        written = "".join(self.argument(key, value) for key, value in arguments.items())
        return f"{self._call.format(name=name)}{written}{self.close}"

    def section(self, *calls):
        return f"{self.opener}{''.join(calls)}{self.closer}"

    def __repr__(self):
        return self.name


QWEN = Family(
    "qwen3_coder", "", "", "<tool_call>\n<function={name}>\n",
    "<parameter={key}>\n{value}\n</parameter>\n", "</function>\n</tool_call>\n",
)  # fmt: skip
SEED = Family(
    "seed_oss", "<seed:tool_call>\n", "</seed:tool_call>", "<function={name}>\n",
    "<parameter={key}>{value}</parameter>\n", "</function>\n",
)  # fmt: skip
MINIMAX = Family(
    "minimax_m2", "<minimax:tool_call>\n", "</minimax:tool_call>", '<invoke name="{name}">\n',
    '<parameter name="{key}">{value}</parameter>\n', "</invoke>\n",
)  # fmt: skip
DSML = Family(
    "deepseek_v32", "<｜DSML｜function_calls>\n", "</｜DSML｜function_calls>",
    '<｜DSML｜invoke name="{name}">\n',
    '<｜DSML｜parameter name="{key}">{value}</｜DSML｜parameter>\n', "</｜DSML｜invoke>\n",
)  # fmt: skip
STEP = Family(
    "step3", "<｜tool_calls_begin｜>\n", "<｜tool_calls_end｜>",
    '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{name}">\n',
    '<steptml:parameter name="{key}">{value}</steptml:parameter>\n',
    "</steptml:invoke><｜tool_call_end｜>\n",
)  # fmt: skip
GLM = Family(
    "glm45", "", "", "<tool_call>{name}\n",
    "<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n", "</tool_call>\n",
)  # fmt: skip
FAMILIES = (QWEN, SEED, MINIMAX, DSML, STEP, GLM)
each_family = pytest.mark.parametrize("family", FAMILIES, ids=repr)

# The examples that the families publish: Qwen3-Coder's and GLM-4.5's chat templates, the MiniMax-M2
# tool calling guide, DeepSeek-V3.2's encoding of messages, Step3's and Seed-OSS's chat templates.
PUBLISHED = (
    ("qwen3_coder", "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>"
     "\nvalue_1\n</parameter>\n<parameter=example_parameter_2>\nThis is the value for the second "
     "parameter\nthat can span\nmultiple lines\n</parameter>\n</function>\n</tool_call>",
     "example_function_name", {
         "example_parameter_1": "value_1",
         "example_parameter_2":
             "This is the value for the second parameter\nthat can span\nmultiple lines"}),
    ("seed_oss", "<seed:tool_call>\n<function=example_function_name>\n"
     "<parameter=example_parameter_1>value_1</parameter>\n<parameter=example_parameter_2>This is "
     "the value for the second parameter\nthat can span\nmultiple lines</parameter>\n</function>\n"
     "</seed:tool_call>", "example_function_name", {
         "example_parameter_1": "value_1",
         "example_parameter_2":
             "This is the value for the second parameter\nthat can span\nmultiple lines"}),
    ("minimax_m2", '<minimax:tool_call>\n<invoke name="search_web">\n<parameter name="query_tag">'
     '["technology", "events"]</parameter>\n<parameter name="query_list">["OpenAI", "latest", '
     '"release"]</parameter>\n</invoke>\n</minimax:tool_call>', "search_web", {
         "query_tag": '["technology", "events"]',
         "query_list": '["OpenAI", "latest", "release"]'}),
    ("deepseek_v32", '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n'
     '<｜DSML｜parameter name="location" string="true">Hangzhou</｜DSML｜parameter>\n'
     '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
     "</｜DSML｜function_calls>", "get_weather", {"location": "Hangzhou", "days": 3}),
    ("step3", "<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜>"
     '<steptml:invoke name="get_weather">\n<steptml:parameter name="location">Paris'
     "</steptml:parameter>\n</steptml:invoke><｜tool_call_end｜>\n<｜tool_calls_end｜>",
     "get_weather", {"location": "Paris"}),
    ("glm45", "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Beijing</arg_value>\n"
     "<arg_key>date</arg_key>\n<arg_value>2024-06-27</arg_value>\n</tool_call>",
     "get_weather", {"city": "Beijing", "date": "2024-06-27"}),
)  # fmt: skip


@pytest.mark.parametrize(("family", "text", "name", "arguments"), PUBLISHED)
def test_the_published_example_is_read(family, text, name, arguments):
    tool = {"name": name, "parameters": {"type": "object"}}
    assert read_calls(family, text, [*TYPED_TOOLS, tool]) == ("", [(name, arguments)])


@each_family
def test_values_have_the_types_of_the_schema(family):
    written = {
        "text": "123", "days": "7", "limit": "-74.0", "exact": "true", "places": '["a", "b"]',
        "filter": '{"a": {"b": [null]}}', "unit": "null", "page": "null", "other": "5",
    }  # fmt: skip
    expected = {
        "text": "123", "days": 7, "limit": -74.0, "exact": True, "places": ["a", "b"],
        "filter": {"a": {"b": [None]}}, "unit": None, "page": None, "other": "5",
    }  # fmt: skip
    text = family.section(family.call("find", **written))
    assert read(family.name, text) == ("", [("find", expected)])


@each_family
def test_what_is_no_value_of_its_type_stays_text(family):
    written = {"days": "1e999", "limit": "NaN", "exact": "maybe", "filter": "{", "page": "two"}
    text = family.section(family.call("find", **written))
    assert read(family.name, text) == ("", [("find", written)])


@each_family
def test_calls_without_arguments_are_calls(family):
    text = family.section(
        family.call("now"), family.call("find", days="3"), family.call("now"), family.call("now")
    )
    calls = [("now", {}), ("find", {"days": 3}), ("now", {}), ("now", {})]
    assert read(family.name, f"Wait.\n{text}") == ("Wait.", calls)


@each_family
def test_blanks_and_unicode_of_a_value_are_kept(family):
    value = "  e\u0301 👩‍👩‍👧\u2028 \"q\" \\n {'x'} \n\n  y\t"
    text = family.section(family.call("find", text=value))
    assert read(family.name, text) == ("", [("find", {"text": value})])


@each_family
def test_a_closing_tag_in_a_value_is_text(family):
    tag = family.argument("k", "V").split("V")[1].strip()
    for value in (f"a{tag}b", f"a{tag}", f"{tag}{tag} b", f"{tag}\n\nb"):
        written = family.section(family.call("find", text=value, days="1"))
        assert read(family.name, written) == ("", [("find", {"text": value, "days": 1})])


@each_family
def test_the_end_of_the_call_in_a_value_is_text(family):
    for value in (f"a {family.close} b", f"see {family.close.strip()}.", f"{family.close}<x>"):
        written = family.section(family.call("find", text=value, days="1"))
        assert read(family.name, written) == ("", [("find", {"text": value, "days": 1})])


@each_family
def test_the_last_argument_may_lack_its_closing_tag(family):
    tag = family.argument("k", "V").split("V")[1].strip()
    unclosed = family.call("find", unit="km").replace(tag, "")
    _, calls = read(family.name, family.section(unclosed, family.call("now")))
    assert [name for name, _ in calls] == ["find", "now"]
    assert calls[0][1]["unit"].strip("\n") == "km"
    whole = family.section(unclosed)
    has_two_closers = family is not GLM
    assert bool(read(family.name, whole)[1]) == has_two_closers
    broken_off = whole[: whole.index("km") + 2] + family.close.split("\n")[0].split("><")[0]
    assert read(family.name, broken_off)[1] == []


@each_family
def test_a_call_without_its_section_is_a_call(family):
    assert read(family.name, family.call("find", days="3")) == ("", [("find", {"days": 3})])
    opened = family.opener + family.call("find", days="3") + family.call("now")
    assert read(family.name, opened) == ("", [("find", {"days": 3}), ("now", {})])


@each_family
def test_a_call_that_is_cut_is_text(family):
    text = family.section(family.call("find", text="Oslo and Rome", days="3"))
    for end in range(1, text.index(family.close.strip()), 3):
        cut = text[:end]
        assert read(family.name, cut) == (cut, [])


@each_family
def test_a_broken_call_does_not_break_the_next_one(family):
    broken = family.call("find", text="x").replace("find", "fi nd", 1)
    content, calls = read(family.name, family.section(broken, family.call("now")))
    assert calls == [("now", {})]
    assert "fi nd" in content


@each_family
def test_markers_in_prose_are_text(family):
    for text in (
        f"Write {family.opener or '<tool_call>'} before a call.",
        f"Use {family.call('now')[:12].strip()} like this, or {family.close.strip()} there.",
        "a < b, <b>bold</b> </parameter> <parameter=x> <arg_key>",
    ):
        assert read(family.name, text) == (text, [])


@each_family
def test_of_an_argument_twice_the_first_value_counts(family):
    text = family.section(family.call("find", days="1", text="x") + family.call("now"))
    again = family.argument("days", "2") + family.argument("text", "y")
    again = text.replace(family.close, again + family.close, 1)
    assert read(family.name, again) == ("", [("find", {"days": 1, "text": "x"}), ("now", {})])


@each_family
def test_a_string_is_passed_on_while_it_is_written(family):
    whole = family.section(family.call("find", text="Oslo is far away", unit="kilometres"))
    parser = parser_of(family.name).for_tools(TYPED_TOOLS)
    events = parser.feed(whole[: whole.index("far")])
    assert events[0] == ToolCallStart(0, "find")
    assert events[1] == ToolCallArguments(0, '{"text": "Oslo is ')
    events = parser.feed(whole[whole.index("far") : whole.index("metres")])
    assert events == [ToolCallArguments(0, 'far away", "unit": "kilo')]


def parser_of(name):
    return families.__getattr__(name)


@pytest.mark.parametrize("brk", ["\n", "\r\n"])
def test_qwen_one_line_break_on_each_side_is_not_of_the_value(brk):
    for value in ("a", f"{brk}a{brk}", "", brk, "\ra", f"a{brk} "):
        text = QWEN.call("find", text="V").replace("\nV\n", f"{brk}{value}{brk}")
        assert read("qwen3_coder", text) == ("", [("find", {"text": value})])
    text = QWEN.call("find", text="V").replace("\nV\n", "V")
    assert read("qwen3_coder", text) == ("", [("find", {"text": "V"})])


def test_qwen_a_call_may_end_at_any_of_its_closing_tags():
    text = "<function=find>\n<parameter=text>\nabc\n"
    ends = ("</function>\n</tool_call>", "</function></tool_c", "</parameter></function>")
    for end in (*ends, "</parameter></tool_call>"):
        assert read("qwen3_coder", text + end) == ("", [("find", {"text": "abc"})])


@pytest.mark.parametrize("name", ['"find"', "'find'", "find"])
def test_minimax_names_are_quoted_or_not(name):
    text = (
        f"<invoke name={name}><parameter name={name.replace('find', 'text')}>x</parameter></invoke>"
    )
    assert read("minimax_m2", text) == ("", [("find", {"text": "x"})])


@pytest.mark.parametrize(
    ("attribute", "value", "expected"),
    [
        ('string="true"', "5", "5"),
        ('string="true"', " null ", " null "),
        ('string="false"', "5", 5),
        ('string="false"', '"a"', "a"),
        ('string="false"', '{"a": [1]}', {"a": [1]}),
        ('string="false"', "not JSON", "not JSON"),
        ("", "5", 5),
    ],
)
def test_dsml_an_attribute_says_what_is_a_string(attribute, value, expected):
    text = DSML.section(DSML.call("find", days=value)).replace('"days"', f'"days" {attribute}')
    assert read("deepseek_v32", text) == ("", [("find", {"days": expected})])


def test_dsml_arguments_may_be_one_json_object():
    call = (
        '<｜DSML｜invoke name="find">\n{"days": 3, "text": "</｜DSML｜invoke>"}\n</｜DSML｜invoke>'
    )
    expected = {"days": 3, "text": "</｜DSML｜invoke>"}
    assert read("deepseek_v32", DSML.section(call, DSML.call("now"))) == (
        "", [("find", expected), ("now", {})],
    )  # fmt: skip
    broken = call.replace("3,", "3 3,")
    assert read("deepseek_v32", broken) == (broken, [])


def test_dsml_bars_may_be_doubled():
    text = DSML.section(DSML.call("find", days="3"), DSML.call("now")).replace("｜", "｜｜")
    assert read("deepseek_v32", text) == ("", [("find", {"days": 3}), ("now", {})])


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>find\n<arg_key>days</arg_key>\n3</arg_value>\n</tool_call>",
        "<tool_call>find<arg_key>days</arg_key></arg_key><arg_value>3</arg_value></tool_call>",
        "<tool_call>find<arg_key>days</arg_key><arg_value>3</arg_value></tool_call>",
        "<tool_call>\nfind\n<arg_key> days </arg_key><arg_value>3</arg_value>\n\n</tool_call>",
    ],
)
def test_glm_tags_that_are_missing_or_doubled(text):
    assert read("glm45", text) == ("", [("find", {"days": 3})])


def test_glm_a_name_alone_is_a_call():
    assert read("glm45", "<tool_call>now</tool_call>") == ("", [("now", {})])
    assert read("glm45", "Hi <tool_call>now</tool_call><tool_call>now\n</tool_call> ok") == (
        "Hi ok", [("now", {}), ("now", {})],
    )  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "Say <tool_call>name</tool_call>, as I do.",
        "<tool_call>{function-name}\n<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n"
        "</tool_call>",
    ],
)
@pytest.mark.parametrize("family", ["glm45", "glm47"])
def test_glm_a_name_is_that_of_a_tool_or_prose_would_be_a_call(family, text):
    assert read(family, text) == (text, [])
    assert read(family, f"{text}<tool_call>now</tool_call>") == (text, [("now", {})])


@pytest.mark.parametrize("is_marked", [True, False])
def test_glm_blanks_before_a_value_are_not_read_again_with_each_delta(is_marked):
    parser = families.glm45.for_tools(TYPED_TOOLS)
    events = parser.feed("<tool_call>find<arg_key>text</arg_key>")
    for _ in range(20):
        events += parser.feed("\n" * 100)
    assert len(parser._buffer) <= 100
    opening = "<arg_value>" if is_marked else ""
    events += [*parser.feed(f"{opening}3</arg_value></tool_call>"), *parser.close()]
    ((_, arguments),) = read_events(events).calls
    assert json.loads(arguments) == {"text": "3" if is_marked else "\n" * 1999 + "3"}


def test_an_object_that_is_held_until_its_end_is_not_copied_with_each_delta():
    tools = [{"name": "f", "parameters": {"properties": {"a": {"type": "object"}}}}]
    parser = families.glm45.for_tools(tools)
    parser.feed('<tool_call>f<arg_key>a</arg_key><arg_value>{"k": "')
    for _ in range(5000):
        parser.feed(" fox")
    tracemalloc.start()
    parser.feed(" fox")  # what is held is traced from here on
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    parser.feed(" fox")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(parser._buffer) > 20_000 > 4 * (most - held)


def test_glm_a_name_is_announced_when_it_is_certain():
    parser = families.glm45.for_tools(TYPED_TOOLS)
    assert parser.feed("<tool_call>like ") == []
    assert parser.feed("th") != []
    assert not [event for event in parser.close() if isinstance(event, ToolCallStart)]


def test_a_json_schema_with_odd_keys_is_no_problem():
    text = '<tool_call>find\n<arg_key>my key "1"</arg_key><arg_value>x</arg_value></tool_call>'
    assert read("glm45", text) == ("", [("find", {'my key "1"': "x"})])
    text = '<invoke name="find"><parameter name="my key é">x</parameter></invoke>'
    assert read("minimax_m2", text) == ("", [("find", {"my key é": "x"})])


values = st.text(st.characters(codec="utf-8"), max_size=20) | st.sampled_from(
    ["</parameter>", "</parameter> x", "\n", "\r\n", "\n\n", "</function>", "</arg_value>a", "{}"]
)


@given(st.sampled_from(FAMILIES), st.lists(values, max_size=3), st.data())
@settings(max_examples=150, deadline=None)
def test_any_text_of_a_string_comes_back(family, texts, data):
    keys = ["text", "first", "second"]
    arguments = dict(zip(keys, texts, strict=False))
    if family is QWEN or family is SEED:
        arguments = {key: f"<{value}>" for key, value in arguments.items()}
    whole = family.section(family.call("find", **arguments))
    parser = parser_of(family.name).for_tools(TYPED_TOOLS)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    events = [
        event
        for i, j in zip([0, *cuts], [*cuts, len(whole)], strict=True)
        for event in parser.feed(whole[i:j])
    ] + parser.close()
    pieces = [event.piece for event in events if isinstance(event, ToolCallArguments)]
    assert json.loads("".join(pieces)) == arguments


class TestQwen3Coder(ToolParserContract):
    """The kit that every tool parser passes."""

    parser = families.qwen3_coder
    samples: ClassVar[Sequence[ToolSample]] = (
        ToolSample("Just text. 1 < 2, <tool> and\n\n", "Just text. 1 < 2, <tool> and\n\n"),
        ToolSample(
            f"Let me look.\n{QWEN.call('find', text='Oslo', more=' {} ')}{QWEN.call('now')}Ok.",
            "Let me look.\nOk.",
            (("find", '{"text": "Oslo", "more": " {} "}'), ("now", "{}")),
        ),
    )


class TestGlm(ToolParserContract):
    """The kit that every tool parser passes."""

    parser = families.glm45
    samples: ClassVar[Sequence[ToolSample]] = (
        ToolSample(
            f"Let me look.\n{GLM.call('find', text='a </tool_call> x', to='Oslo')}"
            f"{GLM.call('now')}",
            "Let me look.",
            (("find", '{"text": "a </tool_call> x", "to": "Oslo"}'), ("now", "{}")),
        ),
    )


class TestDsml(ToolParserContract):
    """The kit that every tool parser passes."""

    parser = families.deepseek_v32
    samples: ClassVar[Sequence[ToolSample]] = (
        ToolSample(
            f"Let me look.\n{DSML.section(DSML.call('find', text='Oslo'), DSML.call('now'))}",
            "Let me look.",
            (("find", '{"text": "Oslo"}'), ("now", "{}")),
        ),
    )


LISTS = [
    {
        "name": "find",
        "parameters": {
            "type": "object",
            "properties": {"tags": {"type": "array"}, "note": {"type": ["string", "object"]}},
        },
    }
]


@pytest.mark.parametrize("key", ["tags", "note"])
def test_markers_within_json_are_data(key):
    value = ["a</arg_value><arg_key>b</arg_key>", {"c": '"</arg_value></tool_call>'}]
    given = value if key == "tags" else value[1]
    written = f"<arg_key>{key}</arg_key><arg_value>{json.dumps(given)}</arg_value></tool_call>"
    expected = ("", [("find", {key: given})])
    assert read_calls("glm47", f"<tool_call>find{written}", LISTS) == expected


@pytest.mark.parametrize("value", ['["a', '["a"', '["a" b]', '{"a": "}', "[1, 2]]"])
def test_json_that_is_broken_ends_at_its_tag_as_any_text_does(value):
    call = (
        f"<tool_call>\n<function=find>\n<parameter=tags>\n{value}\n</parameter>\n</function>\n"
        "</tool_call>"
    )
    expected = [("find", {"tags": value})]
    assert read_calls("qwen3_coder", call, LISTS) == ("", expected)
    assert read_calls("qwen3_coder", f"{call}\n{call}", LISTS) == ("", expected * 2)
