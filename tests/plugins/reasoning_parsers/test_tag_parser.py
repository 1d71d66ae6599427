"""Reasoning and content are separated at the markers of each family, for every split."""

from collections.abc import Sequence
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.interfaces.reasoning import ContentDelta, ReasoningDelta
from quire.testing.reasoning import ReasoningParserContract, ReasoningSample
from quire_reasoning_parsers import families
from quire_reasoning_parsers.family_table import read_families
from quire_reasoning_parsers.tag_format import TagFormat
from quire_reasoning_parsers.tag_parser import MAX_BLANKS, TagParser

ThinkTags = families.think_tags
OPENED = "<|im_end|>\n<|im_start|>assistant\n<think>\n"
SHUT = "<|im_start|>assistant\n<think>\n\n</think>\n\n"


class TestThinkTags(ReasoningParserContract):
    """The kit that every reasoning parser passes."""

    parser = ThinkTags
    samples: ClassVar[Sequence[ReasoningSample]] = (
        ReasoningSample("<think>\nHm, 1 < 2.\n\n</think>\n\nYes. ", "Hm, 1 < 2.", "Yes. "),
        ReasoningSample("\n <think>a</think>b", "a", "b"),
        ReasoningSample("Hm.\n</think>\n\nYes.", "Hm.", "Yes.", OPENED),
        ReasoningSample("<think>\nHm.\n</think>\n\nYes.", "Hm.", "Yes.", OPENED),
        ReasoningSample("  Yes.\n", "", "  Yes.\n"),
        ReasoningSample("\n\nYes.", "", "\n\nYes.", SHUT),
        ReasoningSample("<think>\n\n</think>\n\nYes.", "", "Yes."),
        ReasoningSample("<think>never closed </thin", "never closed </thin", ""),
        ReasoningSample("cut in the thought \n", "cut in the thought", "", OPENED),
        ReasoningSample("Yes. <think>no</think>", "", "Yes. <think>no</think>"),
        ReasoningSample("Hm.</think>Yes.", "", "Hm.</think>Yes."),
        ReasoningSample("a</think>b</think>c", "a", "b</think>c", OPENED),
        ReasoningSample("\n\n Hm.\n</think>Yes.", "Hm.", "Yes.", OPENED),
        ReasoningSample(" \n<th", "<th", "", OPENED),
        ReasoningSample("", "", ""),
        ReasoningSample("<thin", "", "<thin"),
        ReasoningSample("Hm.</think>\n</think>\n\nYes.", "Hm.", "Yes.", OPENED),
        ReasoningSample("</think>\n\nYes.", "", "Yes."),
        ReasoningSample("</think>\n\nYes.", "", "Yes.", SHUT),
        ReasoningSample("a</think>\n<think>b</think>c", "a\nb", "c", OPENED),
        ReasoningSample(" more.</think>Yes.", " more.", "Yes.", "<think>\nIt needs"),
        ReasoningSample("<think>no</think>", "", "<think>no</think>", "<think>x</think>Yes: "),
        ReasoningSample("x" + " " * 100 + "</think>y", "x" + " " * 36, "y", OPENED),
        ReasoningSample(" " * 100 + "<think>y", "", " " * 100 + "<think>y"),
    )


class TestKimi(ReasoningParserContract):
    """Two spellings of the markers."""

    parser = families.kimi_k2
    samples: ClassVar[Sequence[ReasoningSample]] = (
        ReasoningSample("◁think▷Hm.◁/think▷Yes.", "Hm.", "Yes."),
        ReasoningSample("<think>Hm.</think>Yes.", "Hm.", "Yes."),
        ReasoningSample("Hm.</think>Yes.", "Hm.", "Yes.", "<|im_middle|><think>"),
    )


class TestGranite(ReasoningParserContract):
    """Markers that are sentences."""

    parser = families.granite
    samples: ClassVar[Sequence[ReasoningSample]] = (
        ReasoningSample(
            "Here is my thought process:\nHere is a thought.\nHere is my response:\n\nYes.",
            "Here is a thought.",
            "Yes.",
        ),
        ReasoningSample("Here's my thought process: a Here's my response: b", "a", "b"),
        ReasoningSample("Here is my answer: no.", "", "Here is my answer: no."),
        ReasoningSample("Here's my thought process: a. Here's my", "a. Here's my", ""),
    )


class TestMistral(ReasoningParserContract):
    """Reasoning that may begin within the content."""

    parser = families.mistral
    samples: ClassVar[Sequence[ReasoningSample]] = (
        ReasoningSample("[THINK]Hm.[/THINK]Yes.", "Hm.", "Yes."),
        ReasoningSample("<think>\nHm.\n</think>\n\nYes. ", "Hm.", "Yes. "),
        ReasoningSample("Well. [THINK]Hm. [/THINK] Yes.", "Hm.", "Well.Yes."),
        ReasoningSample("[1] Yes. [TH", "", "[1] Yes. [TH"),
    )


class TestGemma(ReasoningParserContract):
    """A label that is the first line of the reasoning."""

    parser = families.gemma4
    samples: ClassVar[Sequence[ReasoningSample]] = (
        ReasoningSample("<|channel>thought\nHm.\n<channel|>Yes.", "Hm.", "Yes."),
        ReasoningSample("<|channel>thought\n<channel|>Yes.", "", "Yes."),
        ReasoningSample("<|channel>thought<channel|>Yes.", "", "Yes."),
        ReasoningSample("<|channel>thoughts are free<channel|>Yes.", "thoughts are free", "Yes."),
        ReasoningSample("<|channel>thou<channel|>Yes.", "thou", "Yes."),
        ReasoningSample("thought\n<channel|>Yes.", "thought", "Yes.", "<|channel>thought\n"),
        ReasoningSample("thought\nHm.<channel|>Yes.", "Hm.", "Yes.", "<|turn>model\n<|channel>"),
        ReasoningSample("Yes.", "", "Yes.", "<|channel>thought\n<channel|>"),
        ReasoningSample("<|channel>thought", "", ""),
    )


