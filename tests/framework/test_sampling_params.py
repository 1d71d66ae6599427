import math

import msgspec
import pytest

from quire.call_grammar import CallGrammar
from quire.errors import InvalidRequestError
from quire.sampling_params import (
    RepetitionDetectionParams,
    SamplingParams,
    StructuredOutputsParams,
)


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
        ("best_of", 0), ("best_of", 129), ("best_of", True), ("best_of", 2.0),
        ("temperature", -0.1), ("temperature", float("nan")), ("temperature", float("inf")),
        ("temperature", 101), ("temperature", "hot"), ("temperature", True), ("temperature", None),
        ("top_p", 0), ("top_p", 1.1), ("top_p", -1),
        ("top_k", -2), ("top_k", 2.5), ("top_k", 2**31),
        ("min_p", -0.1), ("min_p", 1.5),
        ("seed", 2**63), ("seed", -(2**63) - 1), ("seed", 1.5),
        ("max_tokens", 0), ("max_tokens", -1), ("max_tokens", 1.0),
        ("min_tokens", -1),
        ("logprobs", -2), ("logprobs", 2**31), ("logprobs", True), ("logprobs", 2**63),
        ("prompt_logprobs", -2), ("prompt_logprobs", 2**31), ("prompt_logprobs", 1.0),
        ("logprob_token_ids", [0] * 129), ("logprob_token_ids", 5),
        ("temperature", 10**400), ("top_p", 10**400),
        ("stop", [""]), ("stop", ["x"] * 17), ("stop", [3]), ("stop", 5), ("stop", ["x" * 1025]),
        ("stop_regex", [""]), ("stop_regex", ["x"] * 5), ("stop_regex", [3]), ("stop_regex", 5),
        ("stop_regex", "x" * 513), ("thinking_token_budget", -2), ("thinking_token_budget", 2**31),
        ("thinking_token_budget", True), ("repetition_detection", 3), ("repetition_detection", [1]),
        ("repetition_detection", {"max_size": 3}),
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
        ("logprobs", -1), ("prompt_logprobs", 0), ("prompt_logprobs", -1), ("stop", ["x"] * 16),
        ("thinking_token_budget", 0), ("thinking_token_budget", 2**31 - 1),
        ("logprobs", 2**31 - 1), ("logprob_token_ids", [0] * 128),
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
        "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0,
        "include_stop_str_in_output": False, "ignore_eos": False, "skip_special_tokens": True,
        "logits_processors": (),
        "warmth": 2,
    }  # fmt: skip


def test_more_tokens_at_least_than_at_most_is_a_contradiction():
    error = refused(min_tokens=17)
    assert error.param == "min_tokens"
    assert "min_tokens (17) is larger than max_tokens (16)" in str(error)
    assert SamplingParams(min_tokens=17, max_tokens=None).min_tokens == 17
    assert SamplingParams(min_tokens=16, max_tokens=16).min_tokens == 16


def test_named_tokens_are_reported_instead_of_the_most_likely_ones():
    assert SamplingParams(logprob_token_ids=[4, 2]).logprobs == 0
    assert SamplingParams(logprob_token_ids=[4], logprobs=0).logprob_token_ids == (4,)
    assert SamplingParams(logprob_token_ids=[], logprobs=2).logprobs == 2
    error = refused(logprob_token_ids=[4], logprobs=2)
    assert error.param == "logprob_token_ids"
    assert "leave one of them out" in str(error)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_pattern_size": 3}, "min_count"),
        ({"max_pattern_size": 3, "min_count": 1}, "min_count"),
        ({"max_pattern_size": 257, "min_count": 2}, "max_pattern_size"),
        ({"max_pattern_size": -1, "min_count": 2}, "max_pattern_size"),
        ({"max_pattern_size": 2, "min_pattern_size": 3, "min_count": 2}, "min_pattern_size"),
        ({"max_pattern_size": 2, "min_pattern_size": -1, "min_count": 2}, "min_pattern_size"),
        ({"max_pattern_size": 2, "min_count": 65}, "min_count"),
        ({"max_pattern_size": True, "min_count": 2}, "max_pattern_size"),
        ({"max_pattern_size": 2.0, "min_count": 2}, "max_pattern_size"),
        ({"min_pattern_size": 1}, "min_pattern_size"),
    ],
)  # fmt: skip
def test_a_repetition_that_cannot_be_found_is_refused(fields, param):
    for make in (lambda: RepetitionDetectionParams(**fields), lambda: fields):
        with pytest.raises(InvalidRequestError) as caught:
            SamplingParams(repetition_detection=make())
        assert caught.value.param == f"repetition_detection.{param}"


