"""Calls follow the schemas of their tools, forced or in free text, also with special tokens."""

import json
from dataclasses import replace

import msgspec
import pytest

from quire.errors import GrammarError
from quire.interfaces.tool_parsing import (
    CallGrammar,
    CallShape,
    EitherPiece,
    Member,
    MembersPiece,
    RegexPiece,
    SchemaPiece,
    TextPiece,
)
from quire.sampling_params import StructuredOutputsParams
from quire.testing.structured_output import contract_vocabulary
from quire_structured_output.llguidance.llguidance import LLGuidanceBackend

BACKEND = LLGuidanceBackend(contract_vocabulary())
END = BACKEND.vocabulary.eos_token_ids[0]
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TAG = "<tool_call>"


def shape(name, schema):
    return CallShape(
        name,
        (f'{TAG}\n{{"name": "{name}", "arguments": ', SchemaPiece(schema), "}\n</tool_call>"),
    )


def call(name, arguments):
    return f'{TAG}\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


def params(*shapes, separator="\n", triggers=(TAG,)):
    return StructuredOutputsParams(calls=CallGrammar(shapes, separator, triggers))


SHAPES = (shape("weather", WEATHER), shape("weather_at", {"type": "object"}))
ROME = call("weather", {"city": "Rome"})


def accepts(given, text):
    matcher = BACKEND.compile(given).matcher()
    return all(matcher.accept(token) for token in [*text.encode(), END])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "It rains. <tool_ca",
        ROME,
        f"Let me look.\n{ROME}",
        f"{ROME} and <b>then</b> {ROME}{call('weather_at', {'a': [1, {'b': None}]})}\n",
        "<think>I could call.</think>\n" + ROME,
    ],
)
def test_any_text_and_calls_by_their_schemas_are_allowed(text):
    assert accepts(params(*SHAPES), text)


@pytest.mark.parametrize(
    "text",
    [
        TAG,
        ROME[:-1],
        call("weather", {"city": 3}),
        call("weather", {}),
        call("weather", {"city": "Rome", "day": 1}),
        call("weather_in", {}),
        call("weather_at", [1]),
        f"a {TAG} b",
        ROME.replace("arguments", "parameters"),
    ],
)
def test_no_other_call_is_allowed(text):
    assert not accepts(params(*SHAPES), text)


def test_without_a_separator_nothing_follows_a_call():
    single = params(*SHAPES, separator=None)
    assert accepts(single, f"a {ROME}")
    assert accepts(single, "a")
    for after in (" ", "b", ROME):
        assert not accepts(single, f"a {ROME}{after}")


def test_names_of_the_longest_kind_are_told_apart():
    names = ["x" * 63 + "a", "x" * 63 + "b"]
    given = params(*(shape(name, {"type": "object"}) for name in names))
    assert all(accepts(given, call(name, {})) for name in names)
    assert not accepts(given, call("x" * 64, {}))


def test_as_many_tools_as_a_request_may_have_are_taken():
    given = params(*(shape(f"tool_{i}", WEATHER) for i in range(128)))
    assert accepts(given, call("tool_127", {"city": "Rome"}))


def test_a_tool_with_a_refused_schema_is_named():
    bad = shape("bad", {"properties": {"age": {"divisibleBy": 3}}})
    with pytest.raises(GrammarError, match=r"the tool 'bad'.*'divisibleBy' at /properties/age"):
        BACKEND.check(params(*SHAPES, bad))


@pytest.mark.parametrize("triggers", [(), (TAG,)])
@pytest.mark.parametrize(
    ("schema", "reason"),
    [({"type": "integer", "minimum": 5, "maximum": 1}, "unsatisfiable"), (False, "unsatisfiable")],
)
def test_a_tool_whose_schema_nothing_satisfies_is_named(schema, reason, triggers):
    bad = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    given = params(shape("good", WEATHER), shape("bad", bad), triggers=triggers)
    with pytest.raises(GrammarError, match=f"the parameters of the tool 'bad': .*{reason}"):
        BACKEND.compile(given)


def test_a_call_without_a_trigger_is_refused():
    for wrong in (CallShape("x", (SchemaPiece({}), "x")), CallShape("x", ("only text",))):
        with pytest.raises(GrammarError, match="the tool 'x'"):
            BACKEND.check(params(wrong))
    with pytest.raises(GrammarError, match="no trigger"):
        BACKEND.check(params(*SHAPES, CallShape("x", ("[x", SchemaPiece({}), "]"))))


