# ruff: noqa: RUF001 - the markers of DeepSeek have wide bars
"""Calls as the families publish them: whole, in pieces, truncated; and what is none is text.

Arguments are in JSON here; families with tags, Python or braces have tests of their readers.
"""

import json

import pytest

from quire.interfaces.tool_parsing import TextDelta, ToolCallStart
from quire.testing.tool_parsing import ReadCompletion, read_events
from quire_tool_parsers import families
from quire_tool_parsers.family_table import read_table

NAMES = (
    "get_weather", "get_current_weather", "find", "now", "getWeather", "get_current_temperature",
    "manage_user_memory", "get_current_conditions", "spotify_trending_songs",
)  # fmt: skip
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOLS = [{"name": name, "parameters": PARAMETERS} for name in NAMES]
TRICKY = (
    '{"text": "] } \\" </tool_call> ```\\n[TOOL_CALLS] <|tool_call_end|> é 👩‍👩‍👧", '
    '"deep": {"a": {"b": [1, {"c": null}]}}}'
)

# Family, completion, content, calls. The comment names the source of the format.
PUBLISHED = [
    # NousResearch/Hermes-2-Pro model card, "Prompt Format for Function Calling"; two calls of
    # Qwen3's chat template
    (
        "hermes",
        'Let me see.\n<tool_call>\n{"name": "find", "arguments": {"symbol": "TSLA"}}\n'
        "</tool_call>\n"
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        "Let me see.",
        [("find", '{"symbol": "TSLA"}'), ("now", "{}")],
    ),
    # ibm-granite/granite-4.0 chat template; arguments as a string, as in vLLM issue 36827
    (
        "granite4",
        '<tool_call>\n{"name": "find", "arguments": "{\\"city\\": \\"Boston\\"}"}\n</tool_call>',
        "",
        [("find", '{"city": "Boston"}')],
    ),
    # meituan-longcat/LongCat-Flash-Chat model card, "Tool Call"
    (
        "longcat",
        '<longcat_tool_call>\n{"name": "find", "arguments": {"a": 1}}\n</longcat_tool_call>',
        "",
        [("find", '{"a": 1}')],
    ),
    # baidu/ERNIE-4.5-21B-A3B-Thinking chat template
    (
        "ernie45",
        '\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Beijing"}}\n</tool_call>\n',
        "",
        [("get_weather", '{"city": "Beijing"}')],
    ),
    # Salesforce/Llama-xLAM-2-8b-fc-r model card: a bare list; the other places as in its parsers
    (
        "xlam",
        '[{"name": "get_weather", "arguments": {"location": "London"}}, '
        '{"name": "now", "arguments": {}}]',
        "",
        [("get_weather", '{"location": "London"}'), ("now", "{}")],
    ),
    (
        "xlam",
        'I\'ll help.\n```json\n[{"name": "find", "arguments": {}}, '
        '{"name": "find", "arguments": {"a": 1}}]\n```',
        "I'll help.",
        [("find", "{}"), ("find", '{"a": 1}')],
    ),
    (
        "xlam",
        '<think>Look it up.</think>[{"name": "find", "arguments": {}}]',
        "<think>Look it up.</think>",
        [("find", "{}")],
    ),
    ("xlam", 'Hm.[TOOL_CALLS][{"name": "find", "arguments": {}}]', "Hm.", [("find", "{}")]),
    (
        "xlam",
        '<tool_call>[{"name": "find", "arguments": {}}]</tool_call>',
        "",
        [("find", "{}")],
    ),
    # InternLM/InternLM chat/chat_format.md, "Complete prompt format with function call"
    (
        "internlm",
        'I need the weather.<|action_start|><|plugin|>\n{"name": "get_current_weather", '
        '"parameters": {"location": "Shanghai"}}<|action_end|>',
        "I need the weather.",
        [("get_current_weather", '{"location": "Shanghai"}')],
    ),
    # internlm/Intern-S1: a blank between the markers
    (
        "internlm",
        '<|action_start|> <|plugin|>\n{"name": "find", "parameters": {}}\n<|action_end|>\n',
        "",
        [("find", "{}")],
    ),
    # Llama 3.1 "Model Cards and Prompt formats", "JSON based tool calling"
    (
        "llama3_json",
        '{"name": "get_current_conditions", "parameters": {"location": "San Francisco, CA", '
        '"unit": "Fahrenheit"}}',
        "",
        [("get_current_conditions", '{"location": "San Francisco, CA", "unit": "Fahrenheit"}')],
    ),
    # The same with the tag of built-in tools, with `type`, and several with `;` as in vLLM's docs
    (
        "llama3_json",
        '<|python_tag|>{"type": "function", "name": "find", "parameters": {"a": "1"}}; '
        '{"name": "now", "parameters": {}}',
        "",
        [("find", '{"a": "1"}'), ("now", "{}")],
    ),
    # Text around calls, as in vLLM's tests
    (
        "llama3_json",
        'Here it is: {"name": "find", "parameters": {"l": {"m": {"n": 3}}}} Anything {else}?',
        "Here it is: Anything {else}?",
        [("find", '{"l": {"m": {"n": 3}}}')],
    ),
    # microsoft/Phi-4-mini-instruct: chat template for vLLM of its model card
    (
        "phi4_mini_json",
        'functools[{"name": "get_weather", "arguments": {"city": "Paris [75]"}}, '
        '{"name": "now", "arguments": {}}]',
        "",
        [("get_weather", '{"city": "Paris [75]"}'), ("now", "{}")],
    ),
    # The same model with the markers of its own chat template
    (
        "phi4_mini_json",
        'Yes.<|tool_call|>[{"name": "find", "arguments": {"a": 1}}]<|/tool_call|>',
        "Yes.",
        [("find", '{"a": 1}')],
    ),
    # ibm-granite/granite-3.0 and 3.1 chat templates
    (
        "granite",
        '<|tool_call|>[{"name": "get_current_weather", "arguments": {"location": "Boston"}}]',
        "",
        [("get_current_weather", '{"location": "Boston"}')],
    ),
    (
        "granite",
        '<tool_call>[{"name": "find", "arguments": {}}, {"name": "now", "arguments": {}}] Done.',
        "Done.",
        [("find", "{}"), ("now", "{}")],
    ),
    # ai21labs/AI21-Jamba-1.5-Mini model card, "Tool use with Jamba"
    (
        "jamba",
        '<tool_calls>[\n{"name": "get_current_weather", "arguments": {"city": "Tokyo"}},\n'
        '{"name": "now", "arguments": {}}\n]</tool_calls>',
        "",
        [("get_current_weather", '{"city": "Tokyo"}'), ("now", "{}")],
    ),
    # ServiceNow-AI/Apriel-1.5-15b-Thinker chat template
    (
        "apriel",
        'Here: <tool_calls>[{"name": "find", "arguments": {"a": 1}}, '
        '{"name": "now", "arguments": {}}]</tool_calls>',
        "Here:",
        [("find", '{"a": 1}'), ("now", "{}")],
    ),
    # MiniMaxAI/MiniMax-M1 docs/function_call_guide.md: one object a line
    (
        "minimax",
        '<tool_calls>\n{"name": "find", "arguments": {"a": 1}}\n'
        '{"name": "now", "arguments": {}}\n</tool_calls>',
        "",
        [("find", '{"a": 1}'), ("now", "{}")],
    ),
    # nvidia/NVIDIA-Nemotron-Nano-9B-v2 model card, "Tool calling"; brackets may be missing
    (
        "nemotron_json",
        '<TOOLCALL>[{"name": "find", "arguments": {"a": 1}}, '
        '{"name": "now", "arguments": {}}]</TOOLCALL>',
        "",
        [("find", '{"a": 1}'), ("now", "{}")],
    ),
    (
        "nemotron_json",
        '<TOOLCALL>{"name": "find", "arguments": {"a": 1}}</TOOLCALL> Done.',
        "Done.",
        [("find", '{"a": 1}')],
    ),
    # swiss-ai/Apertus-8B-Instruct-2509 chat template
    (
        "apertus",
        'I look.<|tools_prefix|>[{"find": {"a": {"b": 1}}}, {"now": {}}]<|tools_suffix|>',
        "I look.",
        [("find", '{"a": {"b": 1}}'), ("now", "{}")],
    ),
    # ibm-granite/granite-20b-functioncalling model card
    (
        "granite_20b_fc",
        '<function_call> {"name": "find", "arguments": {"a": 1}} '
        '<function_call> {"name": "now", "arguments": {}}',
        "",
        [("find", '{"a": 1}'), ("now", "{}")],
    ),
    # tencent/Hunyuan-A13B-Instruct, "Tool Calling" of its repository
    (
        "hunyuan_a13b",
        'I check.\n<tool_calls>[{"name": "get_weather", "arguments": {"a": {"b": {"c": 1}}}}]'
        "</tool_calls>",
        "I check.",
        [("get_weather", '{"a": {"b": {"c": 1}}}')],
    ),
    # ai-sage/GigaChat3 chat template, and that of 3.1
    (
        "gigachat3",
        'I check.<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "manage_user_memory", '
        '"arguments": {"action": "create"}}',
        "I check.",
        [("manage_user_memory", '{"action": "create"}')],
    ),
    (
        "gigachat3",
        'I check.<|function_call|>{"name": "manage_user_memory", "arguments": {}}',
        "I check.",
        [("manage_user_memory", "{}")],
    ),
    # mistralai/Mistral-7B-Instruct-v0.3 model card (tokenizer v3), and mistral-common (v11, v13)
    (
        "mistral",
        '[TOOL_CALLS] [{"name": "get_current_weather", "arguments": {"location": "Paris", '
        '"format": "celsius"}}, {"name": "now", "arguments": {}, "id": "VvvODy9mT"}]',
        "",
        [("get_current_weather", '{"location": "Paris", "format": "celsius"}'), ("now", "{}")],
    ),
    (
        "mistral",
        'So:[TOOL_CALLS]get_weather[ARGS]{"name": "x"}[TOOL_CALLS]now[CALL_ID]VvvODy9mT[ARGS]{}',
        "So:",
        [("get_weather", '{"name": "x"}'), ("now", "{}")],
    ),
    ("mistral", '[TOOL_CALLS]find{"a": 1}', "", [("find", '{"a": 1}')]),
    # deepseek-ai/DeepSeek-V3-0324 chat template; a fence within an argument
    (
        "deepseek_v3",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_current_weather\n"
        '```json\n{"code": "```json\\n{}\\n```"}\n```<｜tool▁call▁end｜>\n'
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜>"
        "<｜tool▁calls▁end｜>",
        "",
        [("get_current_weather", '{"code": "```json\\n{}\\n```"}'), ("now", "{}")],
    ),
    # deepseek-ai/DeepSeek-V3.1 model card, "ToolCall"
    (
        "deepseek_v31",
        "Well.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>find<｜tool▁sep｜>"
        '{"a": 1}<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜>'
        "<｜tool▁calls▁end｜>",
        "Well.",
        [("find", '{"a": 1}'), ("now", "{}")],
    ),
    # moonshotai/Kimi-K2-Instruct docs/tool_call_guidance.md
    (
        "kimi_k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        '<|tool_call_argument_begin|>{"city": "Beijing"}<|tool_call_end|><|tool_call_begin|>'
        "functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        "",
        [("get_weather", '{"city": "Beijing"}'), ("now", "{}")],
    ),
]

