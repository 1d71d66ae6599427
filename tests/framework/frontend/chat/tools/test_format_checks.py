"""A format that no backend supports is refused as it was sent, if calls follow it."""

import pytest

from quire.call_grammar import CallGrammar, CallShape
from quire.errors import GrammarError
from quire.frontend.chat.tools.format_checks import check_formats
from quire.frontend.intake.intake import Intake
from quire.sampling_params import SamplingParams, StructuredOutputsParams

CALLS = StructuredOutputsParams(calls=CallGrammar((CallShape("run", ("x",)),)))
WHERE = "tools[1].custom.format.grammar.definition"


@pytest.fixture
def checking(tokenizer):
    """Return an intake whose backend refuses patterns with a text, and what it was asked."""
    asked = []

    def make(refused):
        def check(params):
            pattern = params.json["pattern"]
            asked.append(pattern)
            if refused in pattern:
                raise GrammarError(f"uses {refused!r} at character {pattern.index(refused)}")

        return Intake(tokenizer, max_model_len=64, vocab_size=tokenizer.vocab_size,
                      check_grammar=check), asked  # fmt: skip

    return make


def test_what_is_not_supported_is_named_as_it_was_sent(checking):
    intake, asked = checking("(?=")
    params = SamplingParams(structured_outputs=CALLS)
    with pytest.raises(GrammarError, match=r"^tools.* not supported: uses '\(\?=' at character 1"):
        check_formats({"other": "b", WHERE: "a(?=b)"}, params, intake)
    assert asked == ["^(?:b)$", "^(?:a(?=b))$", "a(?=b)"]


def test_what_is_refused_as_a_whole_alone_is_named_too(checking):
    intake, _ = checking("^")
    params = SamplingParams(structured_outputs=CALLS)
    with pytest.raises(GrammarError, match="at character 0") as caught:
        check_formats({WHERE: "a"}, params, intake)
    assert caught.value.param == WHERE


@pytest.mark.parametrize("constraint", [None, StructuredOutputsParams(json_object=True)])
def test_formats_that_nothing_follows_are_not_checked(checking, constraint):
    intake, asked = checking("a")
    check_formats({WHERE: "a"}, SamplingParams(structured_outputs=constraint), intake)
    assert asked == []
