"""Calls in free text follow the schemas of their tools, and the text around them is free."""

import json

import pytest

from quire.errors import GrammarError
from quire.interfaces.tool_parsing import CallGrammar, CallShape, SchemaPiece
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


def test_a_call_without_a_trigger_is_refused():
    for wrong in (CallShape("x", (SchemaPiece({}), "x")), CallShape("x", ("only text",))):
        with pytest.raises(GrammarError, match="the tool 'x'"):
            BACKEND.check(params(wrong))
    with pytest.raises(GrammarError, match="no trigger"):
        BACKEND.check(params(*SHAPES, CallShape("x", ("[x", SchemaPiece({}), "]"))))