def test_a_repetition_may_be_a_dict_and_off():
    fields = {"max_pattern_size": 3, "min_count": 2}
    params = SamplingParams(repetition_detection=fields)
    assert params.repetition_detection == RepetitionDetectionParams(**fields)
    assert params.repetition_detection.min_pattern_size == 1
    sent = msgspec.msgpack.encode(params)
    assert msgspec.msgpack.decode(sent, type=SamplingParams) == params
    assert SamplingParams(repetition_detection={}).repetition_detection is None
    off = RepetitionDetectionParams()
    assert SamplingParams(repetition_detection=off).repetition_detection is None


def test_the_best_are_among_at_least_so_many():
    assert refused(n=3, best_of=2).param == "best_of"
    assert SamplingParams(n=3, best_of=3).best_of is None
    params = SamplingParams(n=3, best_of=128)
    assert (params.best_of, params.num_generated, SamplingParams(n=3).num_generated) == (
        128,
        128,
        3,
    )


def test_no_budget_of_thinking_is_no_limit():
    assert SamplingParams(thinking_token_budget=-1).thinking_token_budget is None
    assert SamplingParams(thinking_token_budget=0).thinking_token_budget == 0


def test_one_stop_string_is_not_taken_for_its_letters():
    assert SamplingParams(stop="END").stop == ("END",)
    assert SamplingParams(stop_regex="END").stop_regex == ("END",)


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


def test_the_calls_of_parameters_are_those_of_their_constraint():
    calls = CallGrammar(())
    assert SamplingParams().calls is None
    assert SamplingParams(structured_outputs=StructuredOutputsParams(regex="a")).calls is None
    assert SamplingParams(structured_outputs=StructuredOutputsParams(calls=calls)).calls is calls


def test_token_ids_of_json_are_numbers_before_they_travel():
    params = SamplingParams(logit_bias={"5": 1, 7: -2.5})
    assert params.logit_bias == {5: 1, 7: -2.5}
    sent = msgspec.msgpack.encode(params)
    assert msgspec.msgpack.decode(sent, type=SamplingParams).logit_bias == {5: 1.0, 7: -2.5}


def test_a_token_id_that_is_there_twice_is_refused():
    assert refused(logit_bias={"5": 1, 5: 2}).param == "logit_bias"


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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("presence_penalty", 2.01), ("presence_penalty", -2.01), ("frequency_penalty", math.nan),
        ("frequency_penalty", True), ("repetition_penalty", 0), ("repetition_penalty", -1.0),
        ("repetition_penalty", math.inf), ("repetition_penalty", 2**63), ("logit_bias", [1]),
        ("logit_bias", dict.fromkeys(range(1025), 0.0)), ("bad_words", "word"),
        ("bad_words", ["a"] * 129), ("allowed_token_ids", 3), ("stop_token_ids", range(3)),
        ("stop_token_ids", [0] * 257), ("stop", ["a"] * 17), ("stop", 3),
    ],
)  # fmt: skip
def test_a_wrong_control_of_tokens_is_refused_by_name(name, value):
    with pytest.raises(InvalidRequestError, match=name) as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name


@pytest.mark.parametrize("name", ["stop", "stop_token_ids", "bad_words", "allowed_token_ids"])
def test_the_length_of_a_list_is_checked_before_it_is_copied(name):
    class Endless(list):
        def __len__(self):
            return 10**9

        def __iter__(self):
            raise AssertionError("copied")

    with pytest.raises(InvalidRequestError, match="has 1000000000 items; it takes at most"):
        SamplingParams(**{name: Endless()})


def test_a_copy_with_other_extra_args_keeps_what_was_checked():
    params = SamplingParams(temperature=1, stop=["a"], top_k=3, extra_args={"a": 1})
    made = params.with_extra_args({"b": 2})
    assert made == SamplingParams(temperature=1, stop=["a"], top_k=3, extra_args={"b": 2})
    assert params.extra_args == {"a": 1}
