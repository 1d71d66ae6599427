"""A constraint applies at once, or after the one token that ends the prompt's reasoning."""

import pytest
from chat_parsers import calling
from chat_parsers import thinking as reasoning
from letter_parsers import UpperCalls
from msgspec.structs import replace

from quire.call_grammar import CallGrammar, CallShape
from quire.errors import GrammarError, InvalidRequestError, RequestFailedError
from quire.frontend.chat.parsing.marker_tokens import any_marker_tokens, marker_tokens
from quire.frontend.chat.parsing.thinking import NUM_LAST_TOKENS, Thinking
from quire.frontend.intake.intake import Intake
from quire.frontend.text.tokenizer import Tokenizer
from quire.interfaces.field_types import TokenSet
from quire.interfaces.reasoning import ReasoningParser
from quire.interfaces.sampling import RequestField
from quire.messages import ThinkingBudget
from quire.plugins.registry import Source
from quire.sampling_params import SamplingParams, StructuredOutputsParams

ACME = Source("acme", "acme-quire", "1.0")
OPENS = "<|start|>"
CALLS = CallGrammar((CallShape("f", ("f()",)),))


class Opened(ReasoningParser):
    """Thinks if the prompt ends by the mark."""

    @property
    def is_thinking(self):
        return self._text.endswith(OPENS)

    def __init__(self, prompt_text=""):
        super().__init__(prompt_text)
        self._text = prompt_text

    def feed(self, delta):
        return []

    def close(self):
        return []


def thinking(tokenizer, marker="<tool_call>", parser=Opened):
    return Thinking(reasoning(parser, ACME, end_marker=marker), tokenizer)


def test_a_constraint_applies_at_once_without_reasoning(tokenizer):
    for marker in ("<tool_call>", None, "two words"):
        assert thinking(tokenizer, marker).end("fox", [1]) is None


def test_a_constraint_applies_after_the_token_that_ends_the_reasoning(tokenizer):
    end = marker_tokens(["<tool_call>"], tokenizer)
    assert thinking(tokenizer).end(f"fox{OPENS}", [1]) == end
    special = tokenizer.special_tokens
    bos = Tokenizer(tokenizer.backend, special_tokens=special, add_bos_token=True)
    assert thinking(bos).end(f"fox{OPENS}", [1]) == end


@pytest.mark.parametrize("num_before", [0, NUM_LAST_TOKENS - 1, 2000])
def test_the_last_turn_of_a_prompt_without_a_template_is_looked_at(tokenizer, num_before):
    (fox, *_) = tokenizer.encode("f", add_special_tokens=False)
    opened = tokenizer.backend.token_to_id(OPENS)
    end = marker_tokens(["<tool_call>"], tokenizer)
    found = thinking(tokenizer)
    assert found.end(None, [fox] * num_before + [opened]) == end
    assert found.end(None, [opened] + [fox] * (num_before + 1)) is None


def test_a_marker_before_the_last_turn_opens_nothing(tokenizer):
    class Mentioned(Opened):
        @property
        def is_thinking(self):
            return "fox" in self._text

    (*fox,) = tokenizer.encode("fox", add_special_tokens=False)
    turn = tokenizer.backend.token_to_id(OPENS)
    end = marker_tokens(["<tool_call>"], tokenizer)
    found = thinking(tokenizer, parser=Mentioned)
    assert found.end(None, [*fox, turn, *fox]) == end
    assert found.end(None, [*fox, turn]) is None
    choice = reasoning(Mentioned, ACME, end_marker="<tool_call>", markers=(OPENS,))
    marked = Thinking(choice, tokenizer)
    assert marked.end(None, [*fox, turn]) == end


def test_an_end_that_the_parser_does_not_declare_is_refused(tokenizer):
    with pytest.raises(GrammarError, match="declares no end marker"):
        thinking(tokenizer, None).end(f"fox{OPENS}", [1])


def test_an_end_of_several_tokens_is_found_by_its_text(tokenizer):
    end = thinking(tokenizer, "two words").end(f"fox{OPENS}", [1])
    assert tokenizer.decode(end.token_ids) == "two words"


