"""A budget of thinking ends by the end marker, exactly after so many tokens."""

import msgspec
import pytest
from engine_parts import CountingExecutor, ScriptedGrammars, make_message, make_scheduler
from hypothesis import given
from hypothesis import strategies as st
from thinking_parts import one_token

from quire.engine.core import EngineCore
from quire.engine.thinking_budgets import MAX_LEADING_TOKENS, ThinkingBudgets
from quire.messages import EngineOutput, MarkerTokens, ThinkingBudget

START, END, V = 90, 95, 100
START_MARK, END_MARK = one_token(START), one_token(END)


class Launches(CountingExecutor):
    """Counts the steps that are sampled without a look at masks."""

    num_launched = 0

    def launch(self, plan):
        self.num_launched += 1
        super().launch(plan)


def budgets_of(max_tokens, *, is_open=True, start=START_MARK, end=END_MARK):
    budgets = ThinkingBudgets(V)
    budgets.add("a", ThinkingBudget(max_tokens, end, start, is_open))
    return budgets


def accept(budgets, *token_ids, finish_reason=None):
    output = EngineOutput(request_id="a", token_ids=list(token_ids), finish_reason=finish_reason)
    budgets.accept([output])


def forced(budgets):
    """The only token that the mask leaves; None if there is no mask."""
    mask = budgets.mask("a", 3)
    if mask is None:
        return None
    bits = int.from_bytes(mask.words, "little")
    assert (mask.slot, len(mask.words), bits.bit_count()) == (3, 16, 1)
    return bits.bit_length() - 1


@pytest.mark.parametrize("max_tokens", [0, 1, 5])
def test_thinking_that_the_prompt_opened_ends_after_so_many_tokens(max_tokens):
    budgets = budgets_of(max_tokens)
    for _ in range(max_tokens):
        assert forced(budgets) is None
        accept(budgets, 7)
    assert forced(budgets) == END
    accept(budgets, END)
    assert not budgets
    assert forced(budgets) is None


def test_thinking_that_ends_by_itself_is_left_alone():
    budgets = budgets_of(2)
    accept(budgets, 7, END, 7, 7, 7)
    assert not budgets


@pytest.mark.parametrize("num_before", range(MAX_LEADING_TOKENS + 2))
def test_thinking_that_the_completion_opens_counts_from_there(num_before):
    budgets = budgets_of(1, is_open=False)
    accept(budgets, *[7] * num_before, START)
    if num_before >= MAX_LEADING_TOKENS:
        assert not budgets, "it is text that names the marker"
        return
    assert forced(budgets) is None
    accept(budgets, 8)
    assert forced(budgets) == END


def test_a_completion_that_cannot_open_its_thinking_has_no_limit():
    budgets = budgets_of(0, is_open=False, start=None)
    accept(budgets, START)
    assert forced(budgets) is None


def test_what_is_unknown_counts_as_thinking():
    budgets = budgets_of(2)
    assert [budgets.may_be_used_up("a", unknown) for unknown in range(4)] == [False] * 2 + [
        True
    ] * 2
    shut = budgets_of(1, is_open=False)
    assert [shut.may_be_used_up("a", unknown) for unknown in range(4)] == [False] * 2 + [True] * 2
    assert not budgets.may_be_used_up("other", 9)


def test_a_request_that_ends_is_forgotten():
    budgets = budgets_of(2)
    accept(budgets, 7, finish_reason="length")
    assert not budgets
    budgets = budgets_of(2)
    budgets.release("a")
    budgets.release("a")
    assert not budgets


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_the_engine_masks_the_token_after_the_last_thought(async_scheduling):
    executor, grammars = Launches(), ScriptedGrammars()
    core = EngineCore(
        make_scheduler(), executor, executor, grammars,
        async_scheduling=async_scheduling, vocab_size=V,
    )  # fmt: skip
    message = make_message("a", prompt=[20], max_tokens=8)
    core.add(
        msgspec.structs.replace(
            message, thinking_budget=ThinkingBudget(3, one_token(24), None, True)
        )
    )
    core.add(make_message("b", prompt=[40], max_tokens=8))
    masked = []
    while core.has_work():
        executor.masks = []
        core.step()
        masked += [(mask.slot, int.from_bytes(mask.words, "little")) for mask in executor.masks]
    assert masked == [(0, 1 << 24)], "21, 22 and 23 are thoughts"
    num_steps = len(executor.num_tokens_per_step)
    assert executor.num_launched >= num_steps - 1 - async_scheduling, "others wait for no mask"
    assert not core._budgets


