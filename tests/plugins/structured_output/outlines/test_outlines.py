"""The outlines backend passes the conformance kit, and names what it does not support."""

import json
import random
import subprocess
import sys
import time

import pytest

from quire.errors import GrammarError
from quire.interfaces.structured_output import Vocabulary
from quire.interfaces.tool_parsing import CallGrammar, CallShape, SchemaPiece, TextPiece
from quire.plugins.loading import load_plugins
from quire.sampling_params import StructuredOutputsParams
from quire.testing.structured_output import (
    StructuredOutputContract,
    contract_vocabulary,
    read_mask,
    sample_completion,
    satisfies,
)
from quire_structured_output.outlines.outlines import OutlinesBackend

S = StructuredOutputsParams


def nested_optional(levels, num_properties, leaf):
    """A schema in which references make every level appear as often as it has properties."""
    definitions = {"d0": leaf}
    for level in range(1, levels + 1):
        part = {"$ref": f"#/$defs/d{level - 1}"}
        properties = {f"p{i}": part for i in range(num_properties)}
        definitions[f"d{level}"] = {"type": "object", "properties": properties}
    return {"$ref": f"#/$defs/d{levels}", "$defs": definitions}


def arrays(depth):
    schema = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def often(part, times):
    return {"anyOf": [{"$ref": "#/$defs/part"}] * times, "$defs": {"part": part}}


COSTLY = {
    "optional in optional": (nested_optional(7, 10, {"type": "string"}), "1048576 characters"),
    "two by two": (nested_optional(11, 2, {"type": "null"}), "more than"),
    "500 of any value": ({"properties": {f"p{i}": {} for i in range(500)}}, "1048576 characters"),
    "arrays": (arrays(22), "1048576 characters"),
    "deep arrays": (arrays(60), "more than 24 deep"),
    "an enum again and again": (often({"enum": list(range(1900))}, 3000), "10000 values"),
    "a deep value": (often({"const": [[[]]] * 3000}, 3000), "10000 values"),
    "a pattern again and again": (
        often({"type": "string", "pattern": "[a-z]{3}" * 2000}, 3000),
        "1048576 characters",
    ),
    "several patterns": (
        {"anyOf": [{"type": "string", "pattern": "()" * 8000 + str(i)} for i in range(7)]},
        "32768 characters together",
    ),
    "a long oneOf": ({"oneOf": [{"const": i} for i in range(3000)]}, "use anyOf"),
    "large oneOf": (
        {"oneOf": [{"enum": [f"{i}{k:020}" for k in range(900)]} for i in range(5)]},
        "use anyOf",
    ),
    "a long reference": ({"$ref": "#" + "/a" * 20_000}, "more than 1000 characters"),
}
DEAR = {
    "regex": S(regex="()" * 16_000),
    "nodes": S(json=often({"type": "string"}, 1900)),
    "required": S(
        json={
            "properties": {f"p{i}": {"type": "null"} for i in range(400)},
            "required": ["p0", *["p399"] * 10_000],
        }
    ),
    "oneOf": S(json={"oneOf": [{"const": i} for i in range(180)]}),
    "enums": S(json={"anyOf": [{"enum": list(range(i, i + 1900))} for i in range(5)]}),
}


class TestOutlinesContract(StructuredOutputContract):
    backend = OutlinesBackend
    constraints = frozenset({"json", "json_object", "regex", "choice", "calls"})
    refused = (
        (S(json={"type": "number", "minimum": 1}), "'minimum'"),
        (S(regex=r"(a)\1"), "backreference"),
        (S(regex="(?=a)b"), "lookahead"),
        (S(choice=()), "choice"),
        (S(grammar="start: x"), "context-free"),
    )


@pytest.fixture(scope="module")
def backend():
    return OutlinesBackend(contract_vocabulary())


def is_spelled(backend, params, text):
    """Whether the grammar takes a text, byte by byte, and may end there."""
    matcher = backend.compile(params).matcher()
    return all(matcher.accept(byte) for byte in text.encode()) and 300 in read_mask(matcher)


def test_it_is_registered_with_its_constraints():
    entry = load_plugins().registries.structured_output.entry("outlines")
    assert entry.capabilities.constraints == {"json", "json_object", "regex", "choice", "calls"}


