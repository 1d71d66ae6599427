"""Hostile grammars: `check`, which runs in the server's process, is quick whatever it is given.

A guard of CPU time ends a check that does not end by itself; it is a hundred times what each needs.
"""

import contextlib
import functools
import signal

import pytest

from quire.errors import GrammarError
from quire.interfaces.tool_parsing import CallGrammar, CallShape, SchemaPiece
from quire.sampling_params import StructuredOutputsParams
from quire_structured_output.llguidance.llguidance import LLGuidanceBackend
from quire_structured_output.outlines.outlines import OutlinesBackend

GUARD_S = 10


def doubled(word, depth=30):
    """Return definitions of which each refers to the next one twice."""
    defs = {
        f"d{i}": {word: [{"$ref": f"#/$defs/d{i + 1}"}, {"$ref": f"#/$defs/d{i + 1}"}]}
        for i in range(depth)
    }
    return defs | {f"d{depth}": {"type": "string"}}


def doubled_properties(depth=30):
    defs = {
        f"d{i}": {"properties": {name: {"$ref": f"#/$defs/d{i + 1}"} for name in "ab"}}
        for i in range(depth)
    }
    return defs | {f"d{depth}": {"type": "string"}}


def nested(wrap, depth, inner):
    return functools.reduce(lambda schema, i: wrap(schema, i), range(depth), inner)


