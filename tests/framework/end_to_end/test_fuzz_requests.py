"""Any request gets a right answer or a typed error, and the engine serves the next one."""

import asyncio
import json
import math

import pytest
from asgi_parts import post
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quire import LLM, AsyncEngine, SamplingParams
from quire.config import ServerSettings
from quire.errors import RequestError
from quire.interfaces.field_types import ListOf, OneOf, Text, TokenMap, TokenSet, TokenTexts
from quire.sampling_params import RepetitionDetectionParams
from quire.server.app import create_app
from quire.testing.checkpoints import write_checkpoint

PROMPT = [5, 9, 200, 31, 7, 9]
V = 320  # of the checkpoint, see `folder`
MAX_MODEL_LEN = 48
OPTIONS = {"max_model_len": MAX_MODEL_LEN, "max_logprobs": -1, "num_kv_blocks": 40}
FUZZ = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

TOKEN_IDS = st.sampled_from([0, 3, 7, V - 1])
FLOATS = st.sampled_from([0.0, -0.0, 1e-300, 1e-5, 0.5, 1.0, 1.5, 2.0, 100.0])
VALID = st.fixed_dictionaries(
    {"max_tokens": st.integers(1, 6)},
    optional={
        "n": st.integers(1, 3),
        "best_of": st.integers(1, 4),
        "temperature": FLOATS,
        "top_p": st.sampled_from([1e-300, 0.1, 0.9, 1.0, 1]),
        "top_k": st.sampled_from([-1, 0, 1, 2, V - 1, V, V + 1, 2**31 - 1]),
        "min_p": st.sampled_from([0, -0.0, 1e-300, 0.1, 1.0]),
        "presence_penalty": st.sampled_from([-2.0, -0.0, 2]),
        "frequency_penalty": st.sampled_from([-2, 0.1, 2.0]),
        "repetition_penalty": st.sampled_from([1e-3, 0.5, 1.0, 1000]),
        "logit_bias": st.dictionaries(TOKEN_IDS, st.sampled_from([-100, 0, 100.0]), max_size=2),
        "allowed_token_ids": st.lists(TOKEN_IDS, max_size=3),
        "bad_words": st.lists(st.text("ab \ud800", max_size=3), max_size=2),
        "seed": st.sampled_from([None, 0, -1, 2**63 - 1, -(2**63)]),
        "min_tokens": st.integers(0, 4),
        "stop": st.lists(st.text("ab\u00e9 ", min_size=1, max_size=2), max_size=2),
        "stop_regex": st.lists(st.sampled_from(["a+", "[^a]b", "(?s).{3}", "x*"]), max_size=2),
        "stop_token_ids": st.lists(TOKEN_IDS, max_size=3),
        "include_stop_str_in_output": st.booleans(),
        "ignore_eos": st.booleans(),
        "logprobs": st.sampled_from([None, -1, 0, 1, 5, V - 1, V, V + 1, 2**31 - 1]),
        "prompt_logprobs": st.sampled_from([None, -1, 0, 2, V, V + 1]),
        "logprob_token_ids": st.lists(TOKEN_IDS, max_size=3),
        "thinking_token_budget": st.sampled_from([None, -1, 0, 1]),
        "repetition_detection": st.sampled_from([{}, {"max_pattern_size": 2, "min_count": 2}]),
    },
)
ODD = st.sampled_from(
    [math.nan, math.inf, -math.inf, 2**63, -(2**63) - 1, 1e308, -1, 0, True, False, "1", "", [], {},
     [True], [1.5], [None], {"a": 1}, [[1]], [2**63], [V], [-1], [2**31], {V: 1.0}, {"-1": 1.0}]
)  # fmt: skip
HUGE = st.sampled_from([[1] * 70_000, ["a"] * 70_000, "a" * 70_000, dict.fromkeys(range(V), 1.0)])
FEWER = settings(FUZZ, max_examples=60)  # of tests for the fields of the engine's samplers


def numbers(kind, minimum, maximum, default):
    """Values of a number's field: its bounds if they are finite, its default and some others."""
    if kind is bool:
        return st.booleans()
    some = [minimum, maximum, default, -0.0, 1e-300, 0.5, 1, 2]
    bounded = [kind(each) for each in some if math.isfinite(each) and minimum <= each <= maximum]
    return st.sampled_from(bounded)


def values_of(field):
    """Values that a field takes by its declared type; of a type without a case, its default."""
    kind = field.type
    if isinstance(kind, type):
        return numbers(kind, field.minimum, field.maximum, field.default)
    texts = st.text("ab \n", min_size=1, max_size=4)
    match kind:
        case OneOf():
            return st.sampled_from(kind.choices)
        case Text():
            return texts
        case ListOf(element=OneOf() as element):
            return st.lists(st.sampled_from(element.choices), max_size=min(3, kind.max_items))
        case ListOf():
            element = numbers(kind.element, kind.minimum, kind.maximum, 0)
            return st.lists(element, max_size=min(3, kind.max_items))
        case TokenMap():
            element = numbers(float, kind.minimum, kind.maximum, 0)
            return st.dictionaries(TOKEN_IDS, element, max_size=2)
        case TokenSet():
            return st.lists(TOKEN_IDS, max_size=3)
        case TokenTexts():
            return st.lists(texts, max_size=min(3, kind.max_items))
    return st.one_of(st.just(field.default), texts, st.lists(TOKEN_IDS, min_size=1, max_size=4))