def test_neither_outlines_nor_its_disk_cache_is_loaded():
    program = (
        "import sys, quire_structured_output.outlines.outlines as o; from quire.interfaces."
        "structured_output import Vocabulary; from quire.sampling_params import "
        "StructuredOutputsParams as S; o.OutlinesBackend(Vocabulary({b'a': [0]}, (1,), 2))"
        ".compile(S(regex='a+')); print({'outlines', 'diskcache', 'cloudpickle', 'torch', "
        "'transformers'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "set()", done.stderr


@pytest.mark.parametrize(
    ("regex", "yes", "no"),
    [
        (r"^\d{3}$", "123", "12a"),
        (r"\A[ab]+\Z", "abba", "abc"),
        (r"^yes|no$", "no", "yesno"),
        (r"(?i)ok", "oK", "k"),
        (r"a\$", "a$", "a"),
        (r"a\\$", "a\\", "a$"),
        (r"[$^]+", "^$", "a"),
    ],
)
def test_anchors_at_the_ends_say_nothing(backend, regex, yes, no):
    assert is_spelled(backend, S(regex=regex), yes)
    assert not is_spelled(backend, S(regex=regex), no)


@pytest.mark.parametrize(
    ("regex", "yes", "no"),
    [
        (r".+", "aé.", "\n"),
        (r"(?s).+", "a\n", "\0"),
        (r"(?i)[^a-c]+", "dé", "B"),
        (r"[\]x.]+", "]x.", "a"),
        (r"[]x]+", "x]", "a"),
        (r"\W\D\S", " x.", "xx."),
        (r"\P{L}\pL", "1a", "ab"),
        (r"[\x00-\x1f]+", "\t", "\0"),
        (r"[^x]", "é", "\0"),
    ],
)
def test_the_rewritten_regex_matches_what_was_written(backend, regex, yes, no):
    assert is_spelled(backend, S(regex=regex), yes)
    assert not is_spelled(backend, S(regex=regex), no)


@pytest.mark.parametrize(
    "params",
    [
        S(json={"type": "string", "maxLength": 200}),
        S(json={"type": "array", "items": {"type": "string", "minLength": 5, "maxLength": 40}}),
        S(regex=r'"(?:[^"\\]|\\["n]){0,100}"'),
        S(regex=r"(?s)\[.{0,100}"),
        S(json_object=True),
    ],
    ids=str,
)
def test_what_begins_again_inside_itself_does_not_blow_up(backend, params):
    start = time.monotonic()
    backend.compile(params)
    assert time.monotonic() - start < 5.0  # it was minutes; a tenth of a second is usual


@pytest.mark.parametrize(
    ("regex", "reason"),
    [
        ("(", "not a valid regular expression"),
        ("x)|(y", "nothing opens the ')' at character 1"),
        ("a)(?:", "nothing opens the ')' at character 1"),
        ("x{2}){3}(?:y", "nothing opens the ')' at character 4"),
        ("(?:a", "a '(' is not closed"),
        ("[(?:a", "a '[' is not closed"),
        ("a\\", "ends with a backslash"),
        ("a{3,2}", "not a valid regular expression"),
        ("a|^b", "the anchor ^"),
        ("a$b", "the anchor $"),
        ("[a&&b]", "'&&'"),
        ("[a--b]", "'--'"),
        ("[a~~b]", "'~~'"),
        ("[[:alpha:]]", "'['"),
        (r"\bword\b", "word boundaries"),
        ("(?<!a)b", "lookbehind"),
        ("(?>a)b", "atomic"),
        ("(?x) a b", "'(?x)'"),
        ("(?s:.)", "'(?s:'"),
        (r"a\x00b", "U+0000"),
        ("\0", "U+0000"),
        (r"[\x00]", "no sequence of the model's tokens"),
        (r"(?P<x>a)(?P=x)", "backreference"),
        (r"\k<x>", "backreference"),
        (r"(a)(b)(c)(d)(e)(f)(g)(h)(i)\9", "backreference"),
        ("a" * 40_000, "40000 characters"),
        ("\ud800", "surrogate"),
    ],
)
def test_a_regex_that_cannot_be_compiled_is_refused_with_the_reason(backend, regex, reason):
    with pytest.raises(GrammarError) as caught:
        backend.compile(S(regex=regex))
    assert reason in str(caught.value)


def test_escaped_or_listed_parentheses_are_no_lookaround():
    OutlinesBackend.check(S(regex=r"\(?=[(?=]\\\(?!"))


@pytest.mark.parametrize("pattern", ["x)|(y", 'x")|(?:"y', "a)(?:", "x{2}){3}(?:y", "[x"])
def test_a_pattern_that_would_leave_its_string_is_refused(pattern):
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}}
    with pytest.raises(GrammarError, match="'pattern' at /properties/a/pattern is not a valid"):
        OutlinesBackend.check(S(json=schema))