# One call of each family, and the texts before and behind the arguments.
AROUND = {
    "hermes": ('<tool_call>\n{"name": "find", "arguments": ', "}\n</tool_call>"),
    "granite4": ('<tool_call>\n{"name": "find", "arguments": ', "}\n</tool_call>"),
    "longcat": ('<longcat_tool_call>{"name": "find", "arguments": ', "}</longcat_tool_call>"),
    "ernie45": ('<tool_call>{"name": "find", "arguments": ', "}</tool_call>"),
    "xlam": ('[{"name": "find", "arguments": ', "}]"),
    "internlm": (
        '<|action_start|><|plugin|>\n{"name": "find", "parameters": ', "}<|action_end|>",
    ),
    "llama3_json": ('{"name": "find", "parameters": ', "}"),
    "phi4_mini_json": ('functools[{"name": "find", "arguments": ', "}]"),
    "granite": ('<|tool_call|>[{"name": "find", "arguments": ', "}]"),
    "jamba": ('<tool_calls>[{"name": "find", "arguments": ', "}]</tool_calls>"),
    "hunyuan_a13b": ('<tool_calls>[{"name": "find", "arguments": ', "}]</tool_calls>"),
    "apriel": ('<tool_calls>[{"name": "find", "arguments": ', "}]</tool_calls>"),
    "minimax": ('<tool_calls>\n{"name": "find", "arguments": ', "}\n</tool_calls>"),
    "nemotron_json": ('<TOOLCALL>[{"name": "find", "arguments": ', "}]</TOOLCALL>"),
    "apertus": ('<|tools_prefix|>[{"find": ', "}]<|tools_suffix|>"),
    "granite_20b_fc": ('<function_call> {"name": "find", "arguments": ', "}"),
    "gigachat3": ('<|function_call|>{"name": "find", "arguments": ', "}"),
    "mistral": ("[TOOL_CALLS]find[ARGS]", ""),
    "deepseek_v3": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>find\n```json\n",
        "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    "deepseek_v31": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>find<｜tool▁sep｜>",
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    "kimi_k2": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.find:0"
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|><|tool_calls_section_end|>",
    ),
}  # fmt: skip
each_family = pytest.mark.parametrize("family", AROUND)


def read(family: str, *pieces: str) -> ReadCompletion:
    parser = getattr(families, family).for_tools(TOOLS)
    events = [event for piece in pieces for event in parser.feed(piece)]
    completion = read_events(events + parser.close())
    completion.num_unfinished = 0  # a call that breaks off may be announced or not
    return completion


def call(family: str, arguments: str) -> str:
    before, behind = AROUND[family]
    return before + arguments + behind


@pytest.mark.parametrize(("family", "text", "content", "calls"), PUBLISHED)
def test_a_published_call_is_read_however_it_is_cut(family, text, content, calls):
    whole = read(family, text)
    assert (whole.content, whole.calls) == (content, calls)
    assert read(family, *text) == whole
    for cut in range(1, len(text)):
        assert read(family, text[:cut], text[cut:]) == whole


@pytest.mark.parametrize(("family", "text", "content", "calls"), PUBLISHED)
def test_a_truncated_completion_loses_nothing(family, text, content, calls):
    for end in range(len(text)):
        found = read(family, text[:end])
        assert read(family, *text[:end]) == found
        assert found.calls == calls[: len(found.calls)]
        if not found.calls:
            assert found.content == text[:end]


def test_every_family_with_json_has_a_published_call():
    with_json = {
        name for name, form in read_table().items() if {"json", "header"} & {form.notations[0]}
    }
    assert with_json == {family for family, *_ in PUBLISHED} == set(AROUND)


@each_family
def test_what_stands_in_a_string_ends_no_call(family):
    text = f"{call(family, TRICKY)}"
    assert (read(family, text).content, read(family, text).calls) == ("", [("find", TRICKY)])
    assert read(family, *text) == read(family, text)


@each_family
def test_a_call_without_arguments_stands_before_one_with_some(family):
    separator = ";" if family == "llama3_json" else "\n"
    text = call(family, "{}") + separator + call(family, '{"a": 1}')
    assert read(family, text).calls == [("find", "{}"), ("find", '{"a": 1}')]
    assert read(family, *text) == read(family, text)


@each_family
def test_arguments_that_are_no_object_make_a_call_text(family):
    for arguments in ("[1]", '{"a": NaN}', '{"a": tru}', "{'a': 1}", "nul", "0"):
        text = call(family, arguments)
        assert (read(family, text).content, read(family, text).calls) == (text, []), arguments
        assert read(family, *text) == read(family, text)


@each_family
@pytest.mark.parametrize("nothing", ["null", '""'])
def test_null_and_an_empty_string_are_no_arguments_of_a_tool(family, nothing):
    text = call(family, nothing) + ("" if family == "xlam" else " ")
    if family == "mistral":
        text += "[TOOL_CALLS]now[ARGS]{}"  # at the end of the text it could be cut off
    found = read(family, text)
    assert (found.content.strip(), found.calls[:1]) == ("", [("find", "{}")])
    assert read(family, *text) == found
    other = text.replace("find", "unknown")
    assert ("unknown", "{}") not in read(family, other).calls


HEADERS = {
    "mistral": ("[TOOL_CALLS]find[ARGS]", "[TOOL_CALLS]now[ARGS]{}"),
    "kimi_k2": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.find:0"
        "<|tool_call_argument_begin|><|tool_call_end|>",
        "<|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_calls_section_end|>",
    ),
    "deepseek_v31": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>find<｜tool▁sep｜><｜tool▁call▁end｜>",
        "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    "deepseek_v3": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>find\n```json\n"
        "```<｜tool▁call▁end｜>\n",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜>"
        "<｜tool▁calls▁end｜>",
    ),
}


