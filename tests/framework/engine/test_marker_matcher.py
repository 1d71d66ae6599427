"""A marker is found in the bytes of tokens, however they spell it."""

from hypothesis import example, given
from hypothesis import strategies as st

from quire.engine.marker_matcher import MarkerMatcher
from quire.messages import MarkerTokens
from quire.testing.parsing.parser_work import work_of

MARKER = b"</t>"
TOKENS = [b"<", b"/", b"t", b">", b"</", b"t>", b"</t", b"</t>", b">\n", b"x<", b"a", b"<<"]


def part_of_marker(piece):
    starts = any(piece.endswith(MARKER[:end]) for end in range(1, 5))
    ends = any(piece.startswith(MARKER[start:]) for start in range(4))
    return starts or ends or piece in MARKER or MARKER in piece


@given(st.lists(st.integers(0, len(TOKENS) - 1), max_size=12))
@example([4, 10, 5])
def test_the_marker_is_found_at_the_token_that_completes_it(token_ids):
    pieces = {i: piece for i, piece in enumerate(TOKENS) if part_of_marker(piece)}
    matcher = MarkerMatcher(MarkerTokens((4, 5), (MARKER,), pieces))
    text = b""
    for token_id in token_ids:
        text += TOKENS[token_id]
        is_found = matcher.accept(token_id)
        assert is_found == (MARKER in text)
        if is_found:
            break


@given(
    st.lists(st.integers(0, len(TOKENS) - 1), max_size=6),
    st.sampled_from([(MARKER,), (MARKER, b"t"), (b"><", b"t>")]),
)
def test_a_token_that_has_more_behind_the_marker_is_told_beforehand(token_ids, markers):
    tokens = [*TOKENS, b">{", b"</t>x", b"> \n", b">\xc3", b"/t>{"]
    matcher = MarkerMatcher(MarkerTokens((4, 5), markers, dict(enumerate(tokens))))
    text = b""
    for token_id in token_ids:
        if matcher.accept(token_id):
            return
        text += TOKENS[token_id]
        assert set(matcher.overrunning()) == {
            i for i, token in enumerate(tokens) if rest_behind(text + token, markers).strip()
        }


def test_what_would_overrun_the_marker_is_looked_for_once_for_each_beginning_of_it():
    tokens = [b"a", b"/", b"<", *(b">%d" % number for number in range(500))]
    matcher = MarkerMatcher(MarkerTokens((4, 5), (b"</>",), dict(enumerate(tokens))))
    for token_ids, num_found in (([0, 2], 0), ([0, 2, 1], 500)):
        matcher.is_in(token_ids)
        assert len(matcher.overrunning()) == num_found
        matcher.is_in(token_ids)
        assert work_of(matcher.overrunning).num_lines < 50


def rest_behind(text, markers):
    ends = [text.index(marker) + len(marker) for marker in markers if marker in text]
    return text[min(ends) :] if ends else b""


def test_tokens_are_read_up_to_the_marker():
    matcher = MarkerMatcher(MarkerTokens((0,), (b"x",), {0: b"x"}))
    assert not matcher.is_in([1, 2])
    assert matcher.is_in([1, 0, 2])