@pytest.mark.parametrize("regex", [r"\)a", r"[)]a", r"[^)\]]a", r"(\()a", r"((a)|(b))", r"[]()]a"])
def test_parentheses_that_balance_or_are_characters_are_taken(backend, regex):
    OutlinesBackend.check(S(regex=regex))
    backend.compile(S(regex=regex))


@pytest.mark.parametrize("name", COSTLY)
def test_what_multiplies_is_refused_before_it_is_built(name):
    start = time.process_time()
    with pytest.raises(GrammarError, match=COSTLY[name][1]):
        OutlinesBackend.check(S(json=COSTLY[name][0]))
    assert time.process_time() - start < 0.3  # usual are 30 ms; it was seconds and gigabytes


@pytest.mark.parametrize("name", DEAR)
def test_what_is_just_allowed_is_checked_quickly(name):
    start = time.process_time()
    OutlinesBackend.check(DEAR[name])
    assert time.process_time() - start < 0.3  # usual are 30 ms


def calls(*schemas, separator=None):
    shapes = tuple(
        CallShape(f"t{i}", (f"<t{i}|.*> ", SchemaPiece(schema), ";"))
        for i, schema in enumerate(schemas)
    )
    return S(calls=CallGrammar(shapes, separator))


def test_calls_are_their_texts_and_what_satisfies_their_schemas(backend):
    integer, word = {"type": "integer"}, {"type": "string", "pattern": "a|b"}
    one, several = calls(integer, word), calls(integer, word, separator=" + ")
    for params in (one, several):
        assert is_spelled(backend, params, "<t0|.*> 7;")
        assert is_spelled(backend, params, '<t1|.*> "b";')
        for text in ("", "<t0|.*> x;", "<t0|aa> 7;", '<t0|.*> "a";', "<t0|.*> 7;<t0|.*> 7;"):
            assert not is_spelled(backend, params, text)
    assert is_spelled(backend, several, '<t0|.*> 7; + <t1|.*> "a"; + <t0|.*> 8;')
    assert not is_spelled(backend, one, "<t0|.*> 7; + <t0|.*> 7;")


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        (
            calls({"type": "integer"}, {"type": "number", "minimum": 1}),
            "tool 't1'.*'minimum' at /",
        ),
        (calls(), "no tool"),
        (calls({"type": "string"}, separator="\0"), r"U\+0000"),
        (calls({"type": "string"}, separator="\ud800"), "around a call has a lone surrogate"),
        (calls(*[{"enum": list(range(1900))}] * 9), "tool 't5'.*10000 values"),
    ],
)
def test_calls_that_cannot_be_honoured_are_refused_with_the_tool(params, reason):
    with pytest.raises(GrammarError, match=reason):
        OutlinesBackend.check(params)


def text_of(schema):
    piece = TextPiece(schema, "\n</v>", ("</v>",))
    return S(calls=CallGrammar((CallShape("f", ("<v>", piece)),)))


@pytest.mark.parametrize(
    ("schema", "allowed", "refused"),
    [
        (True, ["", 'a"\n\\'], ["<", "a</v>"]),
        ({"type": "string", "minLength": 1, "maxLength": 2}, ["a", "ab"], ["", "abc"]),
        ({"enum": ["a<b", "c", 3]}, ["a<b", "c"], ["3", ""]),
        ({"format": "date"}, ["2024-02-29"], ["2023-02-29"]),
        ({"anyOf": [{"const": "a"}, {"type": "null"}]}, ["a"], ["null"]),
        ({"$ref": "#/$defs/U", "$defs": {"U": {"enum": ["m"]}}}, ["m"], ["n"]),
    ],
)
def test_a_text_is_a_string_of_its_schema_without_quotes(backend, schema, allowed, refused):
    for text in allowed:
        assert is_spelled(backend, text_of(schema), f"<v>{text}\n</v>"), text
    for text in refused:
        assert not is_spelled(backend, text_of(schema), f"<v>{text}\n</v>"), text


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"pattern": "a"}, "'pattern' at / in a value that is written as plain text"),
        ({"minLength": 1, "enum": ["a"]}, "'minLength' at / beside 'enum'"),
        ({"type": "integer"}, "'type' at / allows no string"),
        ({"enum": [1]}, "no value at / is a string"),
        ({"enum": ["a</v>"]}, "contains a marker"),
        ({"format": "email"}, "'format' at /"),
        (False, "nothing can satisfy"),
        ({"multipleOf": 1}, "'multipleOf' at /"),
    ],
)
def test_what_a_text_cannot_follow_is_refused_with_the_tool(schema, reason):
    with pytest.raises(GrammarError, match=f"the tool 'f'.*{reason}"):
        OutlinesBackend.check(text_of(schema))


