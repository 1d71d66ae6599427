"""Each limit of a constraint holds exactly, and for all its schemas together."""

import pytest

from quire.errors import GrammarError
from quire.interfaces.tool_parsing import CallGrammar, CallShape, SchemaPiece
from quire_structured_output import budget
from quire_structured_output.budget import Budget
from quire_structured_output.outlines.call_regex import calls_regex
from quire_structured_output.outlines.json_schema import schema_regex

NULL = {"type": "null"}
COUNTED = [
    ("read", budget.MAX_SCHEMA_CHARACTERS),
    ("look_at_pattern", budget.MAX_PATTERNS),
    ("compare", budget.MAX_COMPARED),
]
ONE_BY_ONE = [("visit", budget.MAX_NODES), ("list_value", budget.MAX_VALUES)]


@pytest.mark.parametrize(("method", "limit"), COUNTED)
def test_what_is_paid_at_a_time_may_reach_its_limit_and_no_more(method, limit):
    left = Budget()
    getattr(left, method)(limit - 1)
    getattr(left, method)(1)
    with pytest.raises(GrammarError):
        getattr(left, method)(1)


@pytest.mark.parametrize(("method", "limit"), ONE_BY_ONE)
def test_what_is_paid_one_by_one_may_reach_its_limit_and_no_more(method, limit):
    left = Budget()
    for _ in range(limit):
        getattr(left, method)()
    with pytest.raises(GrammarError, match=f"more than {limit}"):
        getattr(left, method)()


def test_a_piece_has_a_limit_and_all_together_have_another():
    Budget().write(budget.MAX_REGEX_LENGTH)
    with pytest.raises(GrammarError):
        Budget().write(budget.MAX_REGEX_LENGTH + 1)
    left = Budget()
    for _ in range(budget.MAX_WRITTEN // budget.MAX_REGEX_LENGTH):
        left.write(budget.MAX_REGEX_LENGTH)
    with pytest.raises(GrammarError):
        left.write(1)


def test_every_part_of_a_schema_is_counted_references_followed():
    parts = budget.MAX_NODES - 1  # and the schema itself
    schema_regex({"anyOf": [NULL] * parts})
    with pytest.raises(GrammarError, match=r"more than 4000 parts"):
        schema_regex({"anyOf": [NULL] * (parts + 1)})
    with pytest.raises(GrammarError, match=r"more than 4000 parts"):
        schema_regex({"anyOf": [{"$ref": "#/$defs/n"}] * 2000, "$defs": {"n": NULL}})


def test_every_value_of_enums_is_counted_with_its_parts():
    ten = {"anyOf": [{"const": [0] * 1999}] * 5}  # and the list itself: 2000 each
    schema_regex(ten)
    with pytest.raises(GrammarError, match="more than 10000 values"):
        schema_regex({"anyOf": [*ten["anyOf"], {"const": 0}]})


def shape(schema):
    return CallShape("f", (SchemaPiece(schema),))


def test_all_tools_of_a_constraint_share_one_budget():
    nulls = {"anyOf": [NULL] * (budget.MAX_NODES // 2 - 1)}
    calls_regex(CallGrammar((shape(nulls),) * 2))
    with pytest.raises(GrammarError, match=r"the tool 'f': .* 4000 parts"):
        calls_regex(CallGrammar((shape(nulls),) * 2 + (shape(NULL),)))


def test_calls_one_behind_the_other_are_written_three_times():
    long = {"anyOf": [{"$ref": "#/$defs/a"}] * 5, "$defs": {"a": {"const": "-" * 60_000}}}
    calls_regex(CallGrammar((shape(long),)))
    with pytest.raises(GrammarError, match="1048576 characters"):
        calls_regex(CallGrammar((shape(long),), separator="\n"))


def test_several_one_ofs_share_what_may_be_compared():
    one_of = {"oneOf": [{"const": i} for i in range(150)]}
    schema_regex(one_of)
    with pytest.raises(GrammarError, match="use anyOf"):
        schema_regex({"anyOf": [one_of] * 2})


def test_several_patterns_share_their_characters():
    half = budget.MAX_PATTERNS // 2
    several = [{"type": "string", "pattern": letter * half} for letter in "abc"]
    schema_regex({"anyOf": several[:2]})
    with pytest.raises(GrammarError, match="32768 characters together"):
        schema_regex({"anyOf": several})
