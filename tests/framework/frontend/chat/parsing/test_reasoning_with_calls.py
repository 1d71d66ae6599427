"""Reasoning, text and tool calls of each family come out of one stream, each in its place."""

import json
import re
from dataclasses import dataclass
from itertools import groupby, pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quire.call_grammar import CallGrammar, CallShape
from quire.frontend.chat.parsing.completion_parser import gather
from quire.frontend.chat.parsing.completion_parsers import CompletionParsers, ParserChoice
from quire.frontend.chat.parsing.tool_stage import ToolCallCut
from quire.interfaces.reasoning import ReasoningDelta
from quire.interfaces.tool_parsing import TextDelta, ToolCallArguments, ToolCallEnd, ToolCallStart
from quire.sampling_params import SamplingParams, StructuredOutputsParams
from quire.testing.parsing.parser_work import work_of

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
        },
    }
]
FORCED = CallGrammar((CallShape("f", ("f()",)),))
HARMONY = "<|start|>assistant"


@dataclass(frozen=True)
class Family:
    """Parsers of a family, the opening of a turn, and the parts of a completion."""

    reasoning: str
    tools: str
    opening: str
    thought: str
    call: str
    text: str = "I look. "
    takes_calls_in_thinking: bool = True

    @property
    def example(self):
        """A call of a tool that the request does not offer."""
        return re.sub("(?<![a-z])f(?![a-z])", "gg", self.call)

    @property
    def whole(self):
        return f"{self.thought}{self.text}{self.call}"


def wide(text):
    """Return a text with the wide bars that some families write in their markers."""
    return text.replace("|", "\uff5c")


MINIMAX = (
    '<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">1</parameter>\n</invoke>\n'
    "</minimax:tool_call>"
)
FAMILIES = (
    Family("qwen3", "hermes", "<|im_start|>assistant\n", "<think>\nHm.\n</think>\n\n",
           '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'),
    Family("deepseek_r1", "deepseek_v31", wide("<|Assistant|><think>\n"), "Hm.\n</think>\n\n",
           wide('<|tool▁calls▁begin|><|tool▁call▁begin|>f<|tool▁sep|>{"a": 1}<|tool▁call▁end|>'
                "<|tool▁calls▁end|>")),
    Family("kimi_k2", "kimi_k2", "<|im_middle|><think>", "Hm.</think>",
           "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
           '<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|><|tool_calls_section_end|>'),
    Family("glm45", "glm45", "<|assistant|>", "\n<think>Hm.</think>\n",
           "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"),
    Family("gemma4", "gemma4", "<|turn>model\n", "<|channel>thought\nHm.\n<channel|>",
           "<|tool_call>call:f{a:1}<tool_call|>"),
    Family("minimax_m2", "minimax_m2", "]~b]ai\n<think>\n", "Hm.\n</think>\n\n", MINIMAX),
    Family("mistral", "mistral", "", "[THINK]Hm.[/THINK]", '[TOOL_CALLS]f[ARGS]{"a": 1}'),
    Family("seed_oss", "seed_oss", "<seed:bos>assistant\n", "<seed:think>Hm.</seed:think>",
           "<seed:tool_call>\n<function=f>\n<parameter=a>1</parameter>\n</function>\n"
           "</seed:tool_call>"),
    Family("step3", "step3", "<|BOT|>assistant\n<think>\n", "Hm.\n</think>\n",
           wide("<|tool_calls_begin|><|tool_call_begin|>function<|tool_sep|>"
                '<steptml:invoke name="f"><steptml:parameter name="a">1</steptml:parameter>'
                "</steptml:invoke><|tool_call_end|><|tool_calls_end|>")),
    Family("hunyuan_a13b", "hunyuan_a13b", "", "<think>\nHm.\n</think>\n<answer>\n",
           '<tool_calls>[{"name": "f", "arguments": {"a": 1}}]</tool_calls>',
           takes_calls_in_thinking=False),
    Family("openai_gptoss", "openai", HARMONY,
           f"<|channel|>analysis<|message|>Hm.<|end|>{HARMONY}<|channel|>commentary<|message|>",
           f"<|end|>{HARMONY}<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
           '{"a": 1}<|call|>', text="I look."),
)  # fmt: skip
IDS = [f"{family.reasoning}-{family.tools}" for family in FAMILIES]


@pytest.fixture(scope="module")
def parsers_of(quire_registries):
    """Return a function that makes the parsers of a family."""

    def choice(registry, name):
        entry = registry.entry(name)
        return ParserChoice(registry.load(entry), entry.source, entry.capabilities)

    def make(family):
        return CompletionParsers(
            choice(quire_registries.reasoning_parsers, family.reasoning),
            choice(quire_registries.tool_parsers, family.tools),
        )

    return make


@pytest.mark.parametrize("family", FAMILIES, ids=IDS)
def test_the_text_by_which_a_call_begins_is_declared(quire_registries, family):
    declared = quire_registries.tool_parsers.entry(family.tools).capabilities
    ends = [family.call.find(opener) + len(opener) for opener in declared.call_openers]
    begun = min(end for end, each in zip(ends, declared.call_openers, strict=True)
                if each in family.call)  # fmt: skip
    assert begun <= family.call.rindex("f", 0, family.call.rindex("a"))