class TestHunyuan(ReasoningParserContract):
    """Content in a wrapper that is not shown."""

    parser = families.hunyuan_a13b
    samples: ClassVar[Sequence[ReasoningSample]] = (
        ReasoningSample("<think>\nHm.\n</think>\n<answer>\nYes.\n</answer>", "Hm.", "Yes."),
        ReasoningSample("<think>\nHm.\n</think>\nYes.</answer>", "Hm.", "Yes.</answer>"),
        ReasoningSample("<answer>\nYes.\n</answer>", "", "Yes."),
        ReasoningSample("<answer>a</answer>b</answer>c", "", "ab</answer>c"),
        ReasoningSample("<answer>Yes. </ans", "", "Yes. </ans"),
        ReasoningSample("<answer>a</answer>\n<tool_calls>[]", "", "a<tool_calls>[]"),
        ReasoningSample("Yes.\n</answer>", "", "Yes.", "<think>\n\n</think>\n<answer>\n"),
    )


class TestErnie(ReasoningParserContract):
    """Another wrapper, behind reasoning that the template opens."""

    parser = families.ernie45
    samples: ClassVar[Sequence[ReasoningSample]] = (
        ReasoningSample("Hm.\n</think>\n\n<response>\nYes.\n</response>\n", "Hm.", "Yes.", OPENED),
        ReasoningSample("Hm.\n</think>\n\nYes.\n", "Hm.", "Yes.\n", OPENED),
    )


@pytest.mark.parametrize("name", ["seed_oss", "minimax_m3", "step3", "olmo3", "glm45", "qwen3"])
def test_each_family_reads_its_own_markers(name):
    form = read_families()[name].format
    text = f"{form.open[0]}\nHm.\n{form.close[0]}\n\nYes."
    parser = getattr(families, name)()
    assert [*parser.feed(text), *parser.close()] == [ReasoningDelta("Hm."), ContentDelta("Yes.")]
    opened = getattr(families, name)(f"assistant\n{form.open[0]}\n")
    assert opened.feed(f"Hm.{form.close[0]}Yes.") == [ReasoningDelta("Hm."), ContentDelta("Yes.")]


def test_a_thought_is_passed_on_at_once():
    parser = ThinkTags(OPENED)
    assert parser.feed("Let me") == [ReasoningDelta("Let me")]
    assert parser.feed(" see\n</th") == [ReasoningDelta(" see")]
    assert parser.feed("ere\n") == [ReasoningDelta("\n</there")]
    assert parser.feed("</think>\n\nNo") == [ContentDelta("No")]


def test_grammars_wait_while_the_thinking_is_open():
    parser = ThinkTags(OPENED)
    assert parser.is_thinking
    parser.feed("Hm.</think")
    assert parser.is_thinking
    parser.feed(">")
    assert not parser.is_thinking


def test_the_last_marker_of_the_prompt_says_whether_the_thinking_is_open():
    assert not ThinkTags("<|im_start|>assistant\n").is_thinking
    assert not ThinkTags(SHUT).is_thinking
    assert ThinkTags("<think>partial, and").is_thinking
    assert not ThinkTags("<think>x</think>y").is_thinking


def test_blanks_that_are_held_back_are_few():
    parser = ThinkTags(OPENED)
    parser.feed("x")
    assert parser.feed(" " * 1000) == [ReasoningDelta(" " * (1000 - MAX_BLANKS))]


FORMAT = TagFormat(
    open=("<a>", "<ab>"),
    close=("</a>",),
    label="l",
    wrapper_open=("<w>",),
    wrapper_close=("</w>",),
)


class Everything(TagParser):
    """A format with all there is, but for reasoning within the content."""

    format = FORMAT


class Anywhere(TagParser):
    """The same with reasoning within the content."""

    format = TagFormat(open=("<a>", "<ab>"), close=("</a>",), label="l", opens_anywhere=True)


fragments = st.sampled_from(
    ["<a>", "<ab>", "</a>", "<w>", "</w>", "<", "/a>", "\n", " ", "l", "é.", "<a", "b>", " " * 40]
)


@given(
    st.lists(fragments, max_size=16),
    st.sampled_from(["", "<a>", "<a>l\n", "<a>x", "<a></a>", "<a></a>x", "<w>"]),
    st.sampled_from([Everything, Anywhere]),
    st.data(),
)
@settings(max_examples=1000, deadline=None)
def test_any_split_reads_the_same(parts, prompt, parser, data):
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    pieces = [text[i:j] for i, j in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    kit, sample = TestThinkTags(), ReasoningSample(text, "", "", prompt)
    kit.parser = parser
    assert kit.read(sample, pieces) == kit.read(sample, [text])


@given(st.text("ab<>/éT \n", max_size=60), st.sampled_from(["", OPENED, SHUT]))
@settings(max_examples=500, deadline=None)
def test_text_without_markers_is_all_there(text, prompt):
    kit = TestThinkTags()
    parsed = kit.read(ReasoningSample(text, "", "", prompt), [text])
    assert (parsed.reasoning or parsed.content).strip() == text.strip()
    assert not (parsed.reasoning and parsed.content)