@pytest.mark.parametrize(
    ("word", "bound"),
    [
        ("minimum", 10**18),
        ("exclusiveMinimum", 10**18),
        ("maximum", -(10**18)),
        ("exclusiveMaximum", -(10**18)),
    ],
)
def test_a_bound_of_integers_beyond_which_no_range_has_a_grammar_is_refused_by_name(word, bound):
    for kind in ("integer", ["integer", "null"], "number"):
        bad = shape("big", {"properties": {"id": {"type": kind, word: bound}}})
        with pytest.raises(GrammarError, match=rf"the tool 'big'.*'{word}' at /properties/id"):
            BACKEND.check(params(bad))
        near = shape("big", {"properties": {"id": {"type": kind, word: bound // 2}}})
        BACKEND.compile(params(near))
    ended = {"type": "integer", "minimum": 10**18, "maximum": 2 * 10**18}
    BACKEND.compile(params(shape("big", {"properties": {"id": ended}})))


LARGE = (2**63 - 1, 2**63, 2**64 - 1, 1e20, 10**21 + 1, 10**22, 1e300)
NUMBERS = ["integer", "number", ["integer", "null"]]


@pytest.mark.parametrize("kind", NUMBERS)
def test_a_bound_that_is_larger_than_those_of_grammars_is_narrower(kind):
    for large in LARGE:
        for low, high in ((0, large), (-large, 0), (-large, large)):
            ends = {"exclusiveMinimum": low, "maximum": high}
            given = params(shape("big", {"properties": {"id": {"type": kind, **ends}}}))
            compiled = BACKEND.compile(given)
            for value in (10**17, -(10**17), 2**63 - 2**11, -(2**63) + 2**11):
                text = call("big", {"id": value})
                matcher = compiled.matcher()
                is_taken = all(matcher.accept(token) for token in [*text.encode(), END])
                assert is_taken is (low < value < high)


@pytest.mark.parametrize("kind", NUMBERS)
def test_a_bound_beyond_which_there_are_no_numbers_of_grammars_is_refused_by_name(kind):
    for word, low, high in (("minimum", 10**19, 2 * 10**19), ("maximum", -(10**21), -(10**19))):
        for step in (0, 0.5 * low):
            ends = {"minimum": low + step, "maximum": high + step}
            bad = shape("big", {"properties": {"id": {"type": kind, **ends}}})
            with pytest.raises(GrammarError, match=rf"the tool 'big'.*'{word}' at /properties/id"):
                BACKEND.check(params(bad))


def test_a_constant_of_any_size_is_written_as_it_is():
    for value in (1e19, 1e20, 1.5e21, 1e22):
        for schema in ({"const": value}, {"enum": [value, 1]}):
            given = params(shape("big", {"properties": {"id": schema}}))
            assert accepts(given, call("big", {"id": int(value)}))


def test_a_divisor_of_many_digits_is_refused_by_name():
    for large in (9.2e18, 1e20, 10**21):
        bad = shape("big", {"properties": {"id": {"type": "number", "multipleOf": large}}})
        with pytest.raises(GrammarError, match="'multipleOf' at /properties/id"):
            BACKEND.check(params(bad))


def text_of(schema, end="</v>", excluded=()):
    calls = CallGrammar((CallShape("f", ("<v>", TextPiece(schema, end, excluded), "!")),))
    return StructuredOutputsParams(calls=calls)


@pytest.mark.parametrize(
    ("schema", "allowed", "refused"),
    [
        (True, ["", "a", 'é"\\\n{</v'], []),
        ({"type": "string", "minLength": 1, "maxLength": 2}, ["a", "日é"], ["", "abc"]),
        ({"enum": ["a", "b<", 3]}, ["a", "b<"], ["3", "ab", ""]),
        ({"const": ""}, [""], ["a"]),
        ({"pattern": "^[a-c]*$"}, ["", "abc"], ["d"]),
        ({"pattern": "x"}, ["axb"], ["", "ab"]),
        ({"type": "string", "format": "date"}, ["2024-02-29"], ["2023-02-29", ""]),
        ({"format": "email"}, ["a.b@c.org"], ["a", ""]),
        ({"format": "hostname"}, ["a.example"], ["a b"]),
        ({"anyOf": [{"const": "a"}, {"type": "null"}, {"minLength": 3}]}, ["a", "abc"], ["ab"]),
        ({"allOf": [{"minLength": 2}, {"pattern": "^a"}]}, ["ab"], ["a", "ba"]),
        ({"$ref": "#/$defs/U", "$defs": {"U": {"enum": ["m"]}}}, ["m"], ["n"]),
        ({"type": ["string", "null"], "not": {"const": "a"}}, ["b", "ab"], ["a"]),
    ],
)
def test_a_text_is_a_string_of_its_schema_without_quotes(schema, allowed, refused):
    for text in allowed:
        assert accepts(text_of(schema), f"<v>{text}</v>!"), text
    for text in refused:
        assert not accepts(text_of(schema), f"<v>{text}</v>!"), text


def test_a_text_has_no_marker_in_it():
    params = text_of(True, "\n</v>\n", ("</v>", "</f>"))
    assert accepts(params, "<v>a\n</vb>\n</v>\n!")
    for text in ("a\n</v>\nb", "a</v>b", "</f>", "\n</v>"):
        assert not accepts(params, f"<v>{text}\n</v>\n!"), text


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "integer"}, "allows no string"),
        ({"format": "ipv6"}, "'format' .* plain text .'ipv6'"),
        ({"divisibleBy": 2}, "'divisibleBy' at /"),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"anyOf": [{"$ref": "#/$defs/A"}]}}}, "recursive"),
    ],
)
def test_a_keyword_that_no_text_can_follow_is_refused_with_the_tool(schema, message):
    with pytest.raises(GrammarError, match=f"the tool 'f'.*{message}"):
        BACKEND.check(text_of(schema))


