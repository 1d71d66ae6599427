"""Outcomes of checks are those of the content, refusals too, and the oldest are forgotten."""

import pytest

from quire.errors import GrammarError, RequestFailedError
from quire.frontend.intake import constraint_checks
from quire.frontend.intake.constraint_checks import ConstraintChecks
from quire.sampling_params import StructuredOutputsParams


class Backend:
    """Refuses regexes that begin with a parenthesis, and notes what it is asked."""

    def __init__(self):
        self.asked = []

    def __call__(self, constraint):
        self.asked.append(constraint.regex or constraint.json)
        if constraint.regex == "bug":
            raise KeyError("secret")
        if constraint.regex and constraint.regex.startswith("("):
            raise GrammarError(f"no {constraint.regex}", param="regex")


@pytest.fixture
def backend():
    return Backend()


@pytest.fixture
def checks(backend):
    return ConstraintChecks(backend)


def regex(text):
    return StructuredOutputsParams(regex=text)


def test_constraints_of_equal_content_are_checked_once(checks, backend):
    for text in ("a", "b", "a", "b", "a"):
        checks.check(regex(text))
        assert checks.is_known(regex(text))
    assert backend.asked == ["a", "b"]
    assert not checks.is_known(regex("c"))


def test_a_valid_constraint_that_is_known_is_read_once(checks, monkeypatch):
    checks.check(regex("a"))
    checks.check(regex("b"))
    again = regex("a")
    assert checks.is_known(again)
    monkeypatch.setattr(constraint_checks, "check_values", None)
    checks.check(again)


def test_other_values_are_another_constraint(checks, backend):
    for schema in ({"const": 1}, {"const": 1.0}, {"const": True}, {"const": "1"}, '{"const": 1}'):
        checks.check(StructuredOutputsParams(json=schema))
    assert len(backend.asked) == 5


def test_a_refusal_is_remembered_with_its_message_and_field(checks, backend):
    errors = []
    for _ in range(2):
        with pytest.raises(GrammarError, match=r"no \(") as found:
            checks.check(regex("("))
        errors.append(found.value)
        errors[-1].param = errors[-1].param and "other"
    assert backend.asked == ["("]
    with pytest.raises(GrammarError) as found:
        checks.check(regex("("))
    assert found.value.param == "regex", "what a caller writes into an error is its own"


def test_a_backend_that_fails_is_asked_again(checks, backend):
    for _ in range(2):
        with pytest.raises(RequestFailedError):
            checks.check(regex("bug"))
    assert backend.asked == ["bug", "bug"]


def test_the_oldest_outcomes_are_forgotten(checks, backend, monkeypatch):
    monkeypatch.setattr(constraint_checks, "MAX_REMEMBERED", 2)
    for text in "abc":
        checks.check(regex(text))
    assert [checks.is_known(regex(text)) for text in "abc"] == [False, True, True]


def test_values_that_are_no_json_are_refused_and_not_remembered(checks, backend):
    for value in ({1, 2}, float("nan"), "\ud800"):
        constraint = StructuredOutputsParams(json={"const": value})
        for _ in range(2):
            with pytest.raises(GrammarError):
                checks.check(constraint)
    assert backend.asked == []


def test_constraints_without_a_hash_are_asked_for_each_time(backend, monkeypatch):
    monkeypatch.setattr(constraint_checks, "_digest", lambda _: b"")
    checks = ConstraintChecks(backend)
    with pytest.raises(GrammarError):
        checks.check(regex("("))
    checks.check(regex("a"))
    assert backend.asked == ["(", "a"]


def test_without_backends_any_json_is_valid():
    checks = ConstraintChecks(None)
    checks.check(regex("("))
    with pytest.raises(GrammarError):
        checks.check(StructuredOutputsParams(json={"const": {1}}))
