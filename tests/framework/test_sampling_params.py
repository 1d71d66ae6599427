import msgspec
import pytest

from quire.errors import InvalidRequestError
from quire.sampling_params import SamplingParams, StructuredOutputsParams


def refused(**fields):
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**fields)
    return caught.value


def test_the_defaults_are_those_that_users_of_vllm_know():
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_p, params.max_tokens) == (1, 1.0, 1.0, 16)
    assert (params.top_k, params.min_p, params.seed, params.stop) == (0, 0.0, None, ())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0), ("n", 129), ("n", 1.0), ("n", True), ("n", "2"),
        ("temperature", -0.1), ("temperature", float("nan")), ("temperature", float("inf")),
        ("temperature", 101), ("temperature", "hot"), ("temperature", True), ("temperature", None),
        ("top_p", 0), ("top_p", 1.1), ("top_p", -1),
        ("top_k", -2), ("top_k", 2.5), ("top_k", 2**31),
        ("min_p", -0.1), ("min_p", 1.5),
        ("seed", 2**63), ("seed", -(2**63) - 1), ("seed", 1.5),
        ("max_tokens", 0), ("max_tokens", -1), ("max_tokens", 1.0),
        ("min_tokens", -1),
        ("logprobs", -1), ("logprobs", 21), ("logprobs", True),
        ("prompt_logprobs", -1), ("prompt_logprobs", 21), ("prompt_logprobs", 1.0),
        ("temperature", 10**400), ("top_p", 10**400),
        ("stop", [""]), ("stop", ["x"] * 17), ("stop", [3]),
    ],
)  # fmt: skip
def test_a_value_out_of_range_is_refused_and_the_field_is_named(field, value):
    error = refused(**{field: value})
    assert error.param == field
    assert field in str(error)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 128), ("temperature", 0), ("temperature", 100), ("top_p", 1e-6), ("top_p", 1),
        ("top_k", -1), ("top_k", 2**31 - 1), ("min_p", 0), ("min_p", 1), ("seed", 2**63 - 1),
        ("seed", -(2**63)), ("max_tokens", 1), ("max_tokens", None), ("logprobs", 0),
        ("logprobs", 20), ("prompt_logprobs", 0), ("prompt_logprobs", 20), ("stop", ["x"] * 16),
    ],
)  # fmt: skip
def test_the_ends_of_each_range_are_taken(field, value):
    assert SamplingParams(**{field: value}) is not None


def test_what_samplers_read_are_numbers_of_one_type():
    params = SamplingParams(temperature=0, top_p=1, min_p=0, top_k=3, extra_args={"warmth": 2})
    fields = params.sampler_fields
    assert [type(fields[name]) for name in ("temperature", "top_p", "min_p")] == [float] * 3
    assert fields == {
        "n": 1, "temperature": 0.0, "top_p": 1.0, "top_k": 3, "min_p": 0.0, "min_tokens": 0,
        "include_stop_str_in_output": False, "ignore_eos": False, "skip_special_tokens": True,
        "warmth": 2,
    }  # fmt: skip


def test_more_tokens_at_least_than_at_most_is_a_contradiction():
    error = refused(min_tokens=17)
    assert error.param == "min_tokens"
    assert "min_tokens (17) is larger than max_tokens (16)" in str(error)
    assert SamplingParams(min_tokens=17, max_tokens=None).min_tokens == 17
    assert SamplingParams(min_tokens=16, max_tokens=16).min_tokens == 16


def test_one_stop_string_is_not_taken_for_its_letters():
    assert SamplingParams(stop="END").stop == ("END",)


def test_lists_become_tuples_so_that_they_cannot_change():
    params = SamplingParams(stop=["a", "b"], stop_token_ids=[1, 2])
    assert params.stop == ("a", "b")
    assert params.stop_token_ids == (1, 2)


def test_parameters_cannot_be_changed():
    with pytest.raises(AttributeError):
        SamplingParams().temperature = 0


def test_parameters_travel_as_msgpack():
    params = SamplingParams(
        temperature=0.5,
        stop=("END",),
        structured_outputs=StructuredOutputsParams(choice=("yes", "no")),
        extra_args={"top_n_sigma": 1.5},
    )
    sent = msgspec.msgpack.encode(params)
    assert msgspec.msgpack.decode(sent, type=SamplingParams) == params


@pytest.mark.parametrize(
    ("constraints", "named"),
    [
        ({}, "none"),
        ({"json": {}, "regex": "a"}, "json, regex"),
        ({"choice": ("a",), "json_object": True}, "choice, json_object"),
        ({"regex": "a", "grammar": "root ::= a"}, "regex, grammar"),
    ],
)
def test_a_completion_satisfies_exactly_one_constraint(constraints, named):
    with pytest.raises(InvalidRequestError, match=f"got {named}") as caught:
        StructuredOutputsParams(**constraints)
    assert caught.value.param == "structured_outputs"


@pytest.mark.parametrize(
    "constraints",
    [{"json": {"type": "object"}}, {"json": "{}"}, {"regex": ""}, {"choice": ("a",)},
     {"json_object": True}, {"grammar": "root ::= a"}],
)  # fmt: skip
def test_each_constraint_is_accepted_alone(constraints):
    assert StructuredOutputsParams(**constraints, backend="mine").backend == "mine"