def members(required, separator=", "):
    made = [
        Member((f"{name}=", SchemaPiece({"type": "integer"})), name in required) for name in "abc"
    ]
    calls = CallGrammar((CallShape("f", ("f(", MembersPiece(tuple(made), separator), ")")),))
    return StructuredOutputsParams(calls=calls)


@pytest.mark.parametrize("required", ["", "a", "b", "c", "abc"])
@pytest.mark.parametrize("separator", [", ", ""])
def test_members_come_in_order_and_those_not_required_may_be_missing(required, separator):
    params = members(required, separator)
    for given in ("", "a", "b", "c", "ab", "ac", "bc", "abc", "ba"):
        text = f"f({separator.join(f'{name}=1' for name in given)})"
        is_valid = given != "ba" and set(required) <= set(given)
        assert accepts(params, text) == is_valid, text


def test_one_of_several_alternatives_is_written():
    either = EitherPiece((("none",), ('"', TextPiece({"enum": ["x"]}, '"'))))
    params = StructuredOutputsParams(calls=CallGrammar((CallShape("f", ("f(", either, ")")),)))
    assert accepts(params, "f(none)")
    assert accepts(params, 'f("x")')
    assert not accepts(params, "f(x)")


def test_calls_that_a_lexer_cannot_tell_apart_are_refused():
    shapes = (
        CallShape("f", ("f", SchemaPiece({}))),
        CallShape("f_", ("f_", SchemaPiece({}))),
        CallShape("ft", ("ft", SchemaPiece({}))),
    )
    with pytest.raises(GrammarError, match="'f' and 'ft' cannot be told apart"):
        BACKEND.check(StructuredOutputsParams(calls=CallGrammar(shapes)))
    BACKEND.check(StructuredOutputsParams(calls=CallGrammar(shapes[:2])))


@pytest.mark.parametrize("triggers", [(), ("<t>",)])
def test_a_name_may_begin_as_another_does_if_what_follows_tells_them_apart(triggers):
    arguments = MembersPiece((Member(("<a>", TextPiece(True, "</a>")), is_required=False),))
    shapes = tuple(
        CallShape(name, (f"<t>{name}", arguments, "</t>")) for name in ("find", "find_all", "fi")
    )
    given = StructuredOutputsParams(calls=CallGrammar(shapes, "", triggers))
    for name in ("find", "find_all", "fi"):
        for body in ("", "<a>x</a>"):
            assert accepts(given, f"<t>{name}{body}</t><t>find{body}</t>")
            assert not accepts(given, f"<t>{name}_{body}</t>")


def others(declared):
    name = RegexPiece("[a-z]{1,3}", "<", ">", tuple(declared))
    made = tuple(Member((f"<{key}>", SchemaPiece({"type": "integer"})), False) for key in declared)
    piece = MembersPiece(made, ",", Member((name, SchemaPiece({"type": "boolean"}))))
    return StructuredOutputsParams(calls=CallGrammar((CallShape("f", ("(", piece, ")")),)))


def test_other_members_follow_the_declared_ones_under_names_of_their_own():
    for text in ("()", "(<ab>1)", "(<ab>1,<b>true,<abc>false)", "(<c>true)", "(<a>true,<a>true)"):
        assert accepts(others(["ab"]), text), text
    for text in ("(<ab>true)", "(<b>1)", "(<b>true,<ab>1)", "(<ab>1<b>true)", "(<abcd>true)"):
        assert not accepts(others(["ab"]), text), text
    assert accepts(others([]), "(<ab>true,<ab>true)")


