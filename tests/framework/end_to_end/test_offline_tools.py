"""`LLM.chat`, `AsyncEngine.chat` and `quire run` use tools as the server does."""

import asyncio
import json

import pytest

from quire import LLM, AsyncEngine, SamplingParams, StructuredOutputsParams
from quire.cli.main import main
from quire.errors import GrammarError, InvalidRequestError, PromptsError, UnknownFieldError

QUESTION = [{"role": "user", "content": "What is the weather in Oslo?"}]
GREEDY = SamplingParams(max_tokens=40, temperature=0)
NO_PARSER = "no tool-call parser"
NAMED = {"type": "function", "function": {"name": "get_weather"}}


def weather(city=None, **fields):
    parameters = {
        "type": "object",
        "properties": {"city": city or {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    function = {"name": "get_weather", "parameters": parameters}
    return {"type": "function", "function": function | fields}


def custom(definition):
    grammar = {"syntax": "regex", "definition": definition}
    form = {"type": "grammar", "grammar": grammar}
    return {"type": "custom", "custom": {"name": "get_weather", "format": form}}


def calls_of(result):
    calls = result.outputs[0].tool_calls
    return [(call.name, json.loads(call.arguments)) for call in calls]


OSLO, ROME = ([("get_weather", {"city": city})] for city in ("Oslo", "Rome"))
STRICT = weather(strict=True)


@pytest.fixture(scope="module")
def engines():
    """The same model behind both offline entries."""
    llm, engine = LLM("demo"), AsyncEngine("demo")
    runner = asyncio.Runner()
    yield llm, engine, runner
    runner.run(engine.shutdown())
    runner.close()
    llm.close()


@pytest.fixture
def chat(engines):
    """Chat by both entries; return the result, or raise the error, that they have in common."""
    llm, engine, runner = engines

    def attempt(call):
        try:
            return call()
        except InvalidRequestError as error:
            return error

    def run(params=GREEDY, **options):
        one = attempt(lambda: llm.chat(QUESTION, params, **options)[0])
        other = attempt(lambda: runner.run(engine.chat(QUESTION, params, **options)))
        if isinstance(one, Exception):
            assert (type(one), str(one)) == (type(other), str(other))
            raise one
        assert calls_of(one) == calls_of(other)
        assert one.outputs[0].text == other.outputs[0].text
        return one

    return run


def test_a_strict_tool_is_called_with_what_its_schema_allows(chat):
    assert calls_of(chat(tools=[weather()])) == OSLO
    assert calls_of(chat(tools=[STRICT])) == ROME


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_call_is_forced(chat, choice):
    assert calls_of(chat(tools=[weather()], tool_choice=choice)) == ROME


def test_tools_that_are_not_chosen_are_not_shown(chat):
    result = chat(tools=[weather()], tool_choice="none")
    assert calls_of(result) == []
    assert "get_weather" not in result.prompt


def test_a_custom_tool_is_called_with_its_input(chat):
    assert calls_of(chat(tools=[custom("Rome|Paris")])) == [("get_weather", {"input": "Rome"})]


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"tools": [weather({"pattern": "(?=a)b"}, strict=True)]}, GrammarError, "lookahead"),
        (
            {"tools": [custom("a(?=b)")]},
            GrammarError,
            r"definition is not .*character 1",
        ),
        ({"tools": [weather(name="a b")]}, InvalidRequestError, "letters, digits"),
        ({"tools": [weather(name="")]}, InvalidRequestError, "letters, digits"),
        ({"tools": [weather(paramters={})]}, UnknownFieldError, "did you mean 'parameters'"),
        ({"tools": [5]}, InvalidRequestError, r"^tools\[0\]: Expected `object`"),
        ({"tools": weather()}, InvalidRequestError, "^tools: Expected `array`"),
        ({"tools": "get_weather"}, InvalidRequestError, "^tools: Expected `array`"),
        ({"tools": [weather()], "tool_choice": 5}, InvalidRequestError, "^tool_choice must be"),
        ({"tool_choice": "required"}, InvalidRequestError, "there are no tools"),
    ],
)
def test_wrong_tools_are_refused_as_the_server_does(chat, options, kind, said):
    with pytest.raises(kind, match=said):
        chat(**options)


def test_another_constraint_wins_over_strict_tools_and_excludes_forced_calls(chat):
    constraint = StructuredOutputsParams(regex="[a-z]{3}")
    params = SamplingParams(max_tokens=20, temperature=0, structured_outputs=constraint)
    assert len(chat(params, tools=[STRICT]).outputs[0].text) == 3
    with pytest.raises(InvalidRequestError, match="and a forced tool call exclude each other"):
        chat(params, tools=[STRICT], tool_choice="required")


def test_each_conversation_has_its_own_tools_and_errors(engines):
    llm = engines[0]
    results = llm.chat([QUESTION] * 3, GREEDY, tools=[[STRICT], None, [weather()]])
    assert [calls_of(result) for result in results] == [ROME, [], OSLO]
    with pytest.raises(PromptsError) as caught:
        llm.chat([QUESTION] * 3, GREEDY, tools=[[STRICT], [5], None], tool_choice="required")
    assert {i: error.param for i, error in caught.value.errors.items()} == {
        1: "tools[0]",
        2: "tools",
    }


def test_without_a_parser_calls_are_text_and_cannot_be_constrained():
    with LLM("demo", tool_call_parser="none") as llm:
        (result,) = llm.chat(QUESTION, GREEDY, tools=[weather()])
        assert (calls_of(result), "Oslo" in result.outputs[0].text) == ([], True)
        with pytest.raises(InvalidRequestError, match=NO_PARSER):
            llm.chat(QUESTION, GREEDY, tools=[weather()], tool_choice="required")
        with pytest.raises(InvalidRequestError, match=NO_PARSER):
            llm.chat(QUESTION, GREEDY, tools=[STRICT])


def test_quire_run_follows_strict_tools(tmp_path, capsys):
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([STRICT]))
    arguments = ["run", "demo", QUESTION[0]["content"], "--tools", str(tools), "--json"]
    assert main([*arguments, "--temperature", "0", "--max-tokens", "40"]) == 0
    assert "Rome" in capsys.readouterr().out