def test_a_pattern_in_a_call_may_match_no_quote(backend):
    with pytest.raises(GrammarError, match="'pattern' at /pattern of the tool 't0' may match"):
        backend.compile(calls({"type": "string", "pattern": "a.c"}))


@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        ((), "empty"),
        (tuple(map(str, range(100_000))), "at most"),
        (("\udc00",), "surrogate"),
        (("a\0",), "U+0000"),
    ],
)
def test_a_choice_that_makes_no_sense_is_refused(choice, reason):
    with pytest.raises(GrammarError) as caught:
        OutlinesBackend.check(S(choice=choice))
    assert reason in str(caught.value)


def test_choices_may_be_as_many_and_as_long_as_it_says():
    OutlinesBackend.check(S(choice=tuple(map(str, range(2000)))))
    OutlinesBackend.check(S(choice=("a" * 65_536, "b" * 65_536)))
    for choice in (tuple(map(str, range(2001))), ("a" * 65_536, "b" * 65_537)):
        with pytest.raises(GrammarError, match="at most 2000 strings of 131072 characters"):
            OutlinesBackend.check(S(choice=choice))


@pytest.mark.parametrize(
    "regex",
    [r"\W", r"\D", r"\S", r"\P{L}", r"\p{Cc}", ".", "(?s).", "[^a]", r"[\W]", r"[\x00-\x1f]"],
)
def test_what_stands_for_many_characters_does_not_stand_for_the_end(backend, regex):
    assert not is_spelled(backend, S(regex=regex), "")


def test_what_check_refuses_is_never_compiled(backend):
    with pytest.raises(GrammarError, match="context-free"):
        backend.compile(S(grammar="start: x"))
    with pytest.raises(GrammarError, match="choice is empty"):
        backend.compile(S(choice=()))


def test_ends_are_taken_back_one_by_one(backend):
    matcher = backend.compile(S(regex="ab")).matcher()
    assert [matcher.accept(token) for token in (300, 97, 98, 300, 302, 300)] == [
        False, True, True, True, True, True,
    ]  # fmt: skip
    matcher.rollback(2)
    assert read_mask(matcher) == {300, 302}
    assert not matcher.accept(97)
    matcher.rollback(2)
    assert read_mask(matcher) == {98}
    matcher.rollback(1)
    assert read_mask(matcher) >= {97}


def test_a_state_with_as_many_tokens_as_ends_is_not_finished(backend):
    matcher = backend.compile(S(regex="[xy]")).matcher()
    assert read_mask(matcher) == {ord("x"), ord("y")}
    assert not matcher.is_finished()
    matcher.accept(ord("x"))
    assert matcher.is_finished()


def test_tokens_with_a_nul_or_without_text_are_never_allowed():
    tokens = {b"a": [0], b"\0": [1], b"a\0": [2], b"": [3]}
    backend = OutlinesBackend(Vocabulary(tokens, (4,), 5))
    matcher = backend.compile(S(regex="a+")).matcher()
    assert read_mask(matcher, 5) == {0}
    matcher.accept(0)
    assert read_mask(matcher, 5) == {0, 4}


def test_a_vocabulary_that_cannot_spell_the_grammar_is_an_error():
    backend = OutlinesBackend(Vocabulary({b"a": [0], b"b": [1]}, (2,), 3))
    with pytest.raises(GrammarError, match="no sequence of the model's tokens"):
        backend.compile(S(regex="[0-9]+"))


def test_a_model_without_an_end_has_no_grammars():
    with pytest.raises(GrammarError, match="needs an EOS token"):
        OutlinesBackend(Vocabulary({b"a": [0]}, (), 1))


