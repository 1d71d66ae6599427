"""A completion whose constraint waits for the end of the thinking does not end before it."""

from hypothesis import given
from hypothesis import strategies as st
from thinking_parts import one_token

from quire.engine.thinking_end import ThinkingEnd
from quire.messages import MarkerTokens, ThinkingBudget

EOS, NAMED = 90, 91
PIECES = {1: b"<", 2: b"/t>", 3: b"</t>", 4: b"/t>x", 5: b">", 6: b"/t"}
END = MarkerTokens((1, 2), (b"</t>",), PIECES)
CALL = MarkerTokens((), (b"<call>",), {1: b"<", 7: b"call>", 8: b"<call>["})
TEXTS = PIECES | CALL.pieces


def spelled(token_ids):
    return b"".join(TEXTS.get(token_id, b"~") for token_id in token_ids)


@given(st.lists(st.sampled_from([*range(1, 10), EOS, NAMED]), max_size=12), st.booleans())
def test_a_stop_token_ends_the_completion_only_behind_what_begins_a_call(tokens, may_call):
    waiting = ThinkingEnd(END, CALL if may_call else None, (EOS, NAMED))
    for number, token_id in enumerate(tokens):
        text = spelled(tokens[:number])
        has_call = may_call and b"<call>" in text
        assert waiting.is_due_at(EOS) == waiting.is_due_at(NAMED) == (not has_call)
        assert not waiting.is_due_at(9)
        text += TEXTS.get(token_id, b"~")
        assert waiting.is_in([token_id]) == (b"</t>" in text)
        if b"</t>" in text:
            return


def test_the_end_follows_as_if_a_budget_were_used_up():
    assert ThinkingEnd(END).used_up_budget == ThinkingBudget(0, END, None, True)


def test_a_stop_token_of_the_marker_itself_ends_the_completion():
    waiting = ThinkingEnd(one_token(95), None, (EOS, 95))
    assert waiting.is_due_at(EOS)
    assert not waiting.is_due_at(95)


def test_the_end_counts_wherever_a_step_has_it():
    waiting = ThinkingEnd(END)
    assert not waiting.is_in([9, 1])
    assert waiting.is_in([2, 9])