def test_a_budget_counts_to_the_token_that_ends_the_reasoning(tokenizer):
    end = marker_tokens(["<tool_call>"], tokenizer)
    start = marker_tokens([OPENS], tokenizer)

    def budget(prompt, start_marker=OPENS, **constraint):
        markers = {"end_marker": "<tool_call>", "start_marker": start_marker}
        found = Thinking(reasoning(Opened, ACME, **markers), tokenizer)
        intake = Intake(
            tokenizer,
            max_model_len=64,
            vocab_size=tokenizer.vocab_size,
            fields=[RequestField("allowed_token_ids", TokenSet(), [])],
            thinking=found,
        )
        params = SamplingParams(thinking_token_budget=7, **constraint)
        return intake.admit(prompt, params).requests[0].thinking_budget

    assert budget(f"fox{OPENS}") == ThinkingBudget(7, end, None, True)
    assert budget("fox") == ThinkingBudget(7, end, start, False)
    assert budget("fox", None) == ThinkingBudget(7, end, None, False)
    words = marker_tokens(["two words"], tokenizer)
    assert budget("fox", "two words") == ThinkingBudget(7, end, words, False)
    constraint = StructuredOutputsParams(regex="x")
    assert budget("fox", structured_outputs=constraint) == ThinkingBudget(7, end, None, False)
    free = StructuredOutputsParams(calls=replace(CALLS, triggers=("f",)))
    assert budget("fox", structured_outputs=free) == ThinkingBudget(7, end, start, False)
    assert budget(f"fox{OPENS}", allowed_token_ids=[1, *end.token_ids]).max_tokens == 7
    with pytest.raises(InvalidRequestError, match="to allowed_token_ids"):
        budget(f"fox{OPENS}", allowed_token_ids=[1])


def test_the_engine_looks_for_calls_if_they_may_be_in_the_reasoning(tokenizer):
    openers = ("<tool_call>", "[fox")

    def openers_for(prompt, constraint=None, budget=7, **capabilities):
        choice = calling(UpperCalls, ACME, call_openers=openers, **capabilities)
        found = Thinking(reasoning(Opened, ACME, end_marker="two words"), tokenizer, choice)
        intake = Intake(
            tokenizer, max_model_len=64, vocab_size=tokenizer.vocab_size, thinking=found
        )
        params = SamplingParams(thinking_token_budget=budget, structured_outputs=constraint)
        return intake.admit(prompt, params).requests[0].call_openers

    ends = {"calls_end_reasoning": True}
    with_tools = {"prompt": f"fox{OPENS}", "has_tools": True, "opening": OPENS}
    assert openers_for(with_tools, **ends) == any_marker_tokens(openers, tokenizer)
    assert openers_for(with_tools | {"has_tools": False}, **ends) is None
    assert openers_for(f"fox{OPENS}", **ends) is None
    assert openers_for(with_tools) is None
    free = StructuredOutputsParams(calls=replace(CALLS, triggers=("f",)))
    before = StructuredOutputsParams(calls=replace(CALLS, covers_reasoning=True))
    behind = StructuredOutputsParams(regex="x")
    for constraint in (free, before, behind):
        assert openers_for(with_tools, constraint, **ends) is not None
    assert openers_for(with_tools, behind, None, **ends) is not None, "the constraint waits"
    for constraint in (before, None):
        assert openers_for(with_tools, constraint, None, **ends) is None, "nothing waits"
    forced = StructuredOutputsParams(calls=CALLS)
    assert openers_for(with_tools, forced, **ends) is None, "calls come behind the reasoning"


def test_a_budget_without_a_marker_that_ends_the_reasoning_is_refused(tokenizer):
    for found in (thinking(tokenizer, None), None):
        intake = Intake(
            tokenizer, max_model_len=64, vocab_size=tokenizer.vocab_size, thinking=found
        )
        with pytest.raises(InvalidRequestError, match="thinking_token_budget needs") as caught:
            intake.admit("fox", SamplingParams(thinking_token_budget=7))
        assert caught.value.param == "thinking_token_budget"
        intake.admit("fox", SamplingParams(thinking_token_budget=-1))


@pytest.mark.parametrize("error", [KeyError("secret"), ValueError("secret"), OSError("secret")])
def test_a_parser_that_fails_is_named_without_its_traceback(tokenizer, caplog, error):
    class Broken(Opened):
        def __init__(self, prompt_text=""):
            raise error

    with pytest.raises(RequestFailedError, match=r"acme \(acme-quire 1.0\)") as caught:
        thinking(tokenizer, parser=Broken).end("fox", [1])
    assert "secret" not in str(caught.value)
    assert "secret" in caplog.text


def test_the_intake_sets_the_token_after_which_the_constraint_applies(tokenizer):
    intake = Intake(
        tokenizer, max_model_len=64, vocab_size=tokenizer.vocab_size,
        thinking=thinking(tokenizer),
    )  # fmt: skip
    end = marker_tokens(["<tool_call>"], tokenizer)
    constraint = StructuredOutputsParams(regex="x")
    for prompt, asked, found in (
        (f"fox{OPENS}", constraint, end),
        ("fox", constraint, None),
        (f"fox{OPENS}", None, None),
        (f"fox{OPENS}", StructuredOutputsParams(calls=CALLS), end),
        (f"fox{OPENS}", StructuredOutputsParams(calls=replace(CALLS, covers_reasoning=True)), None),
    ):
        params = SamplingParams(structured_outputs=asked)
        assert intake.admit(prompt, params).requests[0].thinking_end == found
