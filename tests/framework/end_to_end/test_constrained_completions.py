"""Completions with output types satisfy them; a grammar that ends is `stop`, a cut is `length`."""

import enum
import re
from typing import Literal

import pydantic
import pytest
from outlines import types as terms

from quire import LLM, SamplingParams
from quire.errors import GrammarError
from quire.sampling_params import StructuredOutputsParams
from quire.testing.checkpoints import write_checkpoint


class Person(pydantic.BaseModel, extra="forbid"):
    name: str = pydantic.Field(max_length=5)
    is_adult: bool


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    folder = write_checkpoint(tmp_path_factory.mktemp("model"), "Qwen3ForCausalLM").folder
    with LLM(str(folder), max_model_len=256) as llm:
        yield llm


def complete(llm, constraint, **fields):
    sampling = {"temperature": 2.0, "max_tokens": 100, "seed": 1} | fields
    params = SamplingParams(structured_outputs=constraint, **sampling)
    return llm.generate("x", params)[0].outputs[0]


@pytest.mark.parametrize(
    ("given", "is_valid"),
    [
        (Person, Person.model_validate_json),
        (pydantic.TypeAdapter(Person), Person.model_validate_json),
        (terms.JsonSchema(Person), Person.model_validate_json),
        ({"json": Person}, Person.model_validate_json),
        (Literal["yes", "no"], {"yes", "no"}.__contains__),
        (Color, {"red", "blue"}.__contains__),
        (terms.Choice(["a", 1]), {"a", "1"}.__contains__),
        ("a" + terms.Regex("[0-9]").exactly(3), re.compile("a[0-9]{3}").fullmatch),
        (terms.CFG('start: "(" start ")" | "a"'), re.compile(r"\(*a\)*").fullmatch),
    ],
)
def test_a_completion_satisfies_its_output_type(llm, given, is_valid):
    for seed in range(4):
        completion = complete(llm, given, seed=seed)
        assert completion.finish_reason == "stop"
        assert is_valid(completion.text)


@pytest.mark.parametrize("ignore_eos", [False, True])
@pytest.mark.parametrize("min_tokens", [0, 50])
@pytest.mark.parametrize(
    "constraint",
    [
        {"choice": ["yes", "no"], "backend": "outlines"},
        {"choice": ["yes", "no"], "backend": "llguidance"},
        {"regex": "[0-9]{4}", "backend": "outlines"},
        {"regex": "[0-9]{4}", "backend": "llguidance"},
        {"json": {"enum": [1]}},
        {"grammar": 'start: "yes"', "backend": "llguidance"},
    ],
)
def test_a_grammar_that_ends_ends_the_request_with_stop(llm, constraint, ignore_eos, min_tokens):
    completion = complete(llm, constraint, ignore_eos=ignore_eos, min_tokens=min_tokens)
    assert completion.finish_reason == "stop"
    assert completion.stop_reason is None
    assert len(completion.token_ids) <= 6
    assert completion.text


def test_a_completion_that_is_cut_ends_with_length(llm):
    completion = complete(llm, {"regex": "[0-9]{40}"}, max_tokens=5)
    assert completion.finish_reason == "length"
    assert re.fullmatch("[0-9]{1,5}", completion.text)
    assert complete(llm, {"regex": "[0-9]{40}"}, stop="1", max_tokens=60).finish_reason == "stop"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (StructuredOutputsParams(grammar=terms.CFG("start: x"), backend="outlines"), "'grammar'"),
        (StructuredOutputsParams(structural_tag={"format": {}}), "'structural_tag'"),
        ({"json": {"const": {1}}}, "the value at /const is a set"),
    ],
)
def test_a_constraint_that_no_backend_takes_is_refused_by_name(llm, given, message):
    with pytest.raises(GrammarError, match=message) as caught:
        complete(llm, given)
    assert caught.value.param == "structured_outputs"
    assert complete(llm, Color).finish_reason == "stop"