@pytest.mark.parametrize("family", HEADERS)
def test_a_header_without_arguments_is_a_call_of_its_own(family):
    text = "".join(HEADERS[family])
    found = read(family, text)
    assert (found.content, found.calls) == ("", [("find", "{}"), ("now", "{}")])
    for size in (1, 2, 3, 7):
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        assert read(family, *pieces) == found
    unknown = read(family, text.replace("find", "unknown"))
    assert unknown.calls == [("now", "{}")]
    assert "unknown" in unknown.content


def test_at_the_end_only_a_tool_without_parameters_is_called_without_arguments():
    text = "[TOOL_CALLS]get_time[ARGS]"
    for parameters, calls in (
        ({"type": "object", "properties": {}}, [("get_time", "{}")]),
        ({"type": "object", "properties": {"zone": {"type": "string"}}}, []),
    ):
        parser = families.mistral.for_tools([{"name": "get_time", "parameters": parameters}])
        found = read_events([*parser.feed(text), *parser.close()])
        assert (found.content, found.calls) == ("" if calls else text, calls)
    assert read("mistral", "[TOOL_CALLS]now").calls == []


def test_a_comma_behind_mistrals_name_is_not_part_of_it():
    text = '[TOOL_CALLS]get_weather, [ARGS]{"a": 1}'
    assert read("mistral", text).calls == [("get_weather", '{"a": 1}')]