def test_a_name_by_a_pattern_may_be_between_special_tokens():
    name = RegexPiece("[a-z]+", "a<tool_call>b", "c!</tool_call>d", ("xc",))
    made = StructuredOutputsParams(calls=CallGrammar((CallShape("f", (name,)),)))
    assert walks(made, "a", 310, "bx", "c!", 311, "d")
    assert not walks(made, "a", 310, "bxcc!", 311, "d")
    assert not walks(made, "a", 310, "b", "c!", 311, "d")


def test_a_barred_text_is_none_as_a_whole():
    piece = TextPiece(True, "</v>", (), (r"[\s\S]*\r", "a+"))
    given = StructuredOutputsParams(calls=CallGrammar((CallShape("f", ("<v>", piece)),)))
    for text in ("", "ab", "\ra", "ba"):
        assert accepts(given, f"<v>{text}</v>"), text
    for text in ("aa", "b\r", "\r"):
        assert not accepts(given, f"<v>{text}</v>"), text


SPECIAL = {"<tool_call>": 310, "</tool_call>": 311, "<think>": 312}
MODEL = LLGuidanceBackend(replace(contract_vocabulary(), special_tokens=SPECIAL))


def walks(given, *parts):
    """Return whether texts and ids of special tokens are accepted, and the end after them."""
    matcher = MODEL.compile(given).matcher()
    ids = [each for part in parts for each in (part.encode() if isinstance(part, str) else [part])]
    return all(matcher.accept(each) for each in [*ids, END])


BODY = '\n{"name": "weather", "arguments": {"city": "Rome"}}\n'


def test_a_special_token_begins_and_ends_a_forced_call():
    forced = params(*SHAPES, triggers=())
    assert walks(forced, 310, BODY, 311, "\n", 310, BODY, 311)
    assert not walks(forced, "<tool_call>", BODY, 311)
    assert not walks(forced, 310, BODY, "</tool_call>")


def test_a_special_token_begins_a_call_in_free_text():
    several, single = params(*SHAPES), params(*SHAPES, separator=None)
    for given in (several, single):
        assert walks(given, "I look.", 310, BODY, 311)
        assert walks(given, 312, "a</think>", 310, BODY, 311)
        assert walks(given, "a <tool_c", 312)
        assert not walks(given, "a", 310, "b")
        assert not walks(given, "a", 310, BODY.replace("Rome", "Rome\\")[:-3], 311)
        assert not walks(given, ROME), "the spelled marker is a call for the parser"
    assert walks(several, 310, BODY, 311, "b", 312, 310, BODY, 311, "c")
    assert not walks(single, 310, BODY, 311, "b")


def test_a_section_of_calls_begins_with_its_trigger():
    shapes = (CallShape("f", ("f", SchemaPiece({"type": "integer"}), ";")),)
    calls = CallGrammar(shapes, ",", ("<s>",), "<s>[", "]</s>", ("</s>",))
    several = StructuredOutputsParams(calls=calls)
    single = StructuredOutputsParams(calls=msgspec.structs.replace(calls, separator=None))
    for given in (several, single):
        for text in ("", "a f1;", "<s>[f1;]</s>", "a <s>[f-1;]</s>"):
            assert accepts(given, text), text
        for text in ("<s>", "<s>[]</s>", "a </s>", "<s>[f1;,]</s>", "<s>[f1;]"):
            assert not accepts(given, text), text
    assert accepts(several, "<s>[f1;,f2;]</s> b <s>[f3;]</s>")
    assert not accepts(single, "<s>[f1;,f2;]</s>")
    assert not accepts(single, "<s>[f1;]</s> b")


def test_calls_at_the_start_only_are_all_or_nothing():
    calls = CallGrammar((CallShape("f", ("{f", "}")),), ";", ("{",), is_at_start=True)
    given = StructuredOutputsParams(calls=calls)
    for text in ("", "{f}", "{f};{f}", "a {f} {b", "[{"):
        assert accepts(given, text), text
    for text in ("{", "{f} a", " {f}", "\n{a"):
        assert not accepts(given, text), text


def test_a_trigger_within_an_excluded_text_is_refused():
    shapes = (CallShape("f", ("<t>f",)),)
    with pytest.raises(GrammarError, match="'<t>' is in '<t>x'"):
        BACKEND.check(
            StructuredOutputsParams(calls=CallGrammar(shapes, "", ("<t>",), excluded=("<t>x",)))
        )
