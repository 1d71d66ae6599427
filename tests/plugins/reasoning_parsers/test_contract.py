"""The kit of reasoning parsers finds the mistakes that it is there for."""

import pytest

from quire.interfaces.reasoning import ContentDelta, ReasoningDelta, ReasoningParser
from quire.testing.reasoning import ReasoningParserContract, ReasoningSample


class WholeOnly(ReasoningParser):
    """Sees the tags only if they come in one piece."""

    is_thinking = True

    def feed(self, delta):
        if not delta.startswith("<think>"):
            return [ContentDelta(delta)]
        thought, _, content = delta.removeprefix("<think>").partition("</think>")
        return [ReasoningDelta(thought), ContentDelta(content)]

    def close(self):
        return []


class Kit(ReasoningParserContract):
    """Not collected: its name does not begin with Test."""

    parser = WholeOnly
    samples = (ReasoningSample("<think>a</think>b", "a", "b"),)


def test_a_parser_that_needs_the_whole_is_found():
    kit = Kit()
    kit.test_samples_are_read_as_they_should_be()
    for check in (
        kit.test_every_cut_in_two_gives_the_same,
        kit.test_single_characters_give_the_same,
    ):
        with pytest.raises(AssertionError):
            check()


def test_thinking_that_never_ends_is_found():
    with pytest.raises(AssertionError, match="leaves the thinking open"):
        Kit().test_no_grammar_waits_for_ever()
