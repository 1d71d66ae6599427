"""The figures of RESULTS.md hold approximately on a small sample of other questions."""

from __future__ import annotations

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
]

COUNT, SEED = 40, 11


@pytest.fixture(scope="module")
def answerer():
    from recipe.evaluate import load

    return load()


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("tool_calls_new_names", 0.95),
        ("extractions_new_names", 0.9),
        ("tool_calls_new_wordings", 0.8),
        ("extractions_new_wordings", 0.85),
        ("extractions_blind", 0.65),
        ("second_turns", 0.95),
        ("later_requests", 0.85),
        ("chained_calls", 0.75),
        ("facts", 0.95),
        ("raw_questions", 0.95),
    ],
)
def test_most_answers_are_exactly_right(answerer, name, least):
    from recipe.evaluate import score
    from recipe.questions import section

    result = score(answerer, section(name, COUNT, SEED))
    assert result["right"] >= least * COUNT, result["failures"]


@pytest.mark.parametrize("style", ["pirate", "formal"])
def test_an_adapter_answers_in_its_style(style):
    from recipe.adapters import styled
    from recipe.evaluate import load_adapter, score
    from recipe.questions import section

    questions = [styled(c, style) for c in section("facts", COUNT, SEED)]
    assert score(load_adapter(style), questions)["right"] >= 0.9 * COUNT