def test_a_pattern_that_may_match_a_quote_is_refused(backend):
    for pattern in ("a.c", '^"$', r"\\", r"\s", "[^x]", r"\x1f", r"\x01", "\t"):
        with pytest.raises(GrammarError, match="'pattern' at /pattern may match"):
            backend.compile(S(json={"type": "string", "pattern": pattern}))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^(a|b)|[A-Z]{2,3}$"},
        {"type": "string", "pattern": r"^[^\"\\\x00-\x1f]{1,4}$"},
        {"type": "string", "format": "date"},
        {"type": "string", "format": "date-time"},
        {"type": "string", "format": "time"},
        {"type": "string", "format": "uuid"},
        {"type": "string", "format": "ipv4"},
        {"type": "string", "format": "email"},
        {"type": "object", "additionalProperties": {"type": "integer"}},
        {"type": "object", "properties": {}},
        {"type": "object", "additionalProperties": False},
        {"type": "object", "properties": {"a": True, "b": {}}, "required": ["b"]},
        {"type": "object", "properties": {n: {"type": "null"} for n in "abcd"}},
        {"type": "object", "properties": {n: {"type": "null"} for n in "abcd"}, "required": ["c"]},
        {"type": "object", "properties": {'a"\\\né': {"type": "null"}}, "required": ['a"\\\né']},
        {"prefixItems": [{"type": "integer"}, {"type": "null"}]},
        {"type": "array", "prefixItems": [{"type": "null"}], "items": {"const": 1}, "minItems": 3},
        {"type": "array", "prefixItems": [{"type": "null"}], "items": False},
        {"type": "array", "maxItems": 0},
        {"type": "array", "items": {"enum": [1, 2]}, "minItems": 1, "uniqueItems": False},
        {"type": "array"},
        {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "array", "items": {"const": None}}}},
        {"allOf": [{"type": "boolean"}], "description": "one only"},
        {"oneOf": [{"type": "integer"}, {"type": "string", "maxLength": 2}, {"type": "null"}]},
        {
            "oneOf": [
                {"type": "object", "properties": {"k": {"const": k}}, "required": ["k"]}
                for k in ("a", "b")
            ]
        },
        {"type": "integer", "enum": [1, "a", 2.0, None]},
        {"maxLength": 2},
        {},
        True,
    ],
    ids=json.dumps,
)
def test_completions_satisfy_their_schema(backend, schema):
    grammar = backend.compile(S(json=schema))
    is_valid = satisfies(schema)
    for seed in range(25):
        text = sample_completion(grammar.matcher(), random.Random(seed), backend.vocabulary)
        assert is_valid(text), text


def test_every_date_of_the_calendar_is_a_date_and_no_other(backend):
    params = S(json={"type": "string", "format": "date"})
    grammar = backend.compile(params)
    for text, is_date in [
        ("2024-02-29", True), ("2023-02-29", False), ("1900-02-29", False), ("2000-02-29", True),
        ("2024-04-31", False), ("2024-12-31", True), ("0000-01-01", False), ("0004-02-29", True),
    ]:  # fmt: skip
        matcher = grammar.matcher()
        assert all(matcher.accept(byte) for byte in f'"{text}"'.encode()) == is_date, text


@pytest.mark.parametrize(
    ("params", "texts"),
    [
        (S(json={"type": "number"}), ["1", "1.5", "-0.25e+10", "1e9"]),
        (S(choice=("a", "abc", "abcde")), ["a", "abc", "abcde"]),
        (S(regex="a(?:bc)*"), ["a", "abc", "abcbc"]),
        (S(regex=".*"), ["", "é", "aé日本.", "日"]),
    ],
    ids=str,
)
def test_a_text_may_continue_where_it_may_end(backend, params, texts):
    for text in texts:
        assert is_spelled(backend, params, text), text


def test_properties_come_in_the_order_of_the_schema(backend):
    params = S(json='{"properties": {"b": {"const": 1}, "a": {"const": 2}}, "required": ["a"]}')
    assert is_spelled(backend, params, '{"b": 1, "a": 2}')
    assert is_spelled(backend, params, '{"a": 2}')
    assert not is_spelled(backend, params, '{"a": 2, "b": 1}')
    assert not is_spelled(backend, params, '{"b": 1}')


def test_whitespace_is_one_blank_at_most(backend):
    params = S(json={"type": "array", "items": {"type": "integer"}})
    assert is_spelled(backend, params, "[ 1, 2,3 ]")
    assert not is_spelled(backend, params, "[  1]")
    assert not is_spelled(backend, params, "[\n1]")