FIRST = {"$ref": "#/$defs/d0"}
TWO_NAMES = {"properties": {"k": {"const": "a"}, "l": {"const": "b"}}, "required": ["k", "l"]}
EXPONENTIAL = "too large once its references are followed"
SCHEMAS = {  # schema, and what the refusal says; None: it is accepted
    "an enum of 100,000": ({"enum": [str(i) for i in range(100_000)]}, "characters"),
    "10,000 deep": ('{"items":' * 10_000 + "{}" + "}" * 10_000, "nested more than"),
    "a reference to itself": ({"$ref": "#"}, None),
    "all of itself": ({"allOf": [{"$ref": "#"}]}, None),
    "not itself": ({"not": {"$ref": "#"}}, "no backend supports 'not'"),
    "remote": ({"$ref": "http://example.com/a.json"}, "nothing is fetched"),
    "of a file": ({"$ref": "file:///etc/passwd"}, "nothing is fetched"),
    "doubled allOf": (FIRST | {"$defs": doubled("allOf")}, None),
    "doubled anyOf": (FIRST | {"$defs": doubled("anyOf")}, None),
    "doubled properties": (FIRST | {"$defs": doubled_properties()}, None),
    "not doubled allOf": ({"not": FIRST, "$defs": doubled("allOf")}, EXPONENTIAL),
    "not doubled anyOf": ({"not": FIRST, "$defs": doubled("anyOf")}, EXPONENTIAL),
    "not doubled properties": ({"not": FIRST, "$defs": doubled_properties()}, EXPONENTIAL),
    "if doubled properties": (
        {"if": FIRST, "then": {"type": "string"}, "$defs": doubled_properties()}, EXPONENTIAL,
    ),
    "unevaluated": (
        {"unevaluatedProperties": False, "$ref": "#/$defs/a",
         "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}] * 2}}}, EXPONENTIAL,
    ),
    "a name that backtracks": (
        {"propertyNames": {"pattern": "^(a+)+$"}, "properties": {"a" * 40 + "b": {}}}, None,
    ),
    "alternatives that backtrack": (
        {"propertyNames": {"pattern": "^(a|a)*$"}, "required": ["a" * 40 + "b"]},
        "nothing satisfies both",
    ),
    "many long names": (
        {"propertyNames": {"pattern": "a.*a.*a.*b$"},
         "properties": {"a" * 900 + str(i): {} for i in range(400)}}, EXPONENTIAL,
    ),
    "3,000 anchors": (
        {"$defs": {f"a{i}": {"$anchor": f"n{i}"} for i in range(3_000)},
         "anyOf": [{"$ref": f"#n{i}"} for i in range(3_000)]}, None,
    ),
    "1,500 ids": (
        {"$defs": {f"a{i}": {"$id": f"n{i}"} for i in range(1_500)},
         "anyOf": [{"$ref": f"n{i}"} for i in range(1_500)]}, None,
    ),
    "an id that is a list": ({"$id": ["x"], "properties": {"a": {"$id": 7}}}, "id"),
    "300 overlapping patterns": (
        {"patternProperties": {f"^a.*{i}.*b": {"type": "null"} for i in range(300)}}, None,
    ),
    "all of 300 anyOf": (
        {"allOf": [{"anyOf": [{"properties": {f"a{i}": {"const": k}}} for k in range(5)]}
                   for i in range(300)]}, None,
    ),
    "oneOf of 500 objects": (
        {"oneOf": [{"properties": {"t": {"const": f"t{i}"}, "v": {"type": "string"}}}
                   for i in range(500)]}, "too many or too large",
    ),
    "oneOf of doubled properties": (
        {"oneOf": [FIRST, {"properties": {"a": {"$ref": "#/$defs/d1"}}, "type": "object"}],
         "$defs": doubled_properties()}, "too many or too large",
    ),
    "oneOf of a pattern that backtracks": (
        {"oneOf": [{"type": "string", "pattern": "^(a+)+$"}, {"enum": ["a" * 40 + "!"]}]}, None,
    ),
    "a name of a closed object that backtracks": (
        {"oneOf": [{"type": "object", "patternProperties": {"^(a|a)*$": {}},
                    "additionalProperties": False},
                   {"type": "object", "required": ["a" * 40 + "!"]}]}, None,
    ),
    "unique arrays by patterns that backtrack": (
        {"patternProperties": {"^(a+)+$": {"uniqueItems": True}},
         "properties": {"a" * 40 + "!": {"type": "array"}}}, None,
    ),
    "not, 60 deep": (nested(lambda s, i: {"not": s}, 60, {"type": "null"}), None),
    "not of products": (
        {"not": {"anyOf": [{"allOf": [{"const": f"{i}{k}"} for k in range(10)]}
                           for i in range(60)]}}, "no backend supports 'not'",
    ),
    "dependencies, 9 deep": (
        nested(lambda s, i: {"dependentSchemas": dict.fromkeys("abc", s)}, 9, {"type": "object"}),
        "characters",
    ),
    "a number of 5,000 digits": ('{"enum":[' + "9" * 5_000 + "]}", "not JSON"),
    "infinity": ('{"const": 1e999}', "number"),
    "a lone surrogate": ('{"enum": ["\\ud800"]}', "lone surrogate"),
    "a long word that is not": ({"not": {"const": "a" * 50_000}}, "no backend supports 'not'"),
    "a word of 3,000 characters that is not": ({"not": {"const": "a" * 3_000}}, None),
    "contains, 60 deep": (nested(lambda s, i: {"contains": s}, 60, {"type": "null"}), None),
    "an if with two names, 30 deep": (
        nested(lambda s, i: {"if": TWO_NAMES, "then": {"maxProperties": i}, "else": s}, 30, {}),
        None,
    ),
    "a contains of products": (
        nested(lambda s, i: {"oneOf": [{"type": "array", "contains": s}, {"type": "null"}]}, 30,
               {"type": "null"}), None,
    ),
    "oneOf of 99 enums of 200": (
        {"oneOf": [{"enum": [f"{i} {k}" for k in range(200)]} for i in range(99)]},
        "too many or too large",
    ),
    "oneOf of 99 enums with one value in common": (
        {"oneOf": [{"enum": ["a", *(f"{i} {k}" for k in range(150))]} for i in range(99)]},
        "too many or too large",
    ),
    "oneOf of an enum and 90 patterns": (
        {"oneOf": [{"enum": ["a" * 60 + str(k) for k in range(190)]},
                   *({"type": "string", "pattern": "^(a|b|ab)*" + "c" * i + "z$"}
                     for i in range(90))]}, "too many or too large",
    ),
    "4,500 formats": (
        {"properties": {f"p{i}": {"format": "uri-reference"} for i in range(4_500)}},
        "more than 1048576 characters",
    ),
    "a large repetition": ({"pattern": "a{0,1000000000}"}, "a repetition of more than"),
    "15,000 parentheses": ({"pattern": "(" * 15_000 + ")" * 15_000}, "nested more than"),
    "a megabyte": ({"pattern": "a" * 2**20}, "characters"),
}  # fmt: skip
GRAMMARS = {
    "30,000 parentheses": ("root ::= " + "(" * 30_000, "nested more than"),
    "30,000 parentheses in Lark": ("start: " + "(" * 30_000, "nested more than"),
    "30,000 backslashes": ("root ::= " + '"\\' * 30_000, "is not understood"),
    "30,000 backslashes in Lark": ("start: " + '"\\' * 30_000, "without an end"),
    "30,000 blank lines": ('start: "a"\n' + " \n" * 30_000 + "x", None),
    "30,000 blanks": ('start: "a"\n' + " " * 30_000 + "x\n" + "\t" * 30_000, None),
    "20,000 brackets": ("start: /a/\n" + "a[\n" * 20_000, "nested more than"),
    "3,500 rules": (
        "root ::= r0\n" + "\n".join(f"r{i} ::= r{i + 1}" for i in range(2_999)) + '\nr2999 ::= "a"',
        None,
    ),
    "a rule that is not defined": ("root ::= foo", "the rule 'foo' is not defined"),
    "half a megabyte of GBNF": ('root ::= "' + "a" * 2**19 + '"', "characters"),
    "half a megabyte of Lark": ('start: "' + "a" * 2**19 + '"', "characters"),
    "left recursion": ('root ::= root root | "a" | ""', None),
    "a large repetition": ('root ::= "a"{0,1000000000}', None),
    "a schema in the grammar": ('start: %json {"divisibleBy": 2}', "'divisibleBy'"),
    "a schema that is not closed": ("start: %json {" * 4_000, "not JSON"),
    "a schema that is nested": ("start: %json " + "[" * 60_000, "not JSON"),
    "4,000 schemas": ("start: " + "%json {} " * 4_000, "more than 256 JSON schemas"),
}
CONSTRAINTS = {
    **{name: ({"json": schema}, reason) for name, (schema, reason) in SCHEMAS.items()},
    **{f"{name} (grammar)": ({"grammar": text}, why) for name, (text, why) in GRAMMARS.items()},
    "choices of 100,000": ({"choice": tuple(map(str, range(100_000)))}, "at most"),
    "nested quantifiers": ({"regex": "((a+)+)+"}, None),
    "30,000 parentheses (regex)": ({"regex": "(" * 15_000 + ")" * 15_000}, "nested more than"),
    "a megabyte (regex)": ({"regex": "a" * 2**20}, "characters"),
}


def tagged(schema):
    part = {"type": "json_schema", "json_schema": schema}
    return {"structural_tag": {"type": "structural_tag", "format": part}}


SHORT_ENUM = {"type": "array", "items": {"$ref": "#/$defs/e"}, "uniqueItems": True}
CONSTRAINTS |= {
    "1,000 arrays of unique items in a tag": (
        tagged({"properties": {f"p{i}": SHORT_ENUM for i in range(1_000)},
                "$defs": {"e": {"enum": list("abcdefghij")}}}), "more than 1048576 characters",
    ),
    "unique items of 4,000 characters in a tag": (
        tagged(SHORT_ENUM | {"$defs": {"e": {"enum": [c * 4_000 for c in "abcdefghij"]}}}),
        "more than 1048576 characters",
    ),
}  # fmt: skip


class Unending(BaseException):
    """Raised in a check that takes too long; nothing catches it."""


@pytest.fixture
def guard():
    def stop(signum, frame):
        raise Unending

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, GUARD_S)
    yield
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.signal(signal.SIGVTALRM, before)


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_the_check_of_a_hostile_grammar_ends_with_an_answer(name, guard):
    fields, reason = CONSTRAINTS[name]
    params = StructuredOutputsParams(**fields)
    if reason is None:
        LLGuidanceBackend.check(params)
        return
    with pytest.raises(GrammarError, match=reason):
        LLGuidanceBackend.check(params)


@pytest.mark.parametrize("name", [name for name in CONSTRAINTS if "grammar" not in name])
def test_outlines_checks_it_too(name, guard):
    params = StructuredOutputsParams(**CONSTRAINTS[name][0])
    with contextlib.suppress(GrammarError):
        OutlinesBackend.check(params)


def test_the_schemas_of_all_tools_have_limits_together(guard):
    schema = {"not": FIRST, "$defs": doubled("allOf", 4)}  # one alone is accepted
    LLGuidanceBackend.check(StructuredOutputsParams(json=schema))
    shapes = tuple(CallShape(f"f{i}", ("(", SchemaPiece(schema), ")")) for i in range(400))
    with pytest.raises(GrammarError, match=EXPONENTIAL):
        LLGuidanceBackend.check(StructuredOutputsParams(calls=CallGrammar(shapes)))
