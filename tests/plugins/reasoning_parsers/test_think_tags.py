"""Reasoning and content are separated at the tags, for every split."""

from collections.abc import Sequence
from typing import ClassVar

from hypothesis import given, settings
from hypothesis import strategies as st

from quire.interfaces.reasoning import ContentDelta, ReasoningDelta
from quire.testing.reasoning import ReasoningParserContract, ReasoningSample
from quire_reasoning_parsers.think_tags import ThinkTagsParser

OPENED = "<|im_start|>assistant\n<think>\n"
SHUT = "<|im_start|>assistant\n<think>\n\n</think>\n\n"


class TestThinkTags(ReasoningParserContract):
    """The kit that every reasoning parser passes."""

    parser = ThinkTagsParser
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
    )


def test_a_thought_is_passed_on_at_once():
    parser = ThinkTagsParser(OPENED)
    assert parser.feed("Let me") == [ReasoningDelta("Let me")]
    assert parser.feed(" see\n</th") == [ReasoningDelta(" see")]
    assert parser.feed("ere\n") == [ReasoningDelta("\n</there")]
    assert parser.feed("</think>\n\nNo") == [ContentDelta("No")]


def test_grammars_wait_while_the_thinking_is_open():
    parser = ThinkTagsParser(OPENED)
    assert parser.is_thinking
    parser.feed("Hm.</think")
    assert parser.is_thinking
    parser.feed(">")
    assert not parser.is_thinking


def test_grammars_do_not_wait_for_reasoning_that_was_not_opened():
    assert not ThinkTagsParser("<|im_start|>assistant\n").is_thinking
    assert not ThinkTagsParser(SHUT).is_thinking
    assert not ThinkTagsParser("What is <think>?<|im_start|>assistant\n").is_thinking


fragments = st.sampled_from(["<think>", "</think>", "<", "/think>", "\n", " ", "a", "é.", "<th"])


@given(st.lists(fragments, max_size=16), st.sampled_from(["", OPENED, SHUT]), st.data())
@settings(max_examples=400, deadline=None)
def test_any_split_reads_the_same(parts, prompt, data):
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    pieces = [text[i:j] for i, j in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    kit, sample = TestThinkTags(), ReasoningSample(text, "", "", prompt)
    assert kit.read(sample, pieces) == kit.read(sample, [text])
