"""Reasoning that stays in the content, as the conversation needs it."""

import pytest

from quire.interfaces.reasoning import ContentDelta
from quire_reasoning_parsers import families


@pytest.mark.parametrize(
    ("prompt", "text", "content"),
    [
        ("]~b]ai\n<think>\n", "Hm.\n</think>\n\nYes.", "<think>\nHm.\n</think>\n\nYes."),
        ("]~b]ai\n", "Yes.", "Yes."),
        ("]~b]ai\n", "<think>Hm.</think>Yes.", "<think>Hm.</think>Yes."),
        ("<think>", "", ""),
    ],
)
def test_the_content_is_the_whole_text_with_its_opening_marker(prompt, text, content):
    for pieces in ([text], list(text)):
        parser = families.minimax_m2_append_think(prompt)
        events = [event for piece in pieces for event in parser.feed(piece)]
        assert all(isinstance(event, ContentDelta) for event in events)
        assert "".join(event.text for event in [*events, *parser.close()]) == content


def test_grammars_wait_for_the_closing_marker():
    for pieces in (["Hm.</think>"], list("Hm.</think>")):
        parser = families.minimax_m2_append_think("<think>\n")
        assert parser.is_thinking
        for piece in pieces[:-1]:
            parser.feed(piece)
            assert parser.is_thinking
        parser.feed(pieces[-1])
        assert not parser.is_thinking
