"""The text of each token: the same for every grouping, also if text is held back or cut."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from quire.outputs import Delta
from quire.server.routes.responses.token_splitter import TokenSplitter
from quire.server.wire.protocol import TokenLogprob

PIECES = ["a", "bc", "", "ü", "</t>"]  # texts of tokens; an empty one is a part of a character
token_lists = st.lists(st.integers(0, len(PIECES) - 1), max_size=12)


class Stream:
    """A decoder of these tokens."""

    def feed(self, token_id):
        return PIECES[token_id]

    def close(self):
        return ""


def logprob(token_id):
    return TokenLogprob(PIECES[token_id], -1.0, [], [])


def split(token_ids, cuts, num_held, length):
    """Split a completion in pieces, with `num_held` characters held back till its end."""
    whole = "".join(PIECES[i] for i in token_ids)[:length]
    texts, found, num_sent = TokenSplitter(Stream()), [], 0
    bounds = [0, *sorted(min(cut, len(token_ids)) for cut in cuts), len(token_ids)]
    spans = [*pairwise(bounds)]
    for i, (begin, end) in enumerate(spans, 1):
        is_last = i == len(spans)
        so_far = "".join(PIECES[t] for t in token_ids[:end])[:length]
        upto = len(whole) if is_last else max(num_sent, len(so_far) - num_held)
        delta = Delta(
            index=0,
            text=whole[num_sent:upto],
            token_ids=token_ids[begin:end],
            finish_reason="stop" if is_last else None,
        )
        found += texts.split(delta, [logprob(t) for t in token_ids[begin:end]])
        num_sent = upto
    return whole, found


@given(token_lists, st.lists(st.integers(0, 12), max_size=4), st.integers(0, 5), st.integers(0, 20))
def test_each_token_has_its_text_once_however_the_tokens_come(token_ids, cuts, num_held, length):
    whole, alone = split(token_ids, range(len(token_ids)), 0, length)
    _, found = split(token_ids, cuts, num_held, length)
    assert found == alone
    assert "".join(token.text for token in found) == whole
    assert [token.logprob.token for token in found] == [PIECES[t] for t in token_ids]


def test_a_text_behind_all_tokens_is_shown():
    last = Delta(index=0, text="�", token_ids=[], finish_reason="length")
    ((text, token),) = TokenSplitter(Stream()).split(last, [])
    assert (text, token) == ("�", None)