def parser_of(parsers, family, calls=None):
    constraint = None if calls is None else StructuredOutputsParams(calls=calls)
    params = SamplingParams(structured_outputs=constraint)
    return parsers(family.opening, tools=TOOLS, params=params)


def parsed(parsers, family, pieces, calls=None):
    parser = parser_of(parsers, family, calls)
    events = [event for piece in pieces for event in parser.feed(piece)]
    found = gather([*events, *parser.close()])
    calls = [(call.name, json.loads(call.arguments)) for call in found.calls]
    return found.reasoning or "", found.text, calls


@pytest.mark.parametrize("family", FAMILIES, ids=IDS)
def test_a_turn_has_its_three_parts(parsers_of, family):
    for pieces in ([family.whole], [*family.whole]):
        reasoning, text, calls = parsed(parsers_of(family), family, pieces)
        assert (reasoning.strip(), text.strip()) == ("Hm.", "I look.")
        assert calls == [("f", {"a": 1})]


@pytest.mark.parametrize("family", FAMILIES, ids=IDS)
def test_a_call_within_the_thinking_ends_it(parsers_of, family):
    before, _, _ = family.thought.partition("Hm.")
    for pieces in ([f"{before}Hm.\n{family.call}"], [*f"{before}Hm.\n{family.call}"]):
        reasoning, text, calls = parsed(parsers_of(family), family, pieces)
        if family.takes_calls_in_thinking:
            assert (reasoning.strip(), text.strip()) == ("Hm.", "")
            assert calls == [("f", {"a": 1})]
        else:
            assert (reasoning, text, calls) == (f"Hm.\n{family.call}", "", [])


@pytest.mark.parametrize("family", FAMILIES, ids=IDS)
def test_thinking_that_goes_on_behind_a_call_ends_by_its_marker(parsers_of, family):
    if not family.takes_calls_in_thinking or family.tools == "openai":
        pytest.skip("no call is in the thinking: it is thinking, or a message of its own")
    before, _, end = family.thought.partition("Hm.")
    text = f"{before}Hm.\n{family.call}\nWait.{end}Done."
    for pieces in ([text], [*text], [text[:30], text[30:]]):
        reasoning, text_of, calls = parsed(parsers_of(family), family, pieces)
        assert (reasoning.split(), text_of.strip()) == (["Hm.", "Wait."], "Done.")
        assert calls == [("f", {"a": 1})]
    for pieces in ([text.removesuffix(f"{end}Done.")], [*text.removesuffix(f"{end}Done.")]):
        reasoning, text_of, calls = parsed(parsers_of(family), family, pieces)
        assert (reasoning.strip(), text_of.strip()) == ("Hm.", "Wait.")


@pytest.mark.parametrize("family", FAMILIES, ids=IDS)
def test_a_call_that_is_cut_behind_another_in_the_thinking_is_the_last(parsers_of, family):
    if not family.takes_calls_in_thinking:
        pytest.skip("no call is in the thinking")
    before, _, _ = family.thought.partition("Hm.")
    cut = family.call[: family.call.rindex("1") + 1]
    text = f"{before}Hm.\n{family.call}\nWait.\n{cut}"
    for pieces in ([text], [*text]):
        parser = parser_of(parsers_of(family), family)
        events = [event for piece in pieces for event in parser.feed(piece)]
        events += parser.close(is_cut=True)
        kinds = [kind for kind, _ in groupby(map(type, events))]
        assert kinds == [
            ReasoningDelta, ToolCallStart, ToolCallArguments, ToolCallEnd, TextDelta,
            ToolCallStart, ToolCallArguments, ToolCallCut,
        ]  # fmt: skip
        assert gather(events).text.strip() == "Wait."


@pytest.mark.parametrize("family", FAMILIES, ids=IDS)
def test_an_example_in_the_thinking_is_no_call_and_one_behind_it_is(parsers_of, family):
    if not family.takes_calls_in_thinking or family.tools == "openai":
        pytest.skip("no call is in the thinking: it is thinking, or a message of its own")
    before, _, end = family.thought.partition("Hm.")
    text = f"{before}Hm. {family.example} So.{end}{family.text}{family.call}"
    for pieces in ([text], [*text], [text[:30], text[30:]]):
        reasoning, text_of, calls = parsed(parsers_of(family), family, pieces)
        assert (reasoning, text_of.strip()) == (f"Hm. {family.example} So.", "I look.")
        assert calls == [("f", {"a": 1})]
    text = f"{family.thought}{family.example}"
    for pieces in ([text], [*text], [text[:30], text[30:]]):
        _, _, calls = parsed(parsers_of(family), family, pieces)
        assert [name for name, _ in calls] == ["gg"][: "arg_key" not in text]