def test_an_end_of_sequence_in_a_text_is_no_marker_of_gigachat():
    text = "HTML of old has <s>struck</s> words."
    call = '<|function_call|>{"name": "now", "arguments": {}}'
    found = read("gigachat3", text + call + text)
    assert (found.content, found.calls) == (text + text, [("now", "{}")])


def test_the_only_key_of_apertus_is_the_name():
    before, behind = AROUND["apertus"]
    for inside in ('{}, "now": {}', "1", '"x"'):
        text = before + inside + behind
        assert (read("apertus", text).content, read("apertus", text).calls) == (text, [])


@each_family
def test_a_marker_in_prose_is_text(family):
    marker = AROUND[family][0].partition("find")[0].partition("{")[0].partition("\n")[0]
    text = f"Write {marker} and then the call: {marker}, or nothing."
    assert (read(family, text).content, read(family, text).calls) == (text, [])
    assert read(family, *text) == read(family, text)


@each_family
def test_values_cut_over_deltas_stay_whole(family):
    text = call(family, '{"a": true, "b": 108.2, "c": "x\\ny"}')
    for size in (2, 3, 5):
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        assert read(family, *pieces) == read(family, text)
    assert json.loads(read(family, text).calls[0][1]) == {"a": True, "b": 108.2, "c": "x\ny"}


