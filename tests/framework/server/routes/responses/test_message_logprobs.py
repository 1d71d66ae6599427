"""Log probabilities of messages: which tokens wrote a text, whatever the parser holds back."""

import pytest
from chat_parsers import parser_of
from server_parts import BracketParser, ThinkParser

from quire.interfaces.tool_parsing import TextDelta
from quire.outputs import Delta
from quire.server.routes.chat.choice_events import ChoiceEvents
from quire.server.routes.responses.message_logprobs import MessageLogprobs
from quire.server.wire.protocol import TokenLogprob


class Stream:
    """A decoder of tokens that are their position in a list; those in brackets have no text."""

    def __init__(self, tokens):
        self.tokens = tokens

    def feed(self, token_id):
        return text_of(self.tokens[token_id])

    def close(self):
        return ""


def text_of(token):
    return "" if token.startswith("<<") else token


def read(tokens, size, parser=True):
    """Return the tokens of each text, and those of the end, for deltas of `size` tokens."""
    parsers = parser_of(ThinkParser(), BracketParser()) if parser else None
    reader = MessageLogprobs(ChoiceEvents(parsers, True), Stream(tokens))
    found = []
    for begin in range(0, len(tokens), size):
        ids = range(begin, min(begin + size, len(tokens)))
        delta = Delta(
            index=0,
            text="".join(text_of(tokens[i]) for i in ids),
            token_ids=[*ids],
            finish_reason="stop" if ids[-1] == len(tokens) - 1 else None,
        )
        found += reader.read(delta, [TokenLogprob(tokens[i], -1.0, [], []) for i in ids])
    names = [t.token for e, given in found for t in given if isinstance(e, TextDelta)]
    assert all(isinstance(event, TextDelta) or not given for event, given in found)
    return names, [token.token for token in reader.end]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize(
    ("tokens", "shown", "end"),
    [
        (["a", "b", "<<end>>"], ["a", "b"], ["<<end>>"]),
        (["<t>", "let ", "me", "</t>", "the", " end", "<<e>>"], ["the", " end"], ["<<e>>"]),
        (["<t>", "only"], [], []),
        (["<t>r", "</t>a"], ["</t>a"], []),
        (["a", " [", "x"], ["a", " [", "x"], []),  # the bracket is held back
        (["a", "[[f ", "{}", "]]", " b", "<<e>>"], ["a", " b"], ["<<e>>"]),
        (["a", "[[f ", "{}", "]]", "<<e>>"], ["a"], ["<<e>>"]),
        (["a", "[[f ", "{", "<<e>>"], ["a", "[[f ", "{"], ["<<e>>"]),  # it breaks off
        (["<<part>>", "<<part>>", "日"], ["<<part>>", "<<part>>", "日"], []),
    ],
)
def test_the_tokens_of_messages_are_found_however_they_come(tokens, shown, end, size):
    assert read(tokens, size) == (shown, end)


def test_without_a_parser_all_tokens_are_those_of_a_message():
    assert read(["<t>", "a", "<<e>>"], 2, parser=False) == (["<t>", "a"], ["<<e>>"])
