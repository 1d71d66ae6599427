"""What a body asks for arrives in `SamplingParams` as it was asked for, and nothing else does."""

import pytest

from quire.errors import InvalidRequestError
from quire.sampling_params import SamplingParams, StructuredOutputsParams
from quire.server.wire.params import (
    MAX_STOP_TOKEN_IDS,
    constraint_field,
    includes_usage,
    one_constraint,
    prompt_parts,
    response_constraint,
    sampling_params,
)
from quire.server.wire.protocol import SamplingBody, StreamOptions

NOTHING = {
    "max_tokens": None, "logprobs": None, "prompt_logprobs": None, "structured_outputs": None,
    "extra_args": {},
}  # fmt: skip


def params(**fields):
    return sampling_params(SamplingBody(**fields), **NOTHING)


def test_what_is_absent_has_its_default():
    assert params() == SamplingParams(max_tokens=None)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 3),
        ("temperature", 0.0),
        ("top_p", 0.5),
        ("top_k", 0),
        ("top_k", 7),
        ("min_p", 0.25),
        ("seed", 0),
        ("seed", -5),
        ("min_tokens", 4),
        ("stop", ["a", "b"]),
        ("stop_token_ids", [7, 8]),
        ("include_stop_str_in_output", True),
        ("ignore_eos", True),
        ("skip_special_tokens", False),
    ],
)
def test_each_field_arrives_by_itself(name, value):
    assert params(**{name: value}) == SamplingParams(max_tokens=None, **{name: value})


def test_what_the_routes_work_out_arrives_too():
    constraint = StructuredOutputsParams(regex="x")
    given = {
        "max_tokens": 5, "logprobs": 0, "prompt_logprobs": 3, "structured_outputs": constraint,
        "extra_args": {"warmth": 1},
    }  # fmt: skip
    assert sampling_params(SamplingBody(), **given) == SamplingParams(**given)


def test_so_many_stop_ids_are_taken_and_no_more():
    assert len(params(stop_token_ids=[1] * MAX_STOP_TOKEN_IDS).stop_token_ids) == 256
    with pytest.raises(InvalidRequestError, match="at most 256") as caught:
        params(stop_token_ids=[1] * (MAX_STOP_TOKEN_IDS + 1))
    assert caught.value.param == "stop_token_ids"


@pytest.mark.parametrize("adds", [True, False])
def test_a_prompt_has_its_salt_and_a_text_its_special_tokens(adds):
    assert prompt_parts("x", SamplingBody(), adds) == {"prompt": "x", "add_special_tokens": adds}
    salted = SamplingBody(cache_salt="")
    assert prompt_parts([1, 2], salted, adds) == {"prompt_token_ids": [1, 2], "cache_salt": ""}


@pytest.mark.parametrize(
    ("asked", "constraint"),
    [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, StructuredOutputsParams(json_object=True)),
        ({"type": "json_schema", "json_schema": {"schema": {}}}, StructuredOutputsParams(json={})),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "null"}}},
            StructuredOutputsParams(json={"type": "null"}),
        ),
    ],
)
def test_a_response_format_is_a_constraint(asked, constraint):
    assert response_constraint(asked) == constraint


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({}, "response_format.type"),
        ({"type": "xml"}, "response_format.type"),
        ({"type": "json_schema"}, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": []}, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": {}}, "response_format.json_schema.schema"),
        (
            {"type": "json_schema", "json_schema": {"schema": None}},
            "response_format.json_schema.schema",
        ),
    ],
)
def test_a_response_format_that_is_none_is_named(asked, param):
    with pytest.raises(InvalidRequestError) as caught:
        response_constraint(asked)
    assert caught.value.param == param


def test_constraints_exclude_each_other():
    one, other = StructuredOutputsParams(regex="a"), StructuredOutputsParams(regex="b")
    assert one_constraint() is one_constraint(None, None) is None
    assert one_constraint(None, one, None) is one
    for several in ((one, other), (one, None, other), (one, one, other)):
        with pytest.raises(InvalidRequestError, match="exclude each other") as caught:
            one_constraint(*several)
        assert caught.value.param == "response_format"


def test_a_constraint_error_names_the_field_that_is_there():
    assert constraint_field(None) == "structured_outputs"
    assert constraint_field({"type": "text"}) == constraint_field({}) == "response_format"


@pytest.mark.parametrize(("asked", "wanted"), [(True, True), (False, False), (None, False)])
def test_usage_comes_if_a_stream_asks_for_it(asked, wanted):
    options = StreamOptions(include_usage=asked)
    assert includes_usage(SamplingBody(stream=True, stream_options=options)) is wanted
    assert includes_usage(SamplingBody(stream=True)) is includes_usage(SamplingBody()) is False
    for stream in (None, False):
        with pytest.raises(InvalidRequestError, match="stream: true") as caught:
            includes_usage(SamplingBody(stream=stream, stream_options=options))
        assert caught.value.param == "stream_options"