def extra_args_of(fields):
    """Values for some of the fields that the engine's samplers add."""
    names = st.lists(st.sampled_from(sorted(fields)), min_size=1, max_size=5, unique=True)
    return names.flatmap(
        lambda some: st.fixed_dictionaries({name: values_of(fields[name]) for name in some})
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    checkpoint = write_checkpoint(tmp_path_factory.mktemp("m"), "Qwen3ForCausalLM", vocab_size=V)
    return str(checkpoint.folder)


@pytest.fixture(scope="module")
def llm(folder):
    with LLM(folder, **OPTIONS) as llm:
        yield llm


def check(output, params):
    """Check what every completion must be."""
    assert len(output.token_ids) <= params.max_tokens
    assert all(0 <= token_id < V for token_id in output.token_ids)
    assert output.finish_reason in ("stop", "length", "repetition")
    if params.allowed_token_ids:
        assert set(output.token_ids) <= set(params.allowed_token_ids)
    if output.finish_reason == "length":
        assert len(output.token_ids) == params.max_tokens
    if params.logprobs is None:
        assert output.logprobs is None
        return
    wanted = V if params.logprobs == -1 else min(params.logprobs, V)
    for token_id, row in zip(output.token_ids, output.logprobs, strict=True):
        assert next(iter(row)) == token_id
        assert all(math.isfinite(each.logprob) for each in row.values())
        if params.logprob_token_ids:
            assert set(row) == {token_id, *params.logprob_token_ids}
        else:
            assert wanted <= len(row) <= wanted + 1


def run(llm, fields):
    """Generate, and check the result; return whether the request was valid."""
    try:
        params = SamplingParams(**fields)
        (result,) = llm.generate(PROMPT, params)
    except RequestError as error:
        refusal = error
    else:
        assert len(result.outputs) == params.n
        for output in result.outputs:
            check(output, params)
        return True
    is_too_long = refusal.code == "context_length_exceeded" and refusal.param == "negative_prompt"
    assert is_too_long or refusal.code in ("invalid_request", "request_failed"), refusal
    if refusal.code == "invalid_request":
        extra_args = fields.get("extra_args")
        names = {*fields, *map(str, extra_args if isinstance(extra_args, dict) else ())}
        assert refusal.param.split(".")[0] in names
    return False


@given(fields=VALID)
@FUZZ
def test_any_mixture_of_parameters_runs_or_is_refused_by_name(llm, fields):
    run(llm, fields)
    assert llm.stats().num_used_blocks == 0
    assert run(llm, {"max_tokens": 1})


@given(fields=VALID, name=st.sampled_from(SamplingParams.__struct_fields__), value=ODD)
@FUZZ
def test_any_odd_value_runs_or_is_refused_by_name(llm, fields, name, value):
    run(llm, fields | {name: value})
    assert llm.stats().num_used_blocks == 0
    assert run(llm, {"max_tokens": 1})


def own_fields(llm):
    return llm._running.intake.extra_fields


@given(fields=VALID, data=st.data())
@FEWER
def test_any_mixture_of_sampler_fields_runs_or_is_refused_by_name(llm, fields, data):
    extra_args = data.draw(extra_args_of(own_fields(llm)))
    run(llm, fields | {"extra_args": extra_args})
    assert llm.stats().num_used_blocks == 0
    assert run(llm, {"max_tokens": 1})


@given(data=st.data(), value=ODD | HUGE)
@FEWER
def test_any_odd_sampler_field_runs_or_is_refused_by_name(llm, data, value):
    extra_args = data.draw(extra_args_of(own_fields(llm)))
    name = data.draw(st.sampled_from(sorted(own_fields(llm))))
    run(llm, {"max_tokens": 3, "extra_args": extra_args | {name: value}})
    assert llm.stats().num_used_blocks == 0
    assert run(llm, {"max_tokens": 1})


def test_each_sampler_field_can_be_set_alone(llm):
    for field in own_fields(llm).values():
        value = field.default
        if isinstance(field.type, type) and field.type is not bool and field.maximum < 2**31:
            value = field.type(field.maximum)
        fields = {"max_tokens": 2, "extra_args": {field.name: value}}
        assert run(llm, fields) or field.name == "negative_prompt", field.name


@given(
    names=st.lists(st.sampled_from(["dry", "temperature", "x", "", "a" * 500]), max_size=3)
    | ODD | HUGE
)  # fmt: skip
@FEWER
def test_any_names_of_logits_processors_run_or_are_refused_by_name(llm, names):
    run(llm, {"max_tokens": 2, "logits_processors": names})
    assert run(llm, {"max_tokens": 1})


@pytest.fixture(scope="module")
def app(folder):
    engine = AsyncEngine(folder, **OPTIONS)
    yield create_app(engine.frontend, ServerSettings(), list)
    asyncio.run(engine.shutdown())


def no_constant(name):
    raise AssertionError(f"{name} is no JSON")


@given(
    fields=VALID,
    odd=st.dictionaries(
        st.sampled_from([*SamplingParams.__struct_fields__, "stream"]), ODD, max_size=1
    ),
)
@FUZZ
def test_any_body_gets_an_answer_or_a_400_that_names_the_field(app, fields, odd):
    fields = {"max_tokens": 2} | fields | odd
    fields.pop("logprobs", None) if fields.get("stream") else None
    try:
        body = json.dumps(fields, allow_nan=False)
    except ValueError:
        return  # no JSON at all: bodies are tested elsewhere
    if "\\ud800" in body:
        return
    wire = post(app, "/v1/completions", prompt=PROMPT, **fields)
    assert wire.status in (200, 400), wire.body
    if wire.status == 400:
        assert wire.error["param"] is not None, wire.error
        assert wire.error["param"].split(".")[0].split("[")[0] in fields, wire.error
    elif not fields.get("stream"):
        choices = json.loads(wire.body, parse_constant=no_constant)["choices"]
        assert len(choices) == (fields.get("n") or 1)


def test_a_repetition_that_is_off_is_nothing():
    assert SamplingParams(repetition_detection=RepetitionDetectionParams()) == SamplingParams()