@pytest.mark.parametrize("how", ["abort", "expire"])
def test_a_request_that_is_removed_releases_its_budget(how):
    executor = CountingExecutor()
    core = EngineCore(make_scheduler(), executor, executor, ScriptedGrammars(), vocab_size=V)
    message = make_message("a", prompt=[20], max_tokens=8)
    message = msgspec.structs.replace(
        message, thinking_budget=ThinkingBudget(9, one_token(24), None, True)
    )
    if how == "expire":
        message = msgspec.structs.replace(message, arrival_s=-1e6, timeout_s=1.0)
    core.add(message)
    core.step()
    core.abort(["a"] if how == "abort" else [])
    assert not core._budgets


SPELLED = MarkerTokens(
    (1, 2, 3), (b"</t>",), {1: b"</", 2: b"t", 3: b">", 4: b"x<", 5: b"/t", 6: b">\n"}
)


def test_an_end_of_several_tokens_is_forced_token_by_token():
    budgets = budgets_of(2, end=SPELLED)
    accept(budgets, 7, 7)
    for token_id in (1, 2, 3):
        assert forced(budgets) == token_id
        accept(budgets, token_id)
    assert not budgets


def test_an_end_that_the_model_has_begun_is_completed():
    budgets = budgets_of(2, end=SPELLED)
    accept(budgets, 7, 1)
    assert forced(budgets) == 2


@given(
    st.lists(st.integers(0, 1), min_size=1, max_size=5),
    st.lists(st.integers(0, 1), max_size=12),
)
def test_an_end_is_gone_on_with_from_its_longest_beginning(end, thoughts):
    end, thoughts = [each + 1 for each in end], [each + 1 for each in thoughts]
    marker = MarkerTokens(tuple(end), (bytes(end),), {1: b"\x01", 2: b"\x02"})
    budgets = budgets_of(len(thoughts), end=marker)
    accept(budgets, *thoughts)
    if bytes(end) in bytes(thoughts):
        assert not budgets
        return
    begun = next(n for n in range(len(end), -1, -1) if thoughts[len(thoughts) - n :] == end[:n])
    for token_id in end[begun:]:
        assert forced(budgets) == token_id
        accept(budgets, token_id)
    assert not budgets


def test_an_end_that_other_tokens_spell_is_one():
    budgets = budgets_of(9, end=SPELLED)
    accept(budgets, 4, 5, 6)
    assert not budgets


CALL = MarkerTokens((), (b"<call>", b"[f]"), {1: b"<", 2: b"call>", 3: b"x[", 4: b"f]y", 5: b"f"})


def budgets_with_calls(max_tokens, *, is_open=True):
    budgets = ThinkingBudgets(V)
    budgets.add("a", ThinkingBudget(max_tokens, END_MARK, START_MARK, is_open), CALL)
    return budgets


@pytest.mark.parametrize("opener", [(1, 2), (3, 4)])
def test_a_call_that_has_begun_in_the_thinking_is_not_cut(opener):
    budgets = budgets_with_calls(3)
    accept(budgets, 7)
    accept(budgets, *opener)
    assert not budgets, "the budget is used up now, and nothing is forced"
    assert forced(budgets) is None


def test_a_call_that_has_not_begun_when_the_budget_is_used_up_does_not_count():
    budgets = budgets_with_calls(2)
    accept(budgets, 7, 1)
    assert forced(budgets) == END
    budgets = budgets_with_calls(2)
    accept(budgets, 1, 7)
    assert forced(budgets) == END, "half an opener is none"


def test_what_begins_a_call_before_the_thinking_does_not_count():
    budgets = budgets_with_calls(1, is_open=False)
    accept(budgets, 1, 2, START, 7)
    assert forced(budgets) == END


@given(
    st.lists(st.integers(1, 7), max_size=12).map(tuple),
    st.integers(0, 8),
    st.lists(st.integers(1, 4), max_size=12),
)
def test_nothing_is_forced_behind_what_begins_a_call(tokens, max_tokens, sizes):
    budgets, text = budgets_with_calls(max_tokens), b""
    sizes = [*sizes, *[1] * len(tokens)]
    rest = list(tokens)
    for size in sizes:
        step, rest = rest[:size], rest[size:]
        if forced(budgets) is not None or not step:
            break
        accept(budgets, *step)
        text += b"".join(CALL.pieces.get(token_id, b"~") for token_id in step)
    has_call = b"<call>" in text or b"[f]" in text
    num_thought = len(tokens) - len(rest)
    assert (forced(budgets) is None) == (has_call or num_thought < max_tokens)


def test_a_start_of_several_tokens_opens_the_thinking():
    start = MarkerTokens((8, 9), (b"<t>",), {8: b"<t", 9: b">"})
    budgets = budgets_of(1, is_open=False, start=start)
    accept(budgets, *[7] * (MAX_LEADING_TOKENS - 1), 8, 9)
    accept(budgets, 7)
    assert forced(budgets) == END