@pytest.mark.parametrize("family", ["llama3_json", "xlam"])
@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Bob", "arguments": {"age": 3}}',
        'The person is {"name": "Bob", "parameters": {}}.',
        '{"city": "Oslo", "name": "find"}',
        '{"name": "find"}',
        "[1] is a citation, {x} a set.",
        '```json\n[{"name": "Bob", "arguments": {}}]\n```',
        "<|python_tag|>print(1)",
    ],
)
def test_json_that_calls_no_tool_is_text(family, text):
    assert (read(family, text).content, read(family, text).calls) == (text, [])
    assert read(family, *text) == read(family, text)


def test_json_that_calls_no_tool_is_passed_on_early():
    parser = families.llama3_json.for_tools(TOOLS)
    assert parser.feed('{"answer": "a long') == [TextDelta('{"answer": "a long')]


KIMI = "<|tool_calls_section_begin|><|tool_call_begin|>{}<|tool_call_argument_begin|>{{}}"


@pytest.mark.parametrize(
    ("header", "name", "call_id"),
    [
        ("functions.find:0", "find", "functions.find:0"),
        ("functions.find:12 ", "find", "functions.find:12"),
        ("\nfunctions.find:0\n", "find", "functions.find:0"),
        ("functions.get-weather.v2:3", "get-weather.v2", "functions.get-weather.v2:3"),
        ("find:0", "find", None),
        ("functions.find", "find", None),
    ],
)
def test_kimis_ids_have_the_name_and_a_number(header, name, call_id):
    parser = families.kimi_k2.for_tools(TOOLS)
    events = parser.feed(KIMI.format(header))
    assert ToolCallStart(0, name, call_id) in events


def test_a_bare_counter_of_kimi_is_a_call_of_the_only_tool():
    text = KIMI.format("0")
    parser = families.kimi_k2.for_tools(TOOLS[:1])
    assert ToolCallStart(0, "get_weather") in parser.feed(text)
    assert (read("kimi_k2", text).content, read("kimi_k2", text).calls) == (text, [])


def test_prose_between_kimis_calls_is_text():
    one = "<|tool_call_begin|>functions.find:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
    text = f"<|tool_calls_section_begin|>{one} And then {one}<|tool_calls_section_end|> Done."
    found = read("kimi_k2", text)
    assert (found.content, len(found.calls)) == ("And then Done.", 2)
    assert read("kimi_k2", *text) == found


def test_kimis_long_arguments_are_read():
    arguments = json.dumps({"text": "long " * 4000})
    assert read("kimi_k2", call("kimi_k2", arguments)).calls == [("find", arguments)]


def test_mistrals_id_is_that_of_the_model():
    parser = families.mistral.for_tools(TOOLS)
    events = parser.feed("[TOOL_CALLS]find[CALL_ID]VvvODy9mT[ARGS]{}")
    assert ToolCallStart(0, "find", "VvvODy9mT") in events