def test_behind_a_call_that_counts_others_reach_the_client(parsers_of):
    calls = '{"name": "f", "arguments": {"a": 1}}, {"name": "gg", "arguments": {"a": 2}}'
    family = Family("qwen3", "jamba", "<think>", "Hm.", f"<tool_calls>[{calls}]</tool_calls>")
    text = family.thought + family.call
    for pieces in ([text], [*text], [text[:60], text[60:]]):
        reasoning, text_of, found = parsed(parsers_of(family), family, pieces)
        assert (reasoning, text_of, found) == ("Hm.", "", [("f", {"a": 1}), ("gg", {"a": 2})])


OPENED = [family for family in FAMILIES if "think" in family.opening]


@pytest.mark.parametrize("family", OPENED, ids=[family.tools for family in OPENED])
def test_a_call_within_the_thinking_is_none_if_one_is_forced_behind_it(parsers_of, family):
    other = family.call.replace("1", "2")
    thought, end = family.thought[:3], family.thought[3:]
    text = f"{thought}{other}{end}{family.call}"
    for pieces in ([text], [*text], [text[:40], text[40:]]):
        reasoning, text_of, calls = parsed(parsers_of(family), family, pieces, FORCED)
        assert (reasoning, text_of.strip()) == (f"Hm.{other}", "")
        assert calls == [("f", {"a": 1})]
    before = CallGrammar(FORCED.shapes, covers_reasoning=True)
    optional = CallGrammar(FORCED.shapes, triggers=("f",))
    for other in (before, optional):
        _, _, calls = parsed(parsers_of(family), family, [text], other)
        assert calls[0] == ("f", {"a": 2})


APPENDING = Family("minimax_m2_append_think", "minimax_m2", "<think>", "Hm.</think>", MINIMAX)


def test_a_call_in_thinking_that_stays_in_the_content_is_none_if_one_is_forced(parsers_of):
    text = f"Hm.{APPENDING.call}</think>{APPENDING.call}"
    for pieces in ([text], [*text], [text[:40], text[40:]]):
        reasoning, text_of, calls = parsed(parsers_of(APPENDING), APPENDING, pieces, FORCED)
        assert (reasoning, text_of) == ("", f"<think>Hm.{APPENDING.call}</think>")
        assert calls == [("f", {"a": 1})]


THOUGHTS = "The fox jumps, as 1 < 2. "


@pytest.mark.parametrize("family", OPENED, ids=[family.tools for family in OPENED])
def test_thinking_comes_in_whole_deltas_where_a_call_is_forced_behind_it(parsers_of, family):
    parser = parser_of(parsers_of(family), family, FORCED)
    for _ in range(8):
        (event,) = parser.feed(THOUGHTS)
        assert isinstance(event, ReasoningDelta)
    assert work_of(lambda: parser.feed(THOUGHTS * 40)).num_lines < 25 * len(THOUGHTS)


@pytest.mark.parametrize("family", OPENED, ids=[family.tools for family in OPENED])
def test_text_behind_a_call_in_the_thinking_is_read_in_whole_deltas(parsers_of, family):
    parser = parser_of(parsers_of(family), family)
    parser.feed(f"Hm.{family.call}")
    assert work_of(lambda: parser.feed(THOUGHTS * 40)).num_lines < 25 * len(THOUGHTS)
    assert [type(event) for event in parser.feed(f"{family.thought}So. ")] == [
        ReasoningDelta, TextDelta,
    ]  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES, ids=IDS)
def test_half_a_call_in_the_thinking_is_thinking(parsers_of, family):
    before, _, _ = family.thought.partition("Hm.")
    cut = family.call.index("f", len(family.call) // 3 if "function" in family.call else 0)
    for pieces in ([f"{before}Hm. {family.call[:cut]}"], [*f"{before}Hm. {family.call[:cut]}"]):
        reasoning, _, calls = parsed(parsers_of(family), family, pieces)
        assert reasoning.startswith("Hm.")
        assert calls == []


@pytest.mark.parametrize(
    ("family", "calls"),
    [*((each, None) for each in FAMILIES), *((each, FORCED) for each in OPENED)],
    ids=[*IDS, *(f"{family.tools}-forced" for family in OPENED)],
)
@given(data=st.data())
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_any_split_of_any_mixture_reads_the_same_and_loses_no_word(parsers_of, family, calls, data):
    ends = st.integers(0, len(family.whole))
    marks = family.thought.split("Hm.")
    parts = data.draw(
        st.lists(
            st.one_of(
                st.sampled_from(
                    [*marks, family.thought, family.call, family.example, family.text, "\n", "<"]
                ),
                st.tuples(ends, ends).map(lambda cut: family.whole[min(cut) : max(cut)]),
                st.just("word"),
            ),
            max_size=6,
        )
    )
    text = "".join(f" wörd{i}x" if part == "word" else part for i, part in enumerate(parts))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    pieces = [text[i:j] for i, j in pairwise([0, *cuts, len(text)])]
    parsers = parsers_of(family)
    whole = parsed(parsers, family, [text], calls)
    assert parsed(parsers, family, pieces, calls) == whole
    assert parsed(parsers, family, [*text], calls) == whole
    reasoning, content, found = whole
    if not found:
        words = [f"wörd{i}x" for i, part in enumerate(parts) if part == "word"]
        assert [word for word in words if word not in reasoning + content] == []
